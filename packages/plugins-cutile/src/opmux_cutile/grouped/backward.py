"""What the core calls for gradients of products of groups."""

from functools import lru_cache

from torch import Tensor

from opmux_cutile.grouped.tables import TABLE, tiles_of
from opmux_cutile.launching import TileKernel, launch
from opmux_cutile.parameters import Array, Constant, Parameter, Scalar
from opmux_cutile.products.backward_configs import LinearBackwardConfig
from opmux_cutile.products.configs import LinearConfig
from opmux_cutile.products.targets import apart

MODULE = "opmux_cutile.grouped.backward_kernels"


def grouped_linear_backward(
    grad_out: Tensor, x: Tensor, w: Tensor, group_offsets: Tensor, group_sizes: Tensor | None, *,
    output_mask: tuple[bool, ...], config: LinearBackwardConfig,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The op `grouped_linear_backward`."""
    op = "grouped_linear_backward"
    groups = len(w)
    grad_x, grad_w = x.new_zeros(x.shape if output_mask[0] else 0), w.new_empty(w.shape if output_mask[1] else 0)
    if grad_x.numel() and groups:
        tile = config.of_x
        table = tiles_of(op, len(x), tile.block_m, group_offsets, group_sizes)
        grid = -(-x.shape[1] // tile.block_n), table.shape[1], 1
        launch(_of_rows(tile, _name(x)), grid, apart(grad_out), w.contiguous(), table, grad_x, groups)
    if grad_w.numel():
        _weights(op, grad_w, grad_out, x, group_offsets, group_sizes, config.of_w, added=False)
    return grad_x, grad_w


def grouped_weight_grad(
    out: Tensor, dy: Tensor, x: Tensor, group_offsets: Tensor, group_sizes: Tensor | None, *, config: LinearConfig
) -> None:
    """The op `grouped_weight_grad`."""
    if out.numel() and len(x):
        _weights("grouped_weight_grad", out, dy, x, group_offsets, group_sizes, config, added=True)


def _weights(
    op: str, y: Tensor, grad: Tensor, x: Tensor, group_offsets: Tensor, group_sizes: Tensor | None,
    config: LinearConfig, *, added: bool,
) -> None:  # fmt: skip
    """Launch on every tile of every group's weight."""
    if not len(x):  # sums over no rows
        y.zero_()
        return
    groups, n, k = y.shape
    offsets = group_offsets.contiguous()
    sizes = offsets if group_sizes is None else group_sizes.contiguous()
    kernel = _of_weights(op, config, _name(x), _name(y), group_sizes is not None, added)
    grid = -(-k // config.block_n), -(-n // config.block_m), groups
    launch(kernel, grid, apart(grad), apart(x), offsets, sizes, y)


def _name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


@lru_cache(maxsize=1024)
def _of_rows(config: LinearConfig, dtype: str) -> TileKernel:
    matrix, weights = Array(dtype, (None,) * 2, (None, 1), True), Array(dtype, (None,) * 3, (None, None, 1), True)
    sizes = (config.block_m, config.block_n, config.block_k)
    parameters: tuple[Parameter, ...] = (matrix, weights, TABLE, matrix, Scalar("int32"), *map(Constant, sizes))
    return TileKernel("grouped_linear_backward", MODULE, "of_rows", parameters, config.hints)


@lru_cache(maxsize=1024)
def _of_weights(op: str, config: LinearConfig, dtype: str, out: str, sized: bool, added: bool) -> TileKernel:
    matrix, weights = Array(dtype, (None,) * 2, (None, 1), True), Array(out, (None,) * 3, (None, None, 1), True)
    numbers = Array("int32", (None,), (1,), False)
    sizes = (config.block_m, config.block_n, config.block_k, sized, added)
    parameters: tuple[Parameter, ...] = (matrix, matrix, numbers, numbers, weights, *map(Constant, sizes))
    return TileKernel(op, MODULE, "of_weights", parameters, config.hints)
