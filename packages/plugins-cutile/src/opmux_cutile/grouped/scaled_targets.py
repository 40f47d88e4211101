"""What the core calls for products of groups of 8-bit codes."""

from functools import lru_cache

import torch
from torch import Tensor

from opmux_cutile.grouped.tables import TABLE, tiles_of
from opmux_cutile.launching import TileKernel, launch
from opmux_cutile.parameters import Array, Constant, Parameter, Scalar
from opmux_cutile.products.configs import LinearConfig
from opmux_cutile.products.targets import apart

MODULE = "opmux_cutile.grouped.scaled_kernels"


def scaled_grouped_linear(
    x: Tensor, w: Tensor, group_offsets: Tensor, x_scale: Tensor, w_scale: Tensor, group_sizes: Tensor | None, *,
    out_dtype: torch.dtype, config: LinearConfig,
) -> Tensor:  # fmt: skip
    """The op `scaled_grouped_linear`."""
    groups, n, _ = w.shape
    y = x.new_empty((len(x), n), dtype=out_dtype)
    if not y.numel() or not groups:
        return y
    table = tiles_of("scaled_grouped_linear", len(x), config.block_m, group_offsets, group_sizes)
    of_x, of_w, w_rows = _scales(x_scale[None], w_scale, len(x), n)
    kernel = _ragged(config, _name(x), _name(y), w_rows)
    grid = -(-n // config.block_n), table.shape[1], 1
    launch(kernel, grid, apart(x), w.contiguous(), table, of_x, of_w, y, groups)
    return y


def scaled_masked_grouped_linear(
    x: Tensor, w: Tensor, masked_m: Tensor, x_scale: Tensor, w_scale: Tensor, *, expected_m: int,
    out_dtype: torch.dtype, config: LinearConfig,
) -> Tensor:  # fmt: skip
    """The op `scaled_masked_grouped_linear`."""
    groups, most, k = x.shape
    n = w.shape[1]
    y = x.new_empty((groups, most, n), dtype=out_dtype)
    if y.numel():
        of_x, of_w, w_rows = _scales(x_scale, w_scale, most, n)
        kernel = _masked(config, _name(x), _name(y), w_rows)
        grid = -(-n // config.block_n), -(-most // config.block_m), groups
        rows = x.contiguous().view(-1, k)
        launch(kernel, grid, rows, w.contiguous(), masked_m.contiguous(), of_x, of_w, y.view(-1, n), most)
    return y


def _scales(of_x: Tensor, of_w: Tensor, rows: int, n: int) -> tuple[Tensor, Tensor, int]:
    """The scales as the kernel takes them, and how many rows of w share one of a block; 0 for those of rows.

    Their shapes tell whether they are of rows, of all, or of 128 columns.
    """
    if of_x.shape[-1] == 1 and of_w.shape[1] in (1, n):
        return of_x.expand(-1, rows, 1), of_w.expand(-1, n, 1), 0
    return of_x, of_w, 1 if of_w.shape[1] == n else 128


def _name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def _tensors(codes: str, out: str) -> tuple[Array, Array, Array, Array]:
    """Rows of x, weights, scales, and rows of the result."""
    scale = Array("float32", (None,) * 3, (None,) * 3, False)
    rows, weights = Array(codes, (None,) * 2, (None, 1), True), Array(codes, (None,) * 3, (None, None, 1), True)
    return rows, weights, scale, Array(out, (None,) * 2, (None, 1), True)


@lru_cache(maxsize=1024)
def _ragged(config: LinearConfig, codes: str, out: str, w_rows: int) -> TileKernel:
    rows, weights, scale, result = _tensors(codes, out)
    sizes = (config.block_m, config.block_n, config.block_k, w_rows)
    parameters: tuple[Parameter, ...] = (
        rows, weights, TABLE, scale, scale, result, Scalar("int32"), *map(Constant, sizes),
    )  # fmt: skip
    return TileKernel("scaled_grouped_linear", MODULE, "scaled_ragged", parameters, config.hints)


@lru_cache(maxsize=1024)
def _masked(config: LinearConfig, codes: str, out: str, w_rows: int) -> TileKernel:
    rows, weights, scale, result = _tensors(codes, out)
    counts = Array("int32", (None,), (1,), False)
    sizes = (config.block_m, config.block_n, config.block_k, w_rows)
    parameters: tuple[Parameter, ...] = (
        rows, weights, counts, scale, scale, result, Scalar("int32"), *map(Constant, sizes),
    )  # fmt: skip
    return TileKernel("scaled_masked_grouped_linear", MODULE, "scaled_masked", parameters, config.hints)
