"""What the core calls for a product whose operands threads copy."""

from functools import lru_cache

import torch
from torch import Tensor

from opmux_cutile.launching import TileKernel
from opmux_cutile.parameters import Array, Constant, Parameter
from opmux_cutile.products.backward import gradients
from opmux_cutile.products.backward_configs import LinearBackwardConfig
from opmux_cutile.products.configs import LinearConfig
from opmux_cutile.products.targets import multiply
from opmux_cutile.replaying import kept

MODULE = "opmux_cutile.products.gathered.kernels"
OF_GRADIENTS = "opmux_cutile.products.gathered.backward_kernels"
CHUNK = 8
"""Numbers of 16 bits that a thread copies at once."""


@kept
def linear(
    x: Tensor, w: Tensor, bias: Tensor | None, *, out_dtype: torch.dtype | None = None, config: LinearConfig
) -> Tensor:
    """The op `linear`, with a result in x's dtype."""
    return multiply(x, w, bias, config, _kernel, chunks_of)


def linear_backward(
    grad_out: Tensor, x: Tensor, w: Tensor, *, output_mask: tuple[bool, ...], config: LinearBackwardConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """The op `linear_backward`."""
    return gradients(grad_out, x, w, output_mask, config, _kernel_of_gradients, chunks_of)


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


@lru_cache(maxsize=1024)
def _kernel_of_gradients(config: LinearConfig, dtype: str, across: bool) -> TileKernel:
    """The kernel for products of any sizes."""
    matrix = Array(dtype, (None, None, CHUNK), (None, CHUNK, 1), True)
    sizes = (config.block_m, config.block_n, config.block_k, config.group, across)
    parameters: tuple[Parameter, ...] = (*(matrix,) * 3, *map(Constant, sizes))
    return TileKernel("linear_backward", OF_GRADIENTS, "gathered_product", parameters, config.hints)
