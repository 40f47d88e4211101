"""A paged KV cache behind transformers' own cache interface.

Keys and values are written into pages by `opmux.write_kv_cache` and read by `opmux.paged_attention`, without
concatenation or a copy per token. A patched model's ``generate`` makes one; pass ``past_key_values=PagedCache(model)``
to use your own.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from opmux.dtypes import name_of
from opmux.errors import InvalidArgument
from opmux.nn.quantizable import CODES
from opmux_transformers.attention import NAME
from opmux_transformers.paged_layer import PagedLayer, Shared
from opmux_transformers.paged_states import PageTable, unreadable

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


def _check_codes(dtype: Any, scales: Any, config: Any) -> None:
    """Reject a dtype that has not 8 bits, and scales that are not those of a model's layers."""
    if dtype is not None and (not isinstance(dtype, (str, torch.dtype)) or dtype not in ("fp8", "int8", *CODES)):
        got = name_of(dtype) if isinstance(dtype, torch.dtype) else repr(dtype)
        raise InvalidArgument(
            f"PagedCache: `dtype` expected 'fp8', 'int8', one of {', '.join(map(name_of, CODES))}, or None, got {got};"
            " None stores keys and values in the dtype in which the model computes them"
        )
    if scales is None:
        return
    if dtype is None:
        raise InvalidArgument(
            "PagedCache: `scales` expected None for a cache that is not 8-bit, got scales; pass dtype='fp8' too"
        )
    layers = config.num_hidden_layers
    if (flaw := _flaw_of_scales(scales, layers)) is not None:
        raise InvalidArgument(
            f"PagedCache: `scales` expected float32[kv_heads] or float32[1] for the keys and for the values of each of"
            f" {layers} layers, got {flaw}; leave scales out to find them from the first keys and values"
        )


def _flaw_of_scales(scales: Any, layers: int) -> str | None:
    """What is wrong with the scales of so many layers; None if nothing is. Their heads are checked when keys come."""
    if not isinstance(scales, Sequence):
        return _what(scales)
    if len(scales) != layers:
        return f"{len(scales)} pairs"
    for index, pair in enumerate(scales):
        if not isinstance(pair, Sequence) or len(pair) != 2:
            return f"{_what(pair)} for layer {index}"
        for scale in pair:
            if not isinstance(scale, Tensor) or scale.dtype != torch.float32 or scale.ndim != 1:
                return f"{_what(scale)} for layer {index}"
            if not bool((scale.isfinite() & (scale > 0)).all()):
                return f"scales for layer {index} that are not all positive and finite"
    return None


def _what(found: Any) -> str:
    """A value in the words of messages: a tensor by dtype and shape, a sequence by its length."""
    if isinstance(found, Tensor):
        return f"{name_of(found.dtype)}{list(found.shape)}"
    if isinstance(found, Sequence) and not isinstance(found, str):
        return f"a {type(found).__name__} of {len(found)}"
    return repr(found) if isinstance(found, (int, float, str, type(None))) else f"a {type(found).__name__}"


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
        dtype: ``"fp8"`` (the device's own e4m3: see `opmux.fp8_dtype`), ``"int8"``, or an 8-bit dtype of torch's
            stores keys and values as codes, in half the memory of 16 bits. None stores them as the model computes them.
        scales: For each layer what one unit of the codes of its keys and of its values is worth, float32
            ``(kv_heads,)``, or ``(1,)`` for all heads. None finds them head by head from the first keys and values that
            are written, with room for larger ones: twice as large in fp8, 1.5 times in int8; 8 and 3 times if the first
            call has one token. What exceeds the range saturates. All tokens have the same scales; `reset` keeps them.

    Raises:
        InvalidArgument: if the model is not patched or keeps other states, a number is out of range, the dtype has not
            8 bits, or the scales are not those of its layers.
    """

    def __init__(
        self,
        model: nn.Module,
        max_length: int | None = None,
        page_size: int = PAGE_SIZE,
        *,
        dtype: torch.dtype | Literal["fp8", "int8"] | None = None,
        scales: Sequence[tuple[Tensor, Tensor]] | None = None,
    ) -> None:
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
        _check_codes(dtype, scales, config)
        self.shared = shared = Shared(max_length, page_size, dtype, scales)
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

    def layer_of(self, index: int) -> PagedLayer:
        """The pages of one layer of a model.

        Raises:
            InvalidArgument: if the cache was made for a model with fewer layers.
        """
        layers: list[PagedLayer] = self.layers
        if index >= len(layers):
            raise InvalidArgument(
                f"PagedCache: `past_key_values` expected a cache with a layer {index}, got one of {len(layers)} layers,"
                " counted from 0; make the cache from the model that it is passed to"
            )
        return layers[index]

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        """Write a layer's new keys and values; returns what attention reads."""
        return self.layer_of(layer_idx).update(key_states, value_states, *args, **kwargs)

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
                keys, values = layer.states(layer.table)
                yield keys.dense(), values.dense(), None
            else:
                yield None, None, None
