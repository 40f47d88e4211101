"""What the core calls to write a paged cache: k and v in one launch."""

from torch import Tensor

from opmux.dtypes import name_of
from opmux_triton.flavours import scale_stride
from opmux_triton.kv_cache import kernels
from opmux_triton.kv_cache.configs import WriteConfig
from opmux_triton.launch import as_bytes, launch
from opmux_triton.repeats import kept, repeated


def write_kv_cache(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor,
    k_scale: Tensor | None = None, v_scale: Tensor | None = None, *, layout: str, config: WriteConfig,
) -> None:  # fmt: skip
    """The op `write_kv_cache`."""
    tensors = (k, v, k_cache, v_cache, slot_mapping)
    key = ("write_kv_cache", id(config), k.shape)
    if not repeated(key, tensors):
        with kept(key, tensors, (), config):
            _write(*tensors, None, None, config)


def write_codes(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor,
    k_scale: Tensor | None, v_scale: Tensor | None, *, layout: str, config: WriteConfig,
) -> None:  # fmt: skip
    """The op `write_kv_cache`, to caches of 8-bit codes."""
    given = [k, v, k_cache, v_cache, slot_mapping, *(scale for scale in (k_scale, v_scale) if scale is not None)]
    key = ("write_codes", id(config), k.shape, k_scale is None, v_scale is None)
    if not repeated(key, given):
        with kept(key, given, (), config):
            _write(k, v, k_cache, v_cache, slot_mapping, k_scale, v_scale, config)


def _write(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, k_scale: Tensor | None,
    v_scale: Tensor | None, config: WriteConfig,
) -> None:  # fmt: skip
    tokens, heads, head_dim = k.shape
    value_dim = v.shape[2]
    pages, page_size = k_cache.shape[:2]
    block = config.block
    blocks = -(-heads * head_dim // block) + -(-heads * value_dim // block)
    if not tokens or not blocks or not pages:
        return
    coded = k_cache.element_size() == 1
    caches = (as_bytes(k_cache), as_bytes(v_cache)) if coded else (k_cache, v_cache)
    arguments = (
        k, v, *caches, slots, tokens, pages * page_size, slots.stride(0),
        *k.stride()[:2], *v.stride()[:2], *k_cache.stride()[:3], *v_cache.stride()[:3],
        k_scale, v_scale, scale_stride(k_scale), scale_stride(v_scale),
    )  # fmt: skip
    meta = {
        "HEADS": heads, "HEAD_DIM": head_dim, "VALUE_DIM": value_dim, "PAGE_SIZE": page_size,
        "BLOCK": block, "TOKENS": config.tokens, "STREAM": config.stream,
        "FORMAT": name_of(k_cache.dtype) if coded else "", "num_warps": config.num_warps,
    }  # fmt: skip
    launch(kernels.write_kv_cache, (-(-tokens // config.tokens) * blocks,), arguments, meta)
