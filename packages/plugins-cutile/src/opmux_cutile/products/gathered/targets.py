"""What the core calls for a product whose operands threads copy."""

from functools import lru_cache

import torch
from torch import Tensor

from opmux_cutile.launching import TileKernel, in_launches, launch, rows_of
from opmux_cutile.parameters import Array, Constant, Parameter
from opmux_cutile.products.configs import LinearConfig
from opmux_cutile.products.targets import apart, bias_fits, units_of, within
from opmux_cutile.replaying import kept

MODULE = "opmux_cutile.products.gathered.kernels"
CHUNK = 8
"""Numbers of 16 bits that a thread copies at once."""


@kept
def linear(
    x: Tensor, w: Tensor, bias: Tensor | None, *, out_dtype: torch.dtype | None = None, config: LinearConfig
) -> Tensor:
    """The op `linear`, with a result in x's dtype."""
    n, k = w.shape
    y = x.new_empty((*x.shape[:-1], n))
    if not y.numel():
        return y
    kernel = _kernel(config, str(x.dtype).removeprefix("torch."), bias is not None, bias_fits(bias))
    across = -(-n // config.block_n)
    shift = y.view(-1)[:n] if bias is None else bias  # not read where there is none
    w = chunks_of(within(apart(w)))
    for x_part, y_part in in_launches(apart(rows_of(x, k)), y.view(-1, n)):
        tiles = -(-len(x_part) // config.block_m) * across
        grid = min(tiles, units_of(y.get_device())), 1, 1
        launch(kernel, grid, chunks_of(x_part), w, shift, chunks_of(y_part))
    return y


def chunks_of(matrix: Tensor) -> Tensor:
    """A matrix as (rows, chunks, 8)."""
    return matrix.as_strided((len(matrix), matrix.shape[1] // CHUNK, CHUNK), (matrix.stride(0), CHUNK, 1))


@lru_cache(maxsize=1024)
def _kernel(config: LinearConfig, dtype: str, biased: bool, fits: bool) -> TileKernel:
    """The kernel for products of any sizes."""
    matrix, bias = Array(dtype, (None, None, CHUNK), (None, CHUNK, 1), True), Array(dtype, (None,), (1,), fits)
    sizes = (Constant(size) for size in (config.block_m, config.block_n, config.block_k, config.group))
    parameters: tuple[Parameter, ...] = (matrix, matrix, bias, matrix, *sizes, Constant(biased))
    return TileKernel("linear", MODULE, "gathered", parameters, config.hints)
