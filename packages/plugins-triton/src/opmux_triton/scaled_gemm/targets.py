"""What the core calls for scaled products."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from opmux_triton.repeats import kept, repeated
from opmux_triton.scaled_gemm.products import product

Product = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor, bool, Any], None]
"""Called like `opmux_triton.scaled_gemm.products.product`."""


def scaled_linear_by(product: Product) -> Callable[..., Tensor]:
    """A target of `scaled_linear`."""

    def scaled_linear(
        x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None, *, out_dtype: torch.dtype,
        config: Any,
    ) -> Tensor:  # fmt: skip
        """The op `scaled_linear`."""
        out = x.new_empty((*x.shape[:-1], w.shape[0]), dtype=out_dtype)
        if not out.numel():
            return out
        given = (x, w, x_scale, w_scale) if bias is None else (x, w, x_scale, w_scale, bias)
        key = ("scaled linear", id(config), x.shape, out_dtype, bias is None)
        if not repeated(key, given, (out,)):
            with kept(key, given, (out,), config):
                product(x, w, x_scale, w_scale, bias, out, False, config)
        return out

    return scaled_linear


def scaled_linear_accumulate_by(product: Product) -> Callable[..., None]:
    """A target of `scaled_linear_accumulate`."""

    def scaled_linear_accumulate(
        out: Tensor, x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, *, config: Any
    ) -> None:
        """The op `scaled_linear_accumulate`."""
        if not out.numel():
            return
        given = (out, x, w, x_scale, w_scale)
        key = ("scaled linear accumulate", id(config), x.shape)
        if not repeated(key, given):
            with kept(key, given, (), config):
                product(x, w, x_scale, w_scale, None, out, True, config)

    return scaled_linear_accumulate


scaled_linear = scaled_linear_by(product)
scaled_linear_accumulate = scaled_linear_accumulate_by(product)
