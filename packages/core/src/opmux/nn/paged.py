"""The paged KV cache that `Attention` uses: the pages, and where the tokens of a step lie in them."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, Self

import torch
from torch import Tensor

import opmux
from opmux.dtypes import name_of
from opmux.errors import invalid
from opmux.nn.sizes import check_sizes

_STORED = opmux.write_kv_cache.op.signature.tensor("k_cache").dtypes
"""The dtypes that a cache can have."""


@dataclass(frozen=True)
class PagedStep:
    """Where the tokens of one step lie: index data shared by all layers, with tokens ordered by sequence."""

    positions: Tensor
    """int64[tokens]: the position of each token in its sequence."""
    slot_mapping: Tensor
    """int64[tokens]: page * page_size + offset."""
    cu_seqlens_q: Tensor
    """int32[sequences + 1]: where each sequence's new tokens begin, then where the last ones end."""
    seq_lens: Tensor
    """int32[sequences]: the number of cached tokens, including those of this step."""
    block_table: Tensor
    """int32[sequences, max_pages]: the pages of each sequence, padded with 0."""
    max_seqlen_q: int
    """An upper bound on the new tokens of a sequence."""
    max_seqlen_k: int
    """An upper bound on the sequence lengths."""

    @classmethod
    def of(
        cls,
        starts: Sequence[int],
        counts: Sequence[int],
        pages: Sequence[Sequence[int]],
        page_size: int,
        device: Any = None,
    ) -> Self:
        """Lay out a step of one or more sequences.

        Args:
            starts: How many tokens of each sequence are cached.
            counts: How many new tokens each has.
            pages: The pages of each, in order, enough for cached and new tokens.
            page_size: Tokens in a page.
            device: The device of the tensors.

        Raises:
            InvalidArgument: If the three differ in length or are empty, a number is negative, or a sequence has too few
                pages.
        """
        if not len(starts) == len(counts) == len(pages) > 0:
            raise invalid(
                "PagedStep", "counts", "one count per sequence, like starts and pages, for at least one sequence",
                f"{len(counts)}, {len(starts)} starts and {len(pages)} lists of pages", "give each sequence all three",
            )  # fmt: skip
        for start, count, own in zip(starts, counts, pages, strict=True):
            if not 0 <= start <= start + count <= len(own) * page_size:
                raise invalid(
                    "PagedStep", "pages", f"room for {start} cached and {count} new tokens",
                    f"{len(own)} pages of {page_size}", "allocate its pages first; no number may be negative",
                )  # fmt: skip
        places = [range(start, start + count) for start, count in zip(starts, counts, strict=True)]
        slots = [
            of_one[place // page_size] * page_size + place % page_size
            for of_one, own in zip(pages, places, strict=True)
            for place in own
        ]
        width = max(len(of_one) for of_one in pages)
        table = [[*of_one, *[0] * (width - len(of_one))] for of_one in pages]
        lengths = [own.stop for own in places]

        def indices(values: Any, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        return cls(
            positions=indices([place for own in places for place in own], torch.int64),
            slot_mapping=indices(slots, torch.int64),
            cu_seqlens_q=indices(list(accumulate(counts, initial=0))),
            seq_lens=indices(lengths),
            block_table=indices(table),
            max_seqlen_q=max(counts),
            max_seqlen_k=max(lengths),
        )


@dataclass(frozen=True)
class PagedLayer:
    """The cache of one layer at one step: `opmux.write_kv_cache`, then `opmux.paged_attention`, without gradients."""

    k_cache: Tensor
    """(pages, page_size, kv_heads, head_dim); written to."""
    v_cache: Tensor
    """The same for the values, (pages, page_size, kv_heads, value_dim)."""
    step: PagedStep
    k_scale: Tensor | None = None
    """float32[kv_heads] or [1]: what one unit of an 8-bit k_cache is worth; None is 1."""
    v_scale: Tensor | None = None
    """The same for v_cache."""

    @property
    def positions(self) -> Tensor:
        """The positions of the step."""
        return self.step.positions

    def attend(self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, **options: Any) -> Tensor:
        """Store the new keys and values, then attend to all of each sequence; all are ``(tokens, heads, head_dim)``."""
        step, backend = self.step, options["backend"]
        opmux.write_kv_cache(
            k, v, self.k_cache, self.v_cache, step.slot_mapping, self.k_scale, self.v_scale, backend=backend
        )
        return opmux.paged_attention(
            q, self.k_cache, self.v_cache, step.cu_seqlens_q, step.seq_lens, step.block_table, sinks,
            None, self.k_scale, self.v_scale, max_seqlen_q=step.max_seqlen_q, max_seqlen_k=step.max_seqlen_k, **options,
        )  # fmt: skip


def _is_count(number: Any) -> bool:
    """Whether it is a whole number, 1 or more."""
    try:
        return operator.index(number) >= 1
    except TypeError:
        return False


class PagedCache:
    """The pages of all layers, and the pages that each sequence owns.

    ``step`` allocates pages to the sequences that grow, and ``release`` frees them. To manage pages yourself, use only
    `PagedLayer` and `PagedStep`.

    A cache in 8 bits takes half the memory of one in 16, and decoding reads half as much. What is stored is divided by
    the scales, ``k_scale`` and ``v_scale``, and saturates at the dtype's largest value. They are 1 at first, which
    suits many models in fp8, and none in int8, whose codes are whole numbers; `calibrate` sets them from keys and
    values that the model has computed. Set them before the first step: tokens that are cached already keep their codes.

    Args:
        layers: The number of layers that cache keys and values.
        pages: The number of pages for all sequences together; each page exists in every layer.
        page_size: Tokens in a page, 1 or a multiple of 16.
        kv_heads: Key and value heads.
        head_dim: The size of a head.
        value_dim: The size of a value head; None means head_dim.
        dtype: The dtype of the model's activations, ``"fp8"`` (the device's own e4m3: see `opmux.fp8_dtype`),
            ``"int8"``, or an 8-bit dtype of torch's.
        device: The device of the pages.

    Raises:
        InvalidArgument: If a size is not a whole number of 1 or more, page_size is neither 1 nor a multiple of 16, or
            dtype is another string, or one that `opmux.write_kv_cache` does not store.
    """

    k_scale: Tensor | None
    """float32[layers, kv_heads]: what one unit of the cached keys is worth; None for a cache that is not 8-bit."""
    v_scale: Tensor | None
    """The same for the values."""

    def __init__(
        self,
        layers: int,
        pages: int,
        page_size: int,
        kv_heads: int,
        head_dim: int,
        *,
        value_dim: int | None = None,
        dtype: torch.dtype | Literal["fp8", "int8"] | None = None,
        device: Any = None,
    ) -> None:
        value_dim = head_dim if value_dim is None else value_dim
        check_sizes(
            "PagedCache", layers=layers, pages=pages, page_size=page_size, kv_heads=kv_heads, head_dim=head_dim,
            value_dim=value_dim,
        )  # fmt: skip
        if page_size > 1 and page_size % 16:
            raise invalid("PagedCache", "page_size", "1 or a multiple of 16", f"{page_size}", "round it up")
        if isinstance(dtype, str):
            if dtype not in ("fp8", "int8"):
                raise invalid(
                    "PagedCache", "dtype", 'a torch.dtype, "fp8", "int8" or None', repr(dtype),
                    "pass the dtype of the model's activations, as torch.bfloat16, or \"fp8\"",
                )  # fmt: skip
            dtype = torch.int8 if dtype == "int8" else opmux.fp8_dtype(torch.empty(0, device=device).device)
        if dtype is not None and (not isinstance(dtype, torch.dtype) or dtype not in _STORED):
            raise invalid(
                "PagedCache", "dtype", f"one of {', '.join(sorted(map(name_of, _STORED)))}", name_of(dtype),
                "pass the dtype of the model's activations, or \"fp8\"",
            )  # fmt: skip
        sizes = [page_size * kv_heads * dim for dim in (head_dim, value_dim)]
        self.data = torch.zeros((pages, layers, sum(sizes)), dtype=dtype, device=device)
        keys, values = self.data.split(sizes, dim=-1)
        self._layers = list(
            zip(
                keys.unflatten(-1, (page_size, kv_heads, head_dim)).unbind(1),
                values.unflatten(-1, (page_size, kv_heads, value_dim)).unbind(1),
                strict=True,
            )
        )
        self.k_scale = self.v_scale = None
        self._scales: list[tuple[Tensor | None, Tensor | None]] = [(None, None)] * layers
        if self.data.dtype.itemsize == 1:
            self.k_scale, self.v_scale = torch.ones((2, layers, kv_heads), dtype=torch.float32, device=device).unbind()
            self._scales = list(zip(self.k_scale, self.v_scale, strict=True))
        self.page_size = page_size
        self._free = list(range(pages))[::-1]
        self._pages: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}

    @property
    def free_pages(self) -> int:
        """The number of pages that no sequence owns."""
        return len(self._free)

    def layer(self, index: int, step: PagedStep) -> PagedLayer:
        """The context of a layer, counted from 0, at a step.

        Raises:
            InvalidArgument: If there is no such layer.
        """
        self._check_layer(index)
        return PagedLayer(*self._layers[index], step, *self._scales[index])

    def calibrate(self, index: int, k: Tensor, v: Tensor) -> None:
        """Set the scales of an 8-bit cache's layer so that the largest of these keys and values just fit, head by head.

        Args:
            index: The layer, counted from 0.
            k: Keys that the model has computed for it, ``(tokens, kv_heads, head_dim)``, at least one token.
            v: Values, ``(tokens, kv_heads, value_dim)``.

        Raises:
            InvalidArgument: If there is no such layer, the cache is not 8-bit, there are no tokens, they have other
                heads or dims than the cache, or a number is infinite.
        """
        self._check_layer(index)
        if self.k_scale is None or self.v_scale is None:
            raise invalid(
                "PagedCache", "index", "a layer of an 8-bit cache", f"one in {name_of(self.data.dtype)}",
                'make the cache with dtype="fp8"',
            )  # fmt: skip
        given = (("k", self.k_scale, k), ("v", self.v_scale, v))
        for (name, scales, values), held in zip(given, self._layers[index], strict=True):
            shape = list(values.shape) if isinstance(values, Tensor) else None
            _, heads, dim = held.shape[-3:]
            if shape is None or len(shape) != 3 or not shape[0] or shape[1:] != [heads, dim]:
                raise invalid(
                    "PagedCache", name, f"shape [tokens, {heads}, {dim}] with at least one token",
                    f"shape {shape}" if shape is not None else f"a {type(values).__name__}",
                    "pass what the layer's projection gives, heads apart",
                )  # fmt: skip
            if values.isinf().any():
                raise invalid(
                    "PagedCache", name, "no infinities", "some", "leave out the tokens whose projections have them"
                )
            # A head at a time is a matrix (tokens, dim) with one scale.
            by_head = values.detach().transpose(0, 1)
            scales[index] = opmux.quantize(by_head, dtype=self.data.dtype, block=(-1, -1))[1].flatten()

    def _check_layer(self, index: int) -> None:
        if not isinstance(index, int) or not 0 <= index < len(self._layers):
            raise invalid(
                "PagedCache", "index", f"a layer from 0 to below {len(self._layers)}", repr(index),
                "give the cache one layer for each layer that caches keys and values",
            )  # fmt: skip

    def step(self, counts: Mapping[int, int]) -> PagedStep:
        """Make room for new tokens.

        Args:
            counts: The number of each sequence (any that you choose) -> how many new tokens it has, 1 or more. The
                step's tokens are in this order; an unused number starts a new sequence.

        Raises:
            InvalidArgument: If there are no tokens or too few pages; the cache is then unchanged.
        """
        if not isinstance(counts, Mapping) or not counts or not all(map(_is_count, counts.values())):
            raise invalid(
                "PagedCache", "counts", "a mapping with at least one new token per sequence", repr(counts),
                "leave out sequences that do not grow",
            )  # fmt: skip
        starts = [self._lengths.get(number, 0) for number in counts]
        ends = [start + count for start, count in zip(starts, counts.values(), strict=True)]
        missing = [
            -(-end // self.page_size) - len(self._pages.get(number, ()))
            for number, end in zip(counts, ends, strict=True)
        ]
        if sum(missing) > len(self._free):
            raise invalid(
                "PagedCache", "counts", f"tokens for {len(self._free)} free pages", f"tokens for {sum(missing)}",
                "release sequences that have ended, or give the cache more pages",
            )  # fmt: skip
        for number, end, more in zip(counts, ends, missing, strict=True):
            self._pages.setdefault(number, []).extend(self._free.pop() for _ in range(more))
            self._lengths[number] = end
        pages = [self._pages[number] for number in counts]
        return PagedStep.of(starts, list(counts.values()), pages, self.page_size, self.data.device)

    def release(self, number: int) -> None:
        """End a sequence and free its pages.

        Raises:
            InvalidArgument: If there is no such sequence.
        """
        if number not in self._pages:
            known = ", ".join(map(str, self._pages)) or "none"
            raise invalid("PagedCache", "number", f"a sequence of the cache ({known})", f"{number}", "release it once")
        self._free += self._pages.pop(number)[::-1]
        del self._lengths[number]
