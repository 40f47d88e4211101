"""What the core calls for a product whose operands threads copy."""

from functools import lru_cache

import torch
from torch import Tensor

from opmux_cutile.launching import TileKernel
from opmux_cutile.parameters import Array, Constant, Parameter
from opmux_cutile.products.configs import LinearConfig
from opmux_cutile.products.targets import multiply
from opmux_cutile.replaying import kept

MODULE = "opmux_cutile.products.gathered.kernels"
CHUNK = 8
"""Numbers of 16 bits that a thread copies at once."""


@kept
def linear(
    x: Tensor, w: Tensor, bias: Tensor | None, *, out_dtype: torch.dtype | None = None, config: LinearConfig
) -> Tensor:
    """The op `linear`, with a result in x's dtype."""
    return multiply(x, w, bias, config, _kernel, chunks_of)


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
