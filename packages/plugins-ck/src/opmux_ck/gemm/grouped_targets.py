"""What the core calls for products of groups of rows."""

import torch
from torch import Tensor

from opmux_ck.dtypes import SHORT
from opmux_ck.gemm.configs import BlockCodesConfig, CodesConfig, GemmConfig, GroupedConfig, loops
from opmux_ck.gemm.instances import Product
from opmux_ck.gemm.targets import near_scales
from opmux_ck.launching import launch

MOST_STRIDE = (1 << 31) // 512 - 1
"""Elements from a row to the next: a tile's 256 rows are counted in 32 bits."""


def grouped_linear(
    x: Tensor, w: Tensor, group_offsets: Tensor, group_sizes: Tensor | None, *, config: GroupedConfig
) -> Tensor:
    """The op `grouped_linear`."""
    out = x.new_empty((len(x), w.shape[1]))
    tiles = -(-len(x) // config.m) + len(w)
    _multiply(_near(x), w, out, group_offsets, group_sizes, tiles, 0, config)
    return out


def masked_grouped_linear(x: Tensor, w: Tensor, masked_m: Tensor, *, expected_m: int, config: GroupedConfig) -> Tensor:
    """The op `masked_grouped_linear`: groups that start every so many rows."""
    groups, capacity, k = x.shape
    out = x.new_empty((groups, capacity, w.shape[1]))
    tiles = -(-capacity // config.m) * groups
    _multiply(_near(x.reshape(-1, k)), w, out, masked_m, masked_m, tiles, capacity, config)
    return out


def scaled_grouped_linear(
    x: Tensor, w: Tensor, group_offsets: Tensor, x_scale: Tensor, w_scale: Tensor, group_sizes: Tensor | None, *,
    out_dtype: torch.dtype, config: CodesConfig,
) -> Tensor:  # fmt: skip
    """The op `scaled_grouped_linear` for scales of tokens and channels, or of blocks of 1x128 with 128x128."""
    out = x.new_empty((len(x), w.shape[1]), dtype=out_dtype)
    tiles = -(-len(x) // config.m) + len(w)
    _multiply(_near(x), w, out, group_offsets, group_sizes, tiles, 0, config, (x_scale, w_scale))
    return out


def scaled_masked_grouped_linear(
    x: Tensor, w: Tensor, masked_m: Tensor, x_scale: Tensor, w_scale: Tensor, *, expected_m: int,
    out_dtype: torch.dtype, config: CodesConfig,
) -> Tensor:  # fmt: skip
    """The op `scaled_masked_grouped_linear`, for the same scales."""
    groups, capacity, k = x.shape
    out = x.new_empty((groups, capacity, w.shape[1]), dtype=out_dtype)
    tiles, scales = -(-capacity // config.m) * groups, x_scale.reshape(-1, x_scale.shape[-1])
    _multiply(_near(x.reshape(-1, k)), w, out, masked_m, masked_m, tiles, capacity, config, (scales, w_scale))
    return out


def grouped_product_of(dtype: torch.dtype, k: int, config: GemmConfig, out_dtype: torch.dtype | None = None) -> Product:
    """The instance that a call launches."""
    steps = 0 if isinstance(config, BlockCodesConfig) else loops(config, k)
    return Product(SHORT[dtype], SHORT[out_dtype or dtype], config, steps)


def _multiply(
    x: Tensor, w: Tensor, out: Tensor, offsets: Tensor, sizes: Tensor | None, tiles: int, capacity: int,
    config: GemmConfig, scales: tuple[Tensor, ...] = (),
) -> None:  # fmt: skip
    """Launch a product on the rows of all groups; ``tiles`` are the most that they can have."""
    groups, n, k = w.shape
    if not groups or not out.numel():
        return
    weights = _near(w if w.is_contiguous() or w.stride(0) == n * w.stride(1) else w.contiguous())
    instance = grouped_product_of(x.dtype, k, config, out.dtype)
    strides = x.stride(0) if len(x) > 1 else k, weights.stride(1) if n > 1 else weights.stride(0)
    more: tuple[int, ...] = (0,)
    if isinstance(config, BlockCodesConfig):
        scales = tuple(near_scales(one) for one in scales)
        more = (*(stride for one in scales for stride in one.stride()), *[0] * 4)
    else:
        scales = tuple(one.contiguous() for one in scales)
    launch(
        instance,
        (tiles, -(-n // config.n), 1),
        x,
        weights,
        *scales,
        out,
        offsets,
        offsets if sizes is None else sizes,
        groups,
        capacity,
        n,
        k,
        *strides,
        int(sizes is not None),
        *more,
    )


def _near(matrix: Tensor) -> Tensor:
    """A tensor whose rows lie near enough for a tile; copied where they do not."""
    return matrix.contiguous() if matrix.stride(-2) > MOST_STRIDE else matrix
