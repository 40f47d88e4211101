"""What the core calls for the gradients of a product."""

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from opmux_cutile.launching import TileKernel, launch, rows_of
from opmux_cutile.parameters import Array, Constant
from opmux_cutile.products.backward_configs import LinearBackwardConfig
from opmux_cutile.products.configs import LinearConfig
from opmux_cutile.products.targets import apart, units_of, within

MODULE = "opmux_cutile.products.backward_kernels"


def linear_backward(
    grad_out: Tensor, x: Tensor, w: Tensor, *, output_mask: tuple[bool, ...], config: LinearBackwardConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """The op `linear_backward`."""
    return gradients(grad_out, x, w, output_mask, config, _kernel)


def gradients(
    grad_out: Tensor,
    x: Tensor,
    w: Tensor,
    output_mask: tuple[bool, ...],
    config: LinearBackwardConfig,
    make: Callable[[LinearConfig, str, bool], TileKernel],
    form: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients that are wanted.

    Args:
        grad_out: the gradient of the result.
        x: rows.
        w: the weight.
        output_mask: which gradients are wanted, of x, of w, and of the bias.
        config: the tiles of both products.
        make: the kernel of a product, by config, dtype, and whether it is a^T b.
        form: how the kernel has its matrices; as they are where it is None.
    """
    n, k = w.shape
    grad, rows = rows_of(grad_out, n), rows_of(x, k)
    grad_x, grad_w, grad_bias = x.new_empty(0), w.new_empty(0), w.new_empty(0)
    if output_mask[0]:
        grad_x = x.new_empty(x.shape)
        _run(config.of_x, grad, w, grad_x.view(-1, k), False, make, form)
    if output_mask[1]:
        grad_w = w.new_empty(w.shape)
        _run(config.of_w, grad, rows, grad_w, True, make, form)
    if output_mask[2]:
        grad_bias = grad.sum(0, dtype=torch.float32).to(w.dtype)
    return grad_x, grad_w, grad_bias


def _run(
    config: LinearConfig,
    a: Tensor,
    b: Tensor,
    y: Tensor,
    across: bool,
    make: Callable[[LinearConfig, str, bool], TileKernel],
    form: Callable[[Tensor], Tensor] | None,
) -> None:
    """One of the products, of matrices that a launch can address."""
    if not len(b):  # a sum over no rows
        y.zero_()
    elif y.numel():
        tiles = -(-len(y) // config.block_m) * -(-y.shape[1] // config.block_n)
        most = max(units_of(y.get_device()) // config.ctas, 1)
        kernel = make(config, str(y.dtype).removeprefix("torch."), across)
        matrices = within(apart(a)), within(apart(b)), y
        launch(kernel, (min(tiles, most), 1, 1), *(matrices if form is None else map(form, matrices)))


@lru_cache(maxsize=1024)
def _kernel(config: LinearConfig, dtype: str, across: bool) -> TileKernel:
    """The kernel for products of any sizes."""
    matrix = Array(dtype, (None, None), (None, 1), True)
    sizes = (config.block_m, config.block_n, config.block_k, config.group, across)
    return TileKernel("linear_backward", MODULE, "product", (matrix,) * 3 + tuple(map(Constant, sizes)), config.hints)
