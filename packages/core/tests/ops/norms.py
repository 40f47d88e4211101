"""Inputs of norms in several layouts and dtypes, and what their results are compared with."""

import torch
from torch import Tensor
from torch.nn import functional

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


LAYOUTS = ("contiguous", "strided", "offset", "transposed")


SHAPES = ((7, 33), (2, 3, 5), (13,), (4, 1), (0, 8))


CASES = (  # every size, and two of them in every layout
    *((shape, "contiguous") for shape in SHAPES),
    *((shape, layout) for shape in SHAPES[:2] for layout in LAYOUTS[1:]),
)


MIXED = (  # x, residual, weight
    (torch.bfloat16, torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16, torch.float32),
    (torch.float16, torch.bfloat16, torch.float16),
    (torch.float32, torch.float64, torch.bfloat16),
    (torch.float32, torch.float16, torch.float64),
)


def laid_out(values: Tensor, layout: str) -> Tensor:
    """The same values in another memory layout, with NaN around them."""
    if layout == "contiguous" or (layout == "transposed" and values.ndim < 2):
        return values.clone()
    if layout == "transposed":
        return values.mT.contiguous().mT
    step = 2 if layout == "strided" else 1
    memory = values.new_full((*values.shape[:-1], step * values.shape[-1] + 3), float("nan"))
    view = memory[..., 3:][..., ::step]
    view.copy_(values)
    return view


def randn(*shape: int, dtype: torch.dtype, layout: str = "contiguous") -> Tensor:
    return laid_out(torch.randn(*shape, dtype=torch.float64).to(dtype), layout)


def assert_rounded_once(actual: Tensor, exact: Tensor, dtype: torch.dtype, accumulated: torch.dtype) -> None:
    """actual is the float64 result, up to the accumulation's error and one rounding to dtype."""
    assert actual.dtype == dtype
    assert actual.is_contiguous()
    slack = 1e-12 if accumulated == torch.float64 else 2e-5
    rtol = 1.01 * torch.finfo(dtype).eps / 2 + slack
    torch.testing.assert_close(actual.double(), exact, rtol=rtol, atol=slack, equal_nan=True)


def accumulated_in(*tensors: Tensor) -> torch.dtype:
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def exact_rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6, weight_offset: float = 0.0) -> Tensor:
    return functional.rms_norm(x.double(), x.shape[-1:], weight.double() + weight_offset, eps)


def exact_layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    return functional.layer_norm(
        x.double(), x.shape[-1:], weight.double(), None if bias is None else bias.double(), eps
    )


def gradients(function, tensors, grads):
    """The gradients of function towards tensors in float64, by torch's autograd."""
    leaves = [t.detach().double().requires_grad_() for t in tensors]
    outputs = function(*leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return torch.autograd.grad(outputs, leaves, [g.double() for g in grads])
