"""Launches of the kernels through opmux-jit: compiled when first needed, on torch's current stream."""

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from opmux_deepgemm.configs import Config
from opmux_deepgemm.generation.source import Product, name, text
from opmux_deepgemm.grids import grid_of
from opmux_deepgemm.implementations import BACKEND
from opmux_jit import Kernel, Source, load, tensor_map
from opmux_jit.launching import Promotion, Swizzle
from opmux_jit.launching.devices import current_stream

ARCH = "sm_90a"
"""What is compiled for: the matrix unit's own instructions need the suffix."""
ARGUMENTS = "pppqqqqi"
"""The kernels' arguments after the maps: scales, bias, strides of scales, rows."""
MOST_MAPS = 4096
SWIZZLES = {32: Swizzle.BYTES_32, 64: Swizzle.BYTES_64, 128: Swizzle.BYTES_128}


class Scales(NamedTuple):
    """The scales of codes: of 1x128 blocks of x and 128x128 blocks of w, in any strides."""

    x: Tensor
    w: Tensor


def source(product: Product, config: Config) -> Source:
    """The source of a kernel."""
    op = "scaled_linear" if product.scaled else "linear"
    return Source(name(product, config), text(product, config), ARCH, backend=BACKEND, op=op)


@functools.lru_cache(maxsize=1024)
def kernel_of(product: Product, config: Config) -> Kernel:
    """The kernel of a product, which is compiled and loaded when it is first launched."""
    signature = ("mmp" if config.kernel == "small" else "mmm") + ARGUMENTS
    return load(
        source(product, config), "product", signature, block=config.threads, cluster=config.cluster, dependent=True,
        shared=config.shared_bytes(product.out_bytes),
    )  # fmt: skip


@functools.cache
def units_of(index: int) -> int:
    """Multiprocessors of a GPU."""
    return int(torch.cuda.get_device_properties(index).multi_processor_count)


_maps: dict[tuple[Any, ...], bytes] = {}


def map_of(matrix: Tensor, rows: int, columns: int, width: int = 128) -> bytes:
    """The tensor map of a matrix, by which boxes of so many rows and columns are copied in a swizzle of this width.

    It is kept: a map depends on nothing but the address, sizes and strides of the matrix.
    """
    key = (matrix.data_ptr(), matrix.shape, matrix.stride(0), matrix.dtype, matrix.get_device(), rows, columns)
    found = _maps.get(key)
    if found is None:
        if len(_maps) >= MOST_MAPS:
            _maps.clear()
        found = tensor_map(matrix, (rows, columns), swizzle=SWIZZLES[width], promotion=Promotion.BYTES_256)
        _maps[key] = found
    return found


def launch(config: Config, x: Tensor, w: Tensor, y: Tensor, bias: Tensor | None, scales: Scales | None = None) -> None:
    """Compute ``y = x w^T + bias``.

    Args:
        config: of the kernel.
        x: ``(m, k)``, m at least 1, rows of unit stride that do not overlap, 16 bytes aligned.
        w: ``(n, k)`` likewise, in x's dtype: bfloat16, or float8_e4m3fn with scales.
        y: ``(m, n)`` contiguous, bfloat16 or float32.
        bias: ``(n,)`` bfloat16, or None.
        scales: of x and w where they are codes.

    Raises:
        BuildFailed: where the kernel does not compile or load.
        LaunchFailed: where the driver refuses the launch.
    """
    (m, k), n = x.shape, w.shape[0]
    dtype, out = (str(tensor.dtype).removeprefix("torch.") for tensor in (x, y))
    product = Product(dtype, out, n, k, bias is not None)
    index = x.get_device()
    run = kernel_of(product, config).on(index)
    box = 128 // x.element_size()
    x_map = map_of(x, config.block_m, box)
    if config.kernel == "small":
        w_map, result = map_of(w, config.block_n, box), y
    else:
        w_map = map_of(w, config.block_n // config.cluster, box)
        width = config.slice_width(y.element_size())
        result = map_of(y, 64, width // y.element_size(), width)  # type: ignore[assignment]
    given: tuple[Any, ...] = (None, None, bias, 0, 0, 0, 0)
    if scales is not None:
        given = (scales.x, scales.w, bias, *scales.x.stride(), *scales.w.stride())
    run(*grid_of(config, m, n, units_of(index)), current_stream(index), x_map, w_map, result, *given, m)
