"""What the core calls to write a paged cache: k and v in one launch."""

from torch import Tensor

from opmux_triton.kv_cache import kernels
from opmux_triton.kv_cache.configs import WriteConfig
from opmux_triton.launch import launch
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
            _write(*tensors, config)


def _write(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, config: WriteConfig) -> None:
    tokens, heads, head_dim = k.shape
    value_dim = v.shape[2]
    pages, page_size = k_cache.shape[:2]
    block = config.block
    blocks = -(-heads * head_dim // block) + -(-heads * value_dim // block)
    if not tokens or not blocks or not pages:
        return
    arguments = (
        k, v, k_cache, v_cache, slots, tokens, pages * page_size, slots.stride(0),
        *k.stride()[:2], *v.stride()[:2], *k_cache.stride()[:3], *v_cache.stride()[:3],
    )  # fmt: skip
    meta = {
        "HEADS": heads, "HEAD_DIM": head_dim, "VALUE_DIM": value_dim, "PAGE_SIZE": page_size,
        "BLOCK": block, "TOKENS": config.tokens, "STREAM": config.stream, "num_warps": config.num_warps,
    }  # fmt: skip
    launch(kernels.write_kv_cache, (-(-tokens // config.tokens) * blocks,), arguments, meta)
