"""A paged KV cache behind transformers' own cache interface.

Keys and values are written into pages by `opmux.write_kv_cache` and read by `opmux.paged_attention`: nothing is
concatenated, nothing is copied per token. A patched model's ``generate`` makes one; pass
``past_key_values=PagedCache(model)`` to use your own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

import opmux
from opmux.errors import InvalidArgument
from opmux_transformers.attention import NAME
from opmux_transformers.paged_states import PagedStates, PageTable, in_tokens, unreadable

PAGE_SIZE = 16
_KEYS_AND_VALUES = (DynamicLayer, DynamicSlidingWindowLayer)
"""transformers' layers whose keys and values pages can hold; the window of a layer is applied by attention."""
_FIRST_ROOM = 256
"""Tokens beyond the prompt that a cache without a maximum starts with; it doubles when it is full."""


def not_keys_and_values(config: Any) -> str | None:
    """Why a model's layers cannot all be pages: some keep other states, or none of their own; None where they can.

    Args:
        config: The configuration of the model's text.
    """
    try:
        layers = DynamicCache(config=config).layers
    except Exception as error:  # a configuration may raise anything
        return f"transformers' own cache cannot be made of its configuration: {type(error).__name__}: {error}"
    others = sorted({type(layer).__name__ for layer in layers} - {c.__name__ for c in _KEYS_AND_VALUES})
    if others:
        return f"some of its layers keep other states than keys and values: {', '.join(others)}"
    if layers and len(layers) != config.num_hidden_layers:
        return "some of its layers share the keys and values of others"
    return None


