"""Launches of the kernels that sum over rows: gradients of grouped weights.

As in `launching`, what a launch is given is prepared once and kept: a call like one before is a native check that the
tensors match, and a native launch.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from opmux_deepgemm.configs import Config
from opmux_deepgemm.generation.source import Product
from opmux_deepgemm.launching import (
    Arguments,
    launch_again,
    launch_first,
    most_units,
    repeated_into,
)
from opmux_deepgemm.operand_maps import lies_across, map_of, matrix
from opmux_jit import tensor_map
from opmux_jit.launching import Address, MapOf, Promotion, Swizzle


def add_gradients(config: Config, dy: Tensor, x: Tensor, offsets: Tensor, sizes: Tensor | None, out: Tensor) -> None:
    """Add ``dy[rows].T @ x[rows]`` of each group's rows to its matrix of out.

    Args:
        config: of the kernel.
        dy: ``(m, n)`` bfloat16, at least one row; columns of unit stride, or rows of unit stride.
        x: ``(m, k)`` bfloat16, likewise.
        offsets: where each group begins and the last one ends, int32 on the device.
        sizes: how many rows a group has, or None.
        out: ``(groups, n, k)`` float32, contiguous.

    Raises:
        BuildFailed: where the kernel does not compile or load.
        LaunchFailed: where the driver refuses the launch.
    """
    given = _given(dy, x, offsets, sizes)
    if repeated_into(config, given, out, accumulate=True) or launch_again(config, given, out):
        return
    (m, n), k, groups = dy.shape, x.shape[1], len(out)
    product = gradient(n, k, dy, x)
    tiles = -(-n // config.block_m) * -(-k // config.block_n) * min(groups, m)  # no more groups than rows have any
    maps = (
        partial(_map_of_turned, box=config.block_m) if product.dy_turned else partial(_map_of_summed, columns=n),
        partial(_map_of_turned, box=config.block_n) if product.x_turned else partial(_map_of_summed, columns=k),
    )
    arguments = _arguments(*maps, [], sizes is not None, len(given), out, (m, groups))
    operands = dy if product.dy_turned else matrix(dy, n), x if product.x_turned else matrix(x, k)
    ready = _given(*operands, offsets.contiguous(), None if sizes is None else sizes.contiguous())
    launch_first(config, product, (min(tiles, most_units(x.get_device())), 1, 1), arguments, given, ready, out)


def gradient(n: int, k: int, dy: Tensor, x: Tensor) -> Product:
    """What the kernel for operands in bfloat16 computes, which it reads as they lie."""
    turned = lies_across(dy), lies_across(x)
    return Product("bfloat16", "float32", n, k, False, "ragged", True, False, False, *turned)


def add_scaled_gradients(
    config: Config, dy: Tensor, x: Tensor, dy_scale: Tensor, x_scale: Tensor, offsets: Tensor, sizes: Tensor | None,
    out: Tensor,
) -> None:  # fmt: skip
    """Add ``dy[rows].T @ x[rows]`` of each group's rows, which are codes with scales, to its matrix of out.

    Args:
        config: of the kernel.
        dy: ``(m, n)`` codes. Where those of neighbouring rows are not next to each other, in columns that begin at
            multiples of 16 bytes, they are copied.
        x: ``(m, k)`` codes, likewise.
        dy_scale: ``(ceil(m / 128), n)`` float32, in any strides.
        x_scale: ``(ceil(m / 128), k)`` float32, likewise.
        offsets: where each group begins and the last one ends, int32 on the device.
        sizes: how many rows a group has, or None.
        out: ``(groups, n, k)`` float32, contiguous.

    Raises:
        BuildFailed: where the kernel does not compile or load.
        LaunchFailed: where the driver refuses the launch.
    """
    given = _given(dy, x, offsets, sizes, dy_scale, x_scale)
    if repeated_into(config, given, out, accumulate=True) or launch_again(config, given, out):
        return
    (m, n), k, groups, cluster = dy.shape, x.shape[1], len(out), config.cluster
    product = Product("float8_e4m3fn", "float32", n, k, groups="ragged", accumulate=True)
    tiles = -(-n // config.block_m // cluster) * -(-k // config.block_n) * min(groups, m)
    maps = (partial(_map_of_columns, box=config.block_m), partial(_map_of_columns, box=config.block_n // cluster))
    scales = [Address(len(given) - 2), Address(len(given) - 1)]
    numbers = (*dy_scale.stride(), *x_scale.stride(), m, groups)
    arguments = _arguments(*maps, scales, sizes is not None, len(given), out, numbers)
    rows = offsets.contiguous(), None if sizes is None else sizes.contiguous()
    ready = _given(columns_of(dy).T, columns_of(x).T, *rows, dy_scale, x_scale)
    units = max(most_units(x.get_device()) // cluster, 1)
    launch_first(config, product, (min(tiles, units) * cluster, 1, 1), arguments, given, ready, out)


def columns_of(codes: Tensor) -> Tensor:
    """The transposed matrix of codes as the copy engine reads it; copied where its rows are not so in memory."""
    (m, width), (row, column) = codes.shape, codes.stride()
    pitch = -(-m // 16) * 16
    if width == 1:  # one column may have any stride
        column = pitch
    if row == 1 and column >= m and column % 16 == 0 and codes.data_ptr() % 16 == 0:
        return codes.as_strided((width, m), (column, 1))
    return codes.new_empty((width, pitch))[:, :m].copy_(codes.T)


def _map_of_summed(rows: Tensor, columns: int) -> bytes:
    """The tensor map of rows that are summed, by which boxes of 64 columns of 64 rows are copied."""
    return map_of(rows, columns, 64, 64)


def _map_of_turned(rows: Tensor, box: int) -> bytes:
    """The tensor map of rows that are next to each other, by which boxes of 64 rows of so many columns are copied."""
    return map_of(rows.mT, len(rows), box, 64)


def _map_of_columns(codes: Tensor, box: int) -> bytes:
    """The tensor map of the columns of codes, by which boxes of 128 rows of so many of them are copied."""
    return tensor_map(columns_of(codes), (box, 128), swizzle=Swizzle.BYTES_128, promotion=Promotion.BYTES_256)


def _map_of_sums(out: Tensor) -> bytes:
    """The tensor map of what is added to."""
    columns = out.shape[-1]
    return map_of(out.view(-1, columns), columns, 64, 32)


def _given(
    dy: Tensor, x: Tensor, offsets: Tensor, sizes: Tensor | None, *scales: Tensor
) -> tuple[Tensor, ...]:  # fmt: skip
    return (dy, x, offsets, *scales) if sizes is None else (dy, x, offsets, sizes, *scales)


def _arguments(
    dy_map: Callable[[Tensor], bytes], x_map: Callable[[Tensor], bytes], scales: list[Address], counted: bool,
    result: int, out: Tensor, numbers: tuple[int, ...],
) -> Arguments:  # fmt: skip
    """The arguments of a kernel; the result is the tensor behind those that are given."""
    maps = [MapOf(0, dy_map), MapOf(1, x_map), MapOf(result, _map_of_sums)]
    return [*maps, Address(result), *scales, Address(2), Address(3) if counted else None, *numbers]
