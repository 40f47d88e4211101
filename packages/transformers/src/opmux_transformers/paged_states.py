"""What a paged cache passes to attention instead of keys and values: its pages, and where each sequence is stored."""

from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor

import opmux
from opmux.errors import InvalidArgument


def unreadable() -> bool:
    """Whether the host cannot read a length from the device: under torch.compile, and during CUDA graph capture."""
    if torch.compiler.is_compiling():
        return True
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def in_tokens(states: Tensor, new: int) -> Tensor:
    """``(batch, heads, new, dim)`` as ``(batch * new, heads, dim)``, with few views, since each takes host time."""
    return states.squeeze(2) if new == 1 else states.transpose(1, 2).flatten(0, 1)


@dataclass
class PageTable:
    """Where the sequences of a batch are stored in the pages of every layer, and how long they are.

    Sequence ``b`` has ``pages_each`` consecutive pages from ``b * pages_each`` on, so that its memory is contiguous.
    Lengths live on the device; a copy on the host is kept in eager mode, where it bounds the work.

    Attributes:
        page_size: Tokens in a page.
        pages_each: Pages of a sequence.
        block_table: ``int32 (batch, pages_each)``.
        seq_lens: ``int32 (batch,)``, the same for all sequences.
        fixed: Whether the capacity bounds the work, so that every step looks the same to graphs and plans.
        host: The length, if the host knows it; None after a compiled or captured step.
        new: Tokens that the last forward brought to every sequence.
        slots: Where they are written.
        cu_seqlens_q: Where those of each sequence begin.
        by_new: Values that depend only on the number of new tokens, for the last such number.
        reach: The bound on the length, determined once for each forward.
        angles: The last cos and sin given to decoding, and views of them with a row for each sequence.
    """

    page_size: int
    pages_each: int
    block_table: Tensor
    seq_lens: Tensor
    fixed: bool = False
    host: int | None = 0
    new: int = 0
    slots: Tensor | None = None
    cu_seqlens_q: Tensor | None = None
    by_new: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    reach: int = 0
    angles: tuple[Tensor, Tensor, Tensor, Tensor] | None = None

    @classmethod
    def of(cls, batch: int, page_size: int, pages_each: int, device: torch.device, fixed: bool) -> "PageTable":
        """An empty one."""
        pages = torch.arange(batch * pages_each, dtype=torch.int32, device=device).view(batch, pages_each)
        return cls(page_size, pages_each, pages, torch.zeros(batch, dtype=torch.int32, device=device), fixed)

    def another(self, batch: int, pages_each: int) -> "PageTable":
        """One of other sizes and the same length."""
        made = PageTable.of(batch, self.page_size, pages_each, self.block_table.device, self.fixed)
        made.set_length(self.length())
        return made

    @property
    def batch(self) -> int:
        """Sequences."""
        return self.block_table.shape[0]

    @property
    def capacity(self) -> int:
        """Tokens that a sequence may have."""
        return self.page_size * self.pages_each

    def length(self) -> int:
        """The length on the host; waits for the device if the host does not know it."""
        if self.host is None:
            self.host = int(self.seq_lens[0])
        return self.host

    def bound(self) -> int:
        """An upper bound of the length, without waiting for the device."""
        return self.capacity if self.fixed or self.host is None or unreadable() else self.host

    def advance(self, new: int) -> None:
        """Make room for new tokens in every sequence: once for each forward, by the first layer."""
        lengths = self.seq_lens.unsqueeze(1)
        self.new = new
        if unreadable():  # the room cannot be checked here: a token without a slot is not written
            places = self._places(new)
            slots = places + lengths
            at = lengths + torch.arange(new, device=self.seq_lens.device)
            self.slots = torch.where(at < self.capacity, slots, -1).flatten()
            self.seq_lens.add_(new)
            self.host = None
            self.cu_seqlens_q = self._offsets(new)
        else:
            if new not in self.by_new:
                self.by_new = {new: (self._offsets(new), self._places(new))}
            self.cu_seqlens_q, places = self.by_new[new]
            self.slots = (places + lengths).flatten()
            self.seq_lens.add_(new)
            if self.host is not None:
                self.host += new
        self.reach = self.bound()

    def _places(self, new: int) -> Tensor:
        """The slots of new tokens in sequences that are empty."""
        rows = torch.arange(self.batch, device=self.seq_lens.device).unsqueeze(1) * self.capacity
        return rows + torch.arange(new, device=self.seq_lens.device)

    def _offsets(self, new: int) -> Tensor:
        return torch.arange(self.batch + 1, dtype=torch.int32, device=self.seq_lens.device) * new

    def set_length(self, length: int) -> None:
        """Forget the tokens past a length."""
        self.seq_lens.fill_(length)
        self.host = length


