"""What the core calls to write a paged cache."""

from functools import lru_cache

from torch import Tensor

from opmux_cutile.attention.targets import packed_where_single
from opmux_cutile.launching import TileKernel, aligned, launch
from opmux_cutile.parameters import Array, Constant, Parameter
from opmux_cutile.quantization.targets import LARGEST
from opmux_cutile.replaying import kept
from opmux_cutile.rope.configs import RopeConfig
from opmux_cutile.tiles import power_of_two

MODULE = "opmux_cutile.cache.kernels"


@kept
def write_kv_cache(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor, k_scale: Tensor | None,
    v_scale: Tensor | None, *, layout: str, config: RopeConfig,
) -> None:  # fmt: skip
    """The op `write_kv_cache`."""
    if not len(k) * k_cache[..., 0].numel():
        return
    given = [packed_where_single(x) for x in (k, v, k_cache, v_cache)]
    dtypes = tuple(str(x.dtype).removeprefix("torch.") for x in given)
    dims = k.shape[2], v.shape[2]
    fits = aligned(*given) and not any(dim % 16 for dim in dims)
    heads = config.heads(k.shape[1], power_of_two(max(dims)))
    kernel = _kernel(
        config, heads, dtypes, dims, fits, k_cache.shape[1], LARGEST.get(k_cache.dtype, 0.0),
        LARGEST.get(v_cache.dtype, 0.0), k_scale is not None, v_scale is not None,
    )  # fmt: skip
    slots = slot_mapping.contiguous()
    scales = [slots[:1] if scale is None else scale.expand(k.shape[1]) for scale in (k_scale, v_scale)]
    launch(kernel, (-(-len(k) // config.tokens), 1, 1), *given, slots, *scales)


@lru_cache(maxsize=1024)
def _kernel(
    config: RopeConfig, heads: int, dtypes: tuple[str, ...], dims: tuple[int, int], fits: bool, page_size: int,
    largest: float, v_largest: float, scaled: bool, v_scaled: bool,
) -> TileKernel:  # fmt: skip
    """The kernel for heads and pages of a size; whole vectors are moved where they are aligned."""
    new = [Array(dtype, (None, None, dim), (None, None, 1), fits) for dtype, dim in zip(dtypes[:2], dims, strict=True)]
    caches = [
        Array(dtype, (None, page_size, None, dim), (None, None, None, 1), fits)
        for dtype, dim in zip(dtypes[2:], dims, strict=True)
    ]
    slots, scale = Array("int64", (None,), (1,), False), Array("float32", (None,), (None,), False)
    integers = (dtypes[2] == "int8", dtypes[3] == "int8")
    sizes = (config.tokens, heads, *map(power_of_two, dims), largest, v_largest, *integers, scaled, v_scaled)
    parameters: tuple[Parameter, ...] = (*new, *caches, slots, scale, scale, *map(Constant, sizes))
    return TileKernel("write_kv_cache", MODULE, "write", parameters, config.hints)
