"""What the core calls to quantise a matrix: blocks of rows, blocks of 128 x 128, or all of it with one scale."""

import math
from functools import lru_cache

import torch
from torch import Tensor

from opmux_cutile.gates.configs import GatedConfig
from opmux_cutile.launching import TileKernel, launch
from opmux_cutile.parameters import Array, Constant, Parameter
from opmux_cutile.quantization import targets
from opmux_cutile.quantization.targets import ALIGNMENT, LARGEST
from opmux_cutile.tiles import power_of_two

MODULE = "opmux_cutile.quantization.square_kernels"
SIDE = 128
MOST_GRID = 65535
"""Blocks of a grid in its second and third dim."""
MOST_PARTS = 1024
"""Blocks that share a matrix: on every GPU as many, so that a kernel that is built ahead serves all."""
Codes = tuple[Tensor, Tensor]


def quantize(x: Tensor, *, dtype: torch.dtype, block: tuple[int, int], scale_major: str, config: GatedConfig) -> Codes:
    """The op `quantize`."""
    if block[0] == 1:
        found: Codes = targets.quantize(x, dtype=dtype, block=block, scale_major=scale_major, config=config)
        return found
    *batch, m, k = x.shape
    q = x.new_empty(x.shape, dtype=dtype)
    blocks = (min(m, 1), min(k, 1)) if block[0] == -1 else (-(-m // SIDE), -(-k // SIDE))
    scale = _scales(x, batch, blocks, scale_major)
    if q.numel():
        matrices, codes = x.reshape(-1, m, k), q.view(-1, m, k)
        scales = scale.view(-1, *blocks)
        for first in range(0, len(matrices), MOST_GRID):
            part = slice(first, first + MOST_GRID)
            run = _matrix if block[0] == -1 else _squares
            run(_packed(matrices[part]), codes[part], scales[part], config)
    return q, scale


def _scales(x: Tensor, batch: list[int], blocks: tuple[int, int], scale_major: str) -> Tensor:
    """Room for scales: contiguous, or transposed, with columns padded to 16 bytes by zeros."""
    if scale_major == "k":
        return x.new_empty((*batch, *blocks), dtype=torch.float32)
    column = max(1, -(-blocks[0] // ALIGNMENT) * ALIGNMENT)
    step = column * max(1, blocks[1])
    sizes = [max(1, size) for size in batch]
    strides = [step * math.prod(sizes[place + 1 :]) for place in range(len(batch))]
    memory = (x.new_zeros if blocks[0] % ALIGNMENT else x.new_empty)(step * math.prod(batch), dtype=torch.float32)
    return memory.as_strided((*batch, *blocks), (*strides, 1, column))


def _packed(x: Tensor) -> Tensor:
    """Matrices whose dims of one element have the stride of a packed one, and whose rows do not overlap."""
    count, m, k = x.shape
    if (m > 1 and x.stride(1) < k) or (count > 1 and x.stride(0) < k):
        return x.contiguous()
    row = k if m == 1 else x.stride(1)
    return x.as_strided(x.shape, (m * row if count == 1 else x.stride(0), row, 1))


def _squares(x: Tensor, q: Tensor, scale: Tensor, config: GatedConfig) -> None:
    kernel = _squares_kernel(config, _name(x), _fits(x), _name(q), _fits(q), LARGEST[q.dtype])
    launch(kernel, (scale.shape[2], scale.shape[1], len(x)), x, q, scale)


def _matrix(x: Tensor, q: Tensor, scale: Tensor, config: GatedConfig) -> None:
    tiles = -(-x.shape[1] // config.rows) * -(-x.shape[2] // config.columns)
    blocks = min(tiles, MOST_PARTS)
    parts = x.new_empty((len(x), blocks), dtype=torch.float32)
    kernels = _matrix_kernels(
        config, _name(x), _fits(x), _name(q), _fits(q), LARGEST[q.dtype], power_of_two(blocks)
    )  # fmt: skip
    launch(kernels[0], (blocks, len(x), 1), x, parts)
    launch(kernels[1], (blocks, len(x), 1), x, q, scale, parts)


def _name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def _fits(x: Tensor) -> bool:
    """Whether the address and all strides but the last one are multiples of 16 bytes."""
    return not (x.data_ptr() % 16 or any(step * x.element_size() % 16 for step in x.stride()[:-1]))


def _arrays(x: str, x_fits: bool, q: str, q_fits: bool) -> tuple[Array, Array, Array]:
    scale = Array("float32", (None,) * 3, (None,) * 3, False)
    return _values(x, x_fits), _values(q, q_fits), scale


def _values(dtype: str, fits: bool) -> Array:
    return Array(dtype, (None,) * 3, (None, None, 1), fits)


@lru_cache(maxsize=1024)
def _squares_kernel(config: GatedConfig, x: str, x_fits: bool, q: str, q_fits: bool, largest: float) -> TileKernel:
    constants = map(Constant, (config.rows, largest, q == "int8"))
    parameters: tuple[Parameter, ...] = (*_arrays(x, x_fits, q, q_fits), *constants)
    return TileKernel("quantize", MODULE, "quantize_squares", parameters, config.hints)


@lru_cache(maxsize=1024)
def _matrix_kernels(
    config: GatedConfig, x: str, x_fits: bool, q: str, q_fits: bool, largest: float, count: int
) -> tuple[TileKernel, TileKernel]:
    tile = config.rows, config.columns
    parts = Array("float32", (None,) * 2, (None, 1), False)
    first: tuple[Parameter, ...] = (_values(x, x_fits), parts, *map(Constant, tile))
    second: tuple[Parameter, ...] = (
        *_arrays(x, x_fits, q, q_fits), parts, *map(Constant, (*tile, count, largest, q == "int8")),
    )  # fmt: skip
    return (
        TileKernel("quantize", MODULE, "find_largest", first, config.hints),
        TileKernel("quantize", MODULE, "quantize_matrix", second, config.hints),
    )
