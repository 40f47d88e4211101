"""The pages of one layer, behind the interface of transformers' cache layers, and what all layers of a cache share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

import opmux
from opmux.errors import InvalidArgument
from opmux.nn.quantizable import codes_dtype
from opmux_transformers.paged_states import PagedStates, PageTable, in_tokens, unreadable

_HEADROOM = {True: 2.0, False: 1.5}
"""By how much later keys and values may exceed the largest of the first ones; by whether codes are floating-point.

It costs a floating-point code one of its powers of two, and an integer half a bit. A rotation may enlarge a component
by the root of two.
"""
_OF_ONE_TOKEN = {True: 4.0, False: 2.0}
"""How many times as much room there is where the first call has one token: its largest number says little.

Small random models lose up to ten times as much without it, and nothing with it in floating-point codes.
"""

_FIRST_ROOM = 256
"""Tokens beyond the prompt that a cache without a maximum starts with; it doubles when it is full."""


@dataclass
class Shared:
    """What the layers of a cache share. It refers to no layer, so that a dropped cache is freed immediately.

    Attributes:
        max_length: The most tokens that a sequence may have; None grows.
        page_size: Tokens in a page.
        codes: The dtype of 8-bit pages, or ``"fp8"`` or ``"int8"``; None stores keys and values as they are.
        scales: The scales of every layer's keys and values; None finds them from the first ones.
        table: The table of all layers, made for the first of them; replaced when it grows.
        first: The layer that counts new tokens.
    """

    max_length: int | None
    page_size: int
    codes: torch.dtype | str | None = None
    scales: Sequence[tuple[Tensor, Tensor]] | None = None
    table: PageTable | None = None
    first: int = 0

    def table_for(self, states: Tensor) -> PageTable:
        """The table, made for keys like these if there is none yet."""
        if self.table is None:
            length = self.max_length or states.shape[2] + _FIRST_ROOM
            pages_each = -(-length // self.page_size)
            fixed = self.max_length is not None
            self.take(PageTable.of(states.shape[0], self.page_size, pages_each, states.device, fixed))
        assert self.table is not None
        return self.table

    def take(self, table: PageTable) -> None:
        """Use another table; every layer moves to its pages at its next write, or when asked to."""
        self.table = table
        _fix_addresses(table.block_table, table.seq_lens)

    def make_room(self, new: int, batch: int) -> None:
        """Double the number of pages if new tokens of so many sequences do not fit and the cache may grow.

        Raises:
            InvalidArgument: if it has another number of sequences, or is full and may not grow.
        """
        table = self.table
        assert table is not None
        if batch != table.batch:
            raise InvalidArgument(
                f"PagedCache: `past_key_values` expected a cache of {batch} sequences, as the call has, got one of"
                f" {table.batch}; make a cache for each batch, or use batch_select_indices or batch_repeat_interleave"
            )
        if unreadable():
            return
        needed = table.length() + new
        if needed > table.capacity:
            if self.max_length is not None:
                raise InvalidArgument(
                    f"PagedCache: `max_length` expected {needed} tokens or more, got {self.max_length};"
                    " make the cache longer, or leave max_length out to let it grow"
                )
            self.take(table.another(table.batch, -(-2 * needed // self.page_size)))


def _fix_addresses(*tensors: Tensor) -> None:
    if not torch.compiler.is_compiling():
        for tensor in tensors:
            torch._dynamo.mark_static_address(tensor)


def scale_for(states: Tensor, codes: torch.dtype) -> Tensor:
    """The scales of 8-bit pages, one for each head, with which states like these, and larger ones, are not cut off.

    Args:
        states: ``(batch, kv_heads, tokens, dim)``.
        codes: The dtype of the codes.
    """
    real = codes.is_floating_point
    largest = torch.finfo(codes).max if real else torch.iinfo(codes).max
    room = _HEADROOM[real] * (_OF_ONE_TOKEN[real] if states.shape[2] == 1 else 1.0)
    found = states.detach().abs().amax((0, 2, 3)).to(torch.float32) * (room / largest)
    return torch.where(found.isfinite() & (found > 0), found, 1.0)


class PagedLayer(CacheLayerMixin):  # type: ignore[misc]
    """The pages of one layer."""

    is_sliding = False
    is_compileable = False
    is_croppable = True

    def __init__(self, shared: Shared, index: int) -> None:
        super().__init__()
        self.shared, self.index = shared, index
        self.table: PageTable | None = None
        """The table whose pages hold the keys and values."""
        self.k_scale: Tensor | None = None
        """What one unit of the keys' codes is worth, ``(kv_heads,)`` or ``(1,)`` float32; None for pages of numbers."""
        self.v_scale: Tensor | None = None
        """The same for the values."""

    @property
    def counts(self) -> bool:
        """Whether this is the layer that acts for all of them."""
        return self.index == self.shared.first

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate pages for keys and values like these."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.table = table = self.shared.table_for(key_states)
        pages = table.batch * table.pages_each
        shapes = [(pages, table.page_size, states.shape[1], states.shape[3]) for states in (key_states, value_states)]
        stored = self.dtype
        if self.shared.codes is not None:
            stored = codes_dtype("PagedCache", self.shared.codes, self.device)
            self.k_scale, self.v_scale = (
                [scale_for(states, stored) for states in (key_states, value_states)]
                if self.shared.scales is None
                else [self._given(scale, key_states.shape[1]) for scale in self.shared.scales[self.index]]
            )
            _fix_addresses(self.k_scale, self.v_scale)
        self.keys, self.values = (torch.zeros(shape, dtype=stored, device=self.device) for shape in shapes)
        _fix_addresses(self.keys, self.values)
        self.is_initialized = True

    def _given(self, scale: Tensor, heads: int) -> Tensor:
        """A scale of the user's, on the device of the pages.

        Raises:
            InvalidArgument: if it is of another number of heads.
        """
        if len(scale) not in (1, heads):
            raise InvalidArgument(
                f"PagedCache: `scales` expected float32[{heads}] or float32[1] for the {heads} kv heads of layer"
                f" {self.index}, got float32[{len(scale)}]; leave scales out to find them from the first keys and"
                " values"
            )
        return scale.to(self.device)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Write new keys and values, ``(batch, kv_heads, new, dim)``; returns what attention reads."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        new = key_states.shape[2]
        table = self.write(in_tokens(key_states, new), in_tokens(value_states, new), new)
        return self.states(table)

    def states(self, table: PageTable) -> tuple[PagedStates, PagedStates]:
        """What attention reads of a table's pages."""
        keys = PagedStates(self.keys, table, self.k_scale, self.dtype)
        return keys, PagedStates(self.values, table, self.v_scale, self.dtype)

    def write(self, keys: Tensor, values: Tensor, new: int) -> PageTable:
        """Write the keys and values of as many new tokens of every sequence, ``(batch * new, kv_heads, dim)``."""
        shared, counts = self.shared, self.index == self.shared.first  # not properties: each step pays
        if counts:
            shared.make_room(new, len(keys) // new)
        table = shared.table
        assert table is not None
        if table is not self.table:
            self.move()
        if counts:  # only now, so that a call that ran out of memory can be retried
            table.advance(new)
        assert table.slots is not None
        opmux.write_kv_cache(keys, values, self.keys, self.values, table.slots, self.k_scale, self.v_scale)
        return table

    def move(self, rows: Tensor | None = None) -> None:
        """Move to the pages of the cache's table, with these rows of the old one (None: all, in order)."""
        old, table = self.table, self.shared.table
        assert old is not None
        assert table is not None
        moved = []
        for stored in (self.keys, self.values):
            # torch indexes no 8-bit floats on a CPU
            tensor = stored.view(torch.uint8) if stored.element_size() == 1 else stored
            source = tensor.view(old.batch, old.capacity, *tensor.shape[2:])
            source = source if rows is None else source.index_select(0, rows)
            target = tensor.new_zeros(table.batch, table.capacity, *tensor.shape[2:])
            kept = min(old.capacity, table.capacity)
            target[:, :kept] = source[:, :kept]
            moved.append(target.view(-1, table.page_size, *tensor.shape[2:]).view(stored.dtype))
        self.keys, self.values = moved
        self.table = table
        _fix_addresses(self.keys, self.values)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Number and offset of the keys that the next queries see."""
        if unreadable():
            return query_length, 0
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        """Tokens in the cache. In compiled and captured graphs a tensor, as in transformers' static caches."""
        table = self.shared.table
        if table is None:
            return 0
        if unreadable():
            return table.seq_lens[0].to(torch.int64)  # type: ignore[return-value]
        return table.length()

    def get_max_length(self) -> int:
        """The most tokens that it may hold; -1 if it grows."""
        return self.shared.max_length or -1

    get_max_cache_shape = get_max_length  # its name until transformers 5.19

    @property
    def batch_size(self) -> int:
        """Sequences; -1 before the first tokens."""
        return -1 if self.table is None else self.table.batch

    @property
    def max_cache_len(self) -> int:
        """As `get_max_length`: what transformers' static layers call it."""
        return self.get_max_length()

    def offload(self) -> None:
        """Pages stay where they are."""

    def prefetch(self) -> None:
        """Pages stay where they are."""

    # All layers have the same length and sequences. A cache asks each layer in turn, and the first acts for all.

    def reset(self) -> None:
        """Forget every token; the memory is kept."""
        if self.counts and self.table is not None:
            self.table.set_length(0)

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens, given as a negative number; or, given a positive one, all past that length."""
        if self.counts and self.table is not None:
            length = self.table.length()
            kept = length + tokens_to_remove if tokens_to_remove <= 0 else min(length, tokens_to_remove)
            self.table.set_length(max(0, kept))

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the sequences, as beam search does."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these sequences, given by number or as a boolean mask."""
        if self.table is not None:
            rows = indices.to(self.table.block_table.device)
            self._take_rows(rows.nonzero().squeeze(1) if rows.dtype == torch.bool else rows)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every sequence."""
        if self.table is not None:
            rows = torch.arange(self.table.batch, device=self.table.block_table.device)
            self._take_rows(rows.repeat_interleave(repeats))

    def _take_rows(self, rows: Tensor) -> None:
        """Have these sequences, in this order."""
        shared = self.shared
        if self.counts and shared.table is not None:
            shared.take(shared.table.another(len(rows), shared.table.pages_each))
        self.move(rows)
