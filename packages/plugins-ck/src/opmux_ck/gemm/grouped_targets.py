"""What the core calls for products of groups of rows."""

import torch
from torch import Tensor

from opmux_ck.dtypes import SHORT
from opmux_ck.gemm.configs import GroupedConfig, loops
from opmux_ck.gemm.instances import Product
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


def grouped_product_of(dtype: torch.dtype, k: int, config: GroupedConfig) -> Product:
    """The instance that a call launches."""
    return Product(SHORT[dtype], SHORT[dtype], config, loops(config, k))


def _multiply(
    x: Tensor, w: Tensor, out: Tensor, offsets: Tensor, sizes: Tensor | None, tiles: int, capacity: int,
    config: GroupedConfig,
) -> None:  # fmt: skip
    """Launch a product on the rows of all groups; ``tiles`` are the most that they can have."""
    groups, n, k = w.shape
    if not groups or not out.numel():
        return
    weights = _near(w if w.is_contiguous() or w.stride(0) == n * w.stride(1) else w.contiguous())
    instance = grouped_product_of(x.dtype, k, config)
    strides = x.stride(0) if len(x) > 1 else k, weights.stride(1) if n > 1 else weights.stride(0)
    launch(
        instance,
        (tiles, -(-n // config.n), 1),
        x,
        weights,
        out,
        offsets,
        offsets if sizes is None else sizes,
        groups,
        capacity,
        n,
        k,
        *strides,
        int(sizes is not None),
        0,
    )


def _near(matrix: Tensor) -> Tensor:
    """A tensor whose rows lie near enough for a tile; copied where they do not."""
    return matrix.contiguous() if matrix.stride(-2) > MOST_STRIDE else matrix