def _is_size(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 1


@dataclass
class Shared:
    """What the layers of a cache share. It refers to no layer, so that a dropped cache is freed at once.

    Attributes:
        max_length: Tokens that a sequence may have at most; None grows.
        page_size: Tokens of a page.
        table: Of all layers, made for the first of them; another one once it has grown.
        first: The layer that counts new tokens in.
    """

    max_length: int | None
    page_size: int
    table: PageTable | None = None
    first: int = 0

    def table_for(self, states: Tensor) -> PageTable:
        """The table, made for keys like these where there is none yet."""
        if self.table is None:
            length = self.max_length or states.shape[2] + _FIRST_ROOM
            pages_each = -(-length // self.page_size)
            fixed = self.max_length is not None
            self.take(PageTable.of(states.shape[0], self.page_size, pages_each, states.device, fixed))
        assert self.table is not None
        return self.table

    def take(self, table: PageTable) -> None:
        """Use another table; every layer moves to its pages when it is next written, or when asked."""
        self.table = table
        _fix_addresses(table.block_table, table.seq_lens)

    def make_room(self, new: int) -> None:
        """Take a table of twice the pages where new tokens do not fit and the cache may grow."""
        table = self.table
        assert table is not None
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

    @property
    def counts(self) -> bool:
        """Whether this is the layer that acts for all of them."""
        return self.index == self.shared.first

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Take memory for pages like these keys and values."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.table = table = self.shared.table_for(key_states)
        pages = table.batch * table.pages_each
        shapes = [(pages, table.page_size, states.shape[1], states.shape[3]) for states in (key_states, value_states)]
        self.keys, self.values = (torch.zeros(shape, dtype=self.dtype, device=self.device) for shape in shapes)
        _fix_addresses(self.keys, self.values)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Write new keys and values, ``(batch, kv_heads, new, dim)``; returns what attention reads."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        new = key_states.shape[2]
        table = self.write(in_tokens(key_states, new), in_tokens(value_states, new), new)
        return PagedStates(self.keys, table), PagedStates(self.values, table)

    def write(self, keys: Tensor, values: Tensor, new: int) -> PageTable:
        """Write the keys and values of as many new tokens of every sequence, ``(batch * new, kv_heads, dim)``."""
        shared, counts = self.shared, self.counts
        if counts:
            shared.make_room(new)
        table = shared.table
        assert table is not None
        if table is not self.table:
            self.move()
        if counts:  # only now, so that a call that ran out of memory can be repeated
            table.advance(new)
        assert table.slots is not None
        opmux.write_kv_cache(keys, values, self.keys, self.values, table.slots)
        return table

    def move(self, rows: Tensor | None = None) -> None:
        """Move to the pages of the cache's table, with these rows of the old one (None: all, in order)."""
        old, table = self.table, self.shared.table
        assert old is not None
        assert table is not None
        moved = []
        for tensor in (self.keys, self.values):
            source = tensor.view(old.batch, old.capacity, *tensor.shape[2:])
            source = source if rows is None else source.index_select(0, rows)
            target = tensor.new_zeros(table.batch, table.capacity, *tensor.shape[2:])
            kept = min(old.capacity, table.capacity)
            target[:, :kept] = source[:, :kept]
            moved.append(target.view(-1, table.page_size, *tensor.shape[2:]))
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
        """Tokens that it may hold; -1 where it grows."""
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

    # All layers have one length and the same sequences. A cache asks each layer in turn, and the first acts for all.

    def reset(self) -> None:
        """Forget every token; the memory stays."""
        if self.counts and self.table is not None:
            self.table.set_length(0)

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens, given as a negative number; or, given a positive one, all past that length."""
        if self.counts and self.table is not None:
            length = self.table.length()
            kept = length + tokens_to_remove if tokens_to_remove <= 0 else min(length, tokens_to_remove)
            self.table.set_length(max(0, kept))

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Take these sequences' places, as beam search does."""
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


class PagedCache(Cache):  # type: ignore[misc]
    """A cache of pages for all layers of a patched model.

    The first layer counts new tokens. After a forward that failed in a later layer they are counted but not written:
    `crop` them before the next forward.

    Args:
        model: A model whose attention opmux has replaced.
        max_length: Tokens that a sequence may have at most; the memory is taken at once, and addresses never change, as
            compiled decoding and CUDA graphs need it. None starts small and grows by doubling.
        page_size: Tokens of a page: 1, or a multiple of 16.

    Raises:
        InvalidArgument: where the model is not patched, keeps other states, or a number is impossible.
    """

    def __init__(self, model: nn.Module, max_length: int | None = None, page_size: int = PAGE_SIZE) -> None:
        config: Any = getattr(model, "config", None)
        config = config.get_text_config(decoder=True) if config is not None else None
        if getattr(config, "_attn_implementation", None) != NAME:
            raise InvalidArgument(
                f"PagedCache: `model` expected a model whose attention opmux has replaced, got {type(model).__name__}"
                " without; call opmux_transformers.patch(model) first, and see its report"
            )
        if (reason := not_keys_and_values(config)) is not None:
            raise InvalidArgument(
                f"PagedCache: `model` expected layers that keep keys and values, got {type(model).__name__}: {reason};"
                " leave the cache to transformers"
            )
        if not _is_size(page_size) or (page_size != 1 and page_size % 16):
            raise InvalidArgument(
                f"PagedCache: `page_size` expected 1 or a multiple of 16, got {page_size!r}; take {PAGE_SIZE}"
            )
        if max_length is not None and not _is_size(max_length):
            raise InvalidArgument(
                f"PagedCache: `max_length` expected a whole number, 1 or more, got {max_length!r}; None grows as needed"
            )
        self.shared = shared = Shared(max_length, page_size)
        super().__init__(layers=[PagedLayer(shared, index) for index in range(config.num_hidden_layers)])

    @property
    def table(self) -> PageTable | None:
        """Where all layers keep their tokens; None before the first."""
        return self.shared.table

    @property
    def max_length(self) -> int | None:
        """Tokens that a sequence may have at most; None where it grows."""
        return self.shared.max_length

    @property
    def page_size(self) -> int:
        """Tokens of a page."""
        return self.shared.page_size

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Position of the next query; in a graph 0, which `PagedLayer.get_mask_sizes` is counted from too."""
        return 0 if unreadable() else self.layers[layer_idx].get_seq_length()

    @property
    def batch_size(self) -> int:
        """Sequences; -1 before the first tokens."""
        return -1 if self.table is None else self.table.batch

    # What older versions of transformers, and libraries made for them, ask a cache for.

    max_batch_size = batch_size

    @property
    def max_cache_len(self) -> int:
        """Tokens that a sequence may have; -1 where it grows."""
        return self.max_length or -1

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        """As `max_cache_len`."""
        return self.max_cache_len

    def offload(self, layer_idx: int, only_non_sliding: bool = True) -> None:
        """Pages stay where they are."""

    def prefetch(self, layer_idx: int, only_non_sliding: bool = True) -> None:
        """Pages stay where they are."""

    def __iter__(self) -> Iterator[tuple[Tensor | None, Tensor | None, None]]:
        """The keys and values of each layer, ``(batch, kv_heads, tokens, dim)``, as `DynamicCache` has them.

        The third item is the window of a sliding layer, which pages do not have.
        """
        for layer in self.layers:
            if layer.is_initialized:
                yield PagedStates(layer.keys, layer.table).dense(), PagedStates(layer.values, layer.table).dense(), None
            else:
                yield None, None, None
