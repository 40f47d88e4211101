"""A paged KV cache behind transformers' own cache interface.

Keys and values are written into pages by `opmux.write_kv_cache` and read by `opmux.paged_attention`, without
concatenation or a copy per token. A patched model's ``generate`` makes one; pass ``past_key_values=PagedCache(model)``
to use your own.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from opmux.errors import InvalidArgument
from opmux_transformers.attention import NAME
from opmux_transformers.paged_layer import PagedLayer, Shared
from opmux_transformers.paged_states import PagedStates, PageTable, unreadable

PAGE_SIZE = 16
_KEYS_AND_VALUES = (DynamicLayer, DynamicSlidingWindowLayer)
"""transformers' cache layers that pages can replace; attention applies a layer's window."""


def not_keys_and_values(config: Any) -> str | None:
    """Why pages cannot replace all of a model's cache layers (other states, shared layers); None if they can.

    Args:
        config: The configuration of the text model.
    """
    try:
        layers = DynamicCache(config=config).layers
    except Exception as error:  # a configuration may raise anything
        return f"transformers' own cache cannot be made from its configuration: it raises {type(error).__name__}"
    if "chunked_attention" in (getattr(config, "layer_types", None) or ()):
        return "some of its layers attend within chunks"
    others = sorted({type(layer).__name__ for layer in layers} - {c.__name__ for c in _KEYS_AND_VALUES})
    if others:
        return f"some of its layers keep other states than keys and values: {', '.join(others)}"
    if layers and len(layers) != config.num_hidden_layers:
        return "some of its layers share the keys and values of others"
    return None


def _is_size(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 1


class PagedCache(Cache):  # type: ignore[misc]
    """A cache of pages for all layers of a patched model.

    The first layer counts new tokens. After a forward that failed in a later layer they are counted but not written:
    `crop` them before the next forward.

    Args:
        model: A model whose attention opmux has replaced.
        max_length: The most tokens that a sequence may have; memory is allocated immediately and addresses never
            change, as compiled decoding and CUDA graphs require. None starts small and grows by doubling.
        page_size: Tokens in a page: 1, or a multiple of 16.

    Raises:
        InvalidArgument: if the model is not patched or keeps other states, or a number is out of range.
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
                " use transformers' own cache"
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
        """Where all layers keep their tokens; None before the first tokens."""
        return self.shared.table

    @property
    def max_length(self) -> int | None:
        """The most tokens that a sequence may have; None if the cache grows."""
        return self.shared.max_length

    @property
    def page_size(self) -> int:
        """Tokens in a page."""
        return self.shared.page_size

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Position of the next query; in a graph 0, which `PagedLayer.get_mask_sizes` is counted from too."""
        return 0 if unreadable() else self.layers[layer_idx].get_seq_length()

    @property
    def batch_size(self) -> int:
        """Sequences; -1 before the first tokens."""
        return -1 if self.table is None else self.table.batch

    # The cache interface of older versions of transformers, and of libraries made for them.

    max_batch_size = batch_size

    @property
    def max_cache_len(self) -> int:
        """The most tokens that a sequence may have; -1 if the cache grows."""
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
