"""transformers' product of fine-grained fp8 as its definition in torch, for checks: its kernel comes from a hub."""

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import opmux
from opmux.nn.quantized_product import quantize_rows

KERNEL = "fp8_linear"
"""The name of transformers' function."""


def with_definition(forward: Any, definition: Callable[..., Tensor]) -> Any:
    """A function that calls a definition where it names the kernel; the function itself if it names none."""
    function = inspect.unwrap(forward)
    if KERNEL not in function.__code__.co_names:
        return forward
    scope = {**function.__globals__, KERNEL: definition}
    return types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)


def fp8_linear(
    input: Tensor,
    weight: Tensor,
    weight_scale_inv: Tensor,
    block_size: Any = None,
    bias: Tensor | None = None,
    activation_scale: Tensor | None = None,
    allow_deepgemm: bool = True,
) -> Tensor:
    """What transformers' function of this name computes, for input that is quantised without rounding."""
    rows, columns = weight.shape
    down, across = (rows, columns) if block_size is None else block_size
    scale = weight_scale_inv.to(torch.float32)
    if scale.ndim == 2:
        scale = scale.repeat_interleave(down, 0)[:rows].repeat_interleave(across, 1)[:, :columns]
    if activation_scale is not None:
        step = activation_scale.to(torch.float32)
        input = opmux.static_quantize(input, step.view(1, 1), dtype=weight.dtype, backend="reference").float() * step
    return functional.linear(input, weight.to(torch.float32) * scale, bias).to(input.dtype)


@functools.cache
def rounding_fp8_linear(activations: str) -> Callable[..., Tensor]:
    """The same for any input: its rows are rounded to codes first, as a name of `opmux.nn.QuantizedLinear` says."""

    def rounded(input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        q, scale = quantize_rows(input, weight.dtype, activations, backend="reference")
        values = opmux.dequantize(q, scale, out_dtype=input.dtype, backend="reference")
        return fp8_linear(values, weight, *args, **kwargs)

    return rounded
