"""What the core calls for a product."""

from collections.abc import Callable
from functools import cache, lru_cache

import torch
from torch import Tensor

from opmux_cutile.launching import MOST_BYTES, TileKernel, in_launches, launch, rows_of
from opmux_cutile.parameters import Array, Constant, Parameter
from opmux_cutile.products.configs import LinearConfig
from opmux_cutile.replaying import kept

MODULE = "opmux_cutile.products.kernels"


@kept
def linear(
    x: Tensor, w: Tensor, bias: Tensor | None, *, out_dtype: torch.dtype | None = None, config: LinearConfig
) -> Tensor:
    """The op `linear`, with a result in x's dtype."""
    return multiply(x, w, bias, config, _kernel)


def multiply(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    config: LinearConfig,
    make: Callable[[LinearConfig, str, bool, bool], TileKernel],
    form: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Multiply in as many launches as the sizes need.

    Args:
        x: rows.
        w: the weight.
        bias: of the columns, or None.
        config: tiles of rows and columns, and how many blocks compute one.
        make: the kernel, by config, dtype, whether there is a bias, and whether that fits vectors.
        form: how the kernel has its matrices; as they are where it is None.
    """
    n, k = w.shape
    y = x.new_empty((*x.shape[:-1], n))
    if not y.numel():
        return y
    kernel = make(config, str(x.dtype).removeprefix("torch."), bias is not None, bias_fits(bias))
    across = -(-n // config.block_n)
    most = max(units_of(y.get_device()) // config.ctas, 1)
    shift = y.view(-1)[:n] if bias is None else bias  # not read where there is none
    w = within(apart(w))
    for x_part, y_part in in_launches(apart(rows_of(x, k)), y.view(-1, n)):
        tiles = -(-len(x_part) // config.block_m) * across
        matrices = x_part, w, y_part
        given, weight, result = matrices if form is None else map(form, matrices)
        launch(kernel, (min(tiles, most), 1, 1), given, weight, shift, result)
    return y


def bias_fits(bias: Tensor | None) -> bool:
    """Whether a bias begins at a multiple of 16 bytes; where there is none, it is not read."""
    return bias is not None and bias.data_ptr() % 16 == 0


def apart(matrix: Tensor) -> Tensor:
    """A matrix whose rows do not overlap; copied where they do."""
    return matrix if matrix.stride(0) >= matrix.shape[1] else matrix.contiguous()


def within(matrix: Tensor) -> Tensor:
    """A matrix that a launch can address; copied where its rows are too far apart."""
    far = matrix.stride(0) * len(matrix) * matrix.element_size() > MOST_BYTES
    return matrix.contiguous() if far else matrix


@cache
def units_of(index: int) -> int:
    """Multiprocessors of a GPU; for tensors that are on none, one, as nothing is launched then."""
    return 1 if index < 0 else int(torch.cuda.get_device_properties(index).multi_processor_count)


@lru_cache(maxsize=1024)
def _kernel(config: LinearConfig, dtype: str, biased: bool, fits: bool) -> TileKernel:
    """The kernel for products of any sizes."""
    matrix, bias = Array(dtype, (None, None), (None, 1), True), Array(dtype, (None,), (1,), fits)
    sizes = (Constant(size) for size in (config.block_m, config.block_n, config.block_k, config.group))
    parameters: tuple[Parameter, ...] = (matrix, matrix, bias, matrix, *sizes, Constant(biased))
    return TileKernel("linear", MODULE, "linear", parameters, config.hints)
