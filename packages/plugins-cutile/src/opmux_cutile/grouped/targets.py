"""What the core calls for products of groups."""

from functools import lru_cache

from torch import Tensor

from opmux_cutile.grouped.tables import TABLE, tiles_of
from opmux_cutile.launching import TileKernel, launch
from opmux_cutile.parameters import Array, Constant, Parameter, Scalar
from opmux_cutile.products.configs import LinearConfig
from opmux_cutile.products.targets import apart

MODULE = "opmux_cutile.grouped.kernels"


def grouped_linear(
    x: Tensor, w: Tensor, group_offsets: Tensor, group_sizes: Tensor | None, *, config: LinearConfig
) -> Tensor:
    """The op `grouped_linear`."""
    groups, n, _ = w.shape
    y = x.new_empty((len(x), n))
    if not y.numel() or not groups:
        return y
    table = tiles_of("grouped_linear", len(x), config.block_m, group_offsets, group_sizes)
    kernel = _ragged(config, str(x.dtype).removeprefix("torch."))
    launch(kernel, (-(-n // config.block_n), table.shape[1], 1), apart(x), w.contiguous(), table, y, groups)
    return y


def masked_grouped_linear(
    x: Tensor, w: Tensor, masked_m: Tensor, *, expected_m: int, config: LinearConfig
) -> Tensor:  # fmt: skip
    """The op `masked_grouped_linear`."""
    groups, most, k = x.shape
    n = w.shape[1]
    y = x.new_empty((groups, most, n))
    if y.numel():
        kernel = _masked(config, str(x.dtype).removeprefix("torch."))
        grid = -(-n // config.block_n), -(-most // config.block_m), groups
        rows = x.contiguous().view(-1, k)
        launch(kernel, grid, rows, w.contiguous(), masked_m.contiguous(), y.view(-1, n), most)
    return y


def _matrices(dtype: str) -> tuple[Array, Array]:
    return Array(dtype, (None,) * 2, (None, 1), True), Array(dtype, (None,) * 3, (None, None, 1), True)


@lru_cache(maxsize=1024)
def _ragged(config: LinearConfig, dtype: str) -> TileKernel:
    matrix, weights = _matrices(dtype)
    sizes = (config.block_m, config.block_n, config.block_k)
    parameters: tuple[Parameter, ...] = (matrix, weights, TABLE, matrix, Scalar("int32"), *map(Constant, sizes))
    return TileKernel("grouped_linear", MODULE, "ragged", parameters, config.hints)


@lru_cache(maxsize=1024)
def _masked(config: LinearConfig, dtype: str) -> TileKernel:
    matrix, weights = _matrices(dtype)
    counts = Array("int32", (None,), (1,), False)
    sizes = (config.block_m, config.block_n, config.block_k)
    parameters: tuple[Parameter, ...] = (
        matrix, weights, counts, matrix, Scalar("int32"), *map(Constant, sizes),
    )  # fmt: skip
    return TileKernel("masked_grouped_linear", MODULE, "masked", parameters, config.hints)