def _misplaced() -> InvalidArgument:
    """What to say where pages are taken for a tensor."""
    return InvalidArgument(
        "PagedCache: `past_key_values` expected to be passed to a model whose attention opmux has replaced, got a call"
        " of another attention; patch the model, or pass transformers' own cache"
    )


@dataclass
class PagedStates:
    """The keys, or the values, of one layer: ``(pages, page_size, kv_heads, dim)``, and the table of all layers.

    Attributes:
        pages: The pages; codes where they have 8 bits.
        table: The table.
        scale: What one unit of a code is worth, ``(kv_heads,)`` or ``(1,)`` float32; None for pages of numbers.
        dtype: The dtype of the states that were written.
    """

    pages: Tensor
    table: PageTable
    scale: Tensor | None = None
    dtype: torch.dtype | None = None

    @classmethod
    def __torch_function__(cls, *_: Any) -> NoReturn:
        """Called where an attention that is not opmux's computes with it."""
        raise _misplaced()

    def __getitem__(self, _: Any) -> NoReturn:
        """The same."""
        raise _misplaced()

    def __getattr__(self, name: str) -> NoReturn:
        """The same, for an attribute of a tensor; ``hasattr`` is False."""
        raise AttributeError(str(_misplaced()), name=name, obj=self)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """As a tensor of keys would have it: (batch, kv_heads, keys, dim)."""
        return (self.table.batch, self.pages.shape[2], self.table.length(), self.pages.shape[3])

    def length(self) -> int:
        """Keys of a sequence."""
        return self.table.length()

    def in_rows(self) -> Tensor:
        """The states as rows, ``(batch, capacity, kv_heads, dim)``: a view. Of codes a copy of those that are there."""
        rows = self._rows()
        return rows if self.scale is None else self._restored(rows[:, : self.length()])

    def dense(self, keys: int | None = None) -> Tensor:
        """The states as transformers has them, ``(batch, kv_heads, keys, dim)``. None: as many as there are.

        It is a view; of codes, it is a copy in the dtype of the states that were written.
        """
        rows = self._rows()[:, : self.length() if keys is None else keys]
        return (rows if self.scale is None else self._restored(rows)).transpose(1, 2)

    def _rows(self) -> Tensor:
        """The pages, ``(batch, capacity, kv_heads, dim)``."""
        return self.pages.view(self.table.batch, self.table.capacity, *self.pages.shape[2:])

    def _restored(self, codes: Tensor) -> Tensor:
        """What codes stand for."""
        assert self.scale is not None
        numbers = codes.to(torch.float32) * self.scale.unsqueeze(1)
        return numbers if self.dtype is None else numbers.to(self.dtype)

    def attend(self, query: Tensor, values: "PagedStates", sinks: Tensor | None, options: dict[str, Any]) -> Tensor:
        """Attend from the newest tokens, ``(batch, heads, new, head_dim)``, to all; ``(batch, new, heads, dim)``."""
        table = self.table
        new = query.shape[2]
        assert table.cu_seqlens_q is not None
        out = opmux.paged_attention(
            in_tokens(query, new),
            self.pages,
            values.pages,
            table.cu_seqlens_q,
            table.seq_lens,
            table.block_table,
            sinks,
            None,
            self.scale,
            values.scale,
            max_seqlen_q=table.new,
            max_seqlen_k=table.reach,
            **options,
        )
        return out.unsqueeze(1) if new == 1 else out.view(-1, new, *out.shape[1:])
