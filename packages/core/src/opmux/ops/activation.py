"""Gated activations, with their gradients: an activated gate times an up projection, in one tensor or in two.

All arithmetic is in float32 (float64 for float64 tensors), and results are rounded once.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from opmux.definition import define_op
from opmux.dtypes import Real, accumulation_dtype

_SQRT_HALF = math.sqrt(0.5)
_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
_INVERSE_SQRT_2_PI = 1.0 / math.sqrt(2.0 * math.pi)
_TANH_CUBIC = 0.044715  # the cubic coefficient of Hendrycks and Gimpel's tanh form

_REQUIRED = (("n > 0", "a row has at least one column"),)


def _silu(x: Tensor) -> Tensor:
    """Return x * sigmoid(x)."""
    return x * torch.sigmoid(x)


def _silu_slope(x: Tensor) -> Tensor:
    """Return the derivative of `_silu`."""
    sigmoid = torch.sigmoid(x)
    return sigmoid * (1.0 + x * (1.0 - sigmoid))


def _normal_cdf(x: Tensor, approximate: str) -> Tensor:
    """Return the normal distribution function, or its tanh form; both without cancellation far below zero."""
    if approximate == "tanh":
        # (1 + tanh(z)) / 2 is sigmoid(2 * z).
        return torch.sigmoid(2.0 * _SQRT_2_OVER_PI * (x + _TANH_CUBIC * x.pow(3)))
    return 0.5 * torch.erfc(-_SQRT_HALF * x)  # (1 + erf(z)) / 2 is erfc(-z) / 2


def _gelu(x: Tensor, approximate: str) -> Tensor:
    """Return x times its normal distribution function."""
    return x * _normal_cdf(x, approximate)


def _gelu_slope(x: Tensor, approximate: str) -> Tensor:
    """Return the derivative of `_gelu`."""
    cdf = _normal_cdf(x, approximate)
    if approximate == "tanh":
        inner_slope = 2.0 * _SQRT_2_OVER_PI * (1.0 + 3.0 * _TANH_CUBIC * x.square())
        return cdf + x * (cdf * (1.0 - cdf) * inner_slope)
    return cdf + x * (_INVERSE_SQRT_2_PI * torch.exp(-0.5 * x.square()))


@define_op(gradient="silu_and_mul_backward", require=_REQUIRED)
def silu_and_mul(x: Real[Tensor, "*tokens 2*n"]) -> Real[Tensor, "*tokens n"]:
    """Multiply the second half of each row by the SiLU of the first half (SwiGLU, packed).

    ``out = silu(gate) * up`` with ``gate = x[..., :n]``, ``up = x[..., n:]`` and
    ``silu(g) = g * sigmoid(g)``, computed in float32 (in float64 for float64) and rounded once. A gate of
    -inf gives NaN.

    Args:
        x: The gate, then the up projection, ``(*tokens, 2 * n)``.

    Returns:
        out: ``(*tokens, n)`` in x's dtype.

    Raises:
        InvalidArgument: If the last dim is odd or 0, or a dtype breaks the signature.

    Source:
        Shazeer, "GLU Variants Improve Transformer", 2020, https://arxiv.org/abs/2002.05202.
    """
    gate, up = x.to(accumulation_dtype(x.dtype)).chunk(2, dim=-1)
    return (_silu(gate) * up).to(x.dtype).contiguous()


@define_op(outputs=("grad_x",), same_dtype=(("grad_out", "x"),), require=_REQUIRED)
def silu_and_mul_backward(
    grad_out: Real[Tensor, "*tokens n"],
    x: Real[Tensor, "*tokens 2*n"],
    *,
    output_mask: tuple[bool, ...] = (True,),
) -> Real[Tensor, "*tokens 2*n"]:
    """Compute the gradient of `silu_and_mul`.

    Its first half is ``grad_out * up * silu'(gate)`` with ``silu'(g) = s * (1 + g * (1 - s))`` and
    ``s = sigmoid(g)``, its second half ``grad_out * silu(gate)``, computed in float32 (in float64 for
    float64) and rounded once.

    Args:
        grad_out: The gradient of out, ``(*tokens, n)``, in x's dtype.
        x: The tensor given to `silu_and_mul`, ``(*tokens, 2 * n)``.
        output_mask: Whether grad_x is wanted.

    Returns:
        grad_x: ``(*tokens, 2 * n)`` in x's dtype; ``(0,)`` where masked out.

    Raises:
        InvalidArgument: If a shape, dtype or device breaks the signature, or n is 0.

    Source:
        The chain rule on `silu_and_mul`.
    """
    if not output_mask[0]:
        return x.new_empty(0)
    acc = accumulation_dtype(x.dtype)
    gate, up = x.to(acc).chunk(2, dim=-1)
    grad = grad_out.to(acc)
    return torch.cat((grad * up * _silu_slope(gate), grad * _silu(gate)), dim=-1).to(x.dtype).contiguous()


@define_op(gradient="gelu_and_mul_backward", require=_REQUIRED)
def gelu_and_mul(
    x: Real[Tensor, "*tokens 2*n"], *, approximate: Literal["none", "tanh"] = "none"
) -> Real[Tensor, "*tokens n"]:
    """Multiply the second half of each row by the GELU of the first half (GeGLU, packed).

    ``out = gelu(gate) * up`` with ``gate = x[..., :n]`` and ``up = x[..., n:]``, computed in float32 (in
    float64 for float64) and rounded once. ``gelu(g)`` is ``g * (1 + erf(g / sqrt(2))) / 2``, or in its tanh
    form ``g * (1 + tanh(sqrt(2 / pi) * (g + 0.044715 * g**3))) / 2``. A gate of -inf gives NaN.

    Args:
        x: The gate, then the up projection, ``(*tokens, 2 * n)``.
        approximate: ``"none"`` for the exact form, ``"tanh"`` for the tanh form.

    Returns:
        out: ``(*tokens, n)`` in x's dtype.

    Raises:
        InvalidArgument: If the last dim is odd or 0, or an option or dtype breaks the signature.

    Source:
        Shazeer, "GLU Variants Improve Transformer", 2020, https://arxiv.org/abs/2002.05202; Hendrycks and
        Gimpel, "Gaussian Error Linear Units", 2016, https://arxiv.org/abs/1606.08415.
    """
    gate, up = x.to(accumulation_dtype(x.dtype)).chunk(2, dim=-1)
    return (_gelu(gate, approximate) * up).to(x.dtype).contiguous()


@define_op(outputs=("grad_x",), same_dtype=(("grad_out", "x"),), require=_REQUIRED)
def gelu_and_mul_backward(
    grad_out: Real[Tensor, "*tokens n"],
    x: Real[Tensor, "*tokens 2*n"],
    *,
    approximate: Literal["none", "tanh"] = "none",
    output_mask: tuple[bool, ...] = (True,),
) -> Real[Tensor, "*tokens 2*n"]:
    """Compute the gradient of `gelu_and_mul`.

    Its first half is ``grad_out * up * gelu'(gate)``, its second half ``grad_out * gelu(gate)``, computed in
    float32 (in float64 for float64) and rounded once. With ``c = gelu(g) / g``, the slope ``gelu'(g)`` is
    ``c + g * exp(-g**2 / 2) / sqrt(2 * pi)``, or in the tanh form
    ``c + g * c * (1 - c) * 2 * sqrt(2 / pi) * (1 + 3 * 0.044715 * g**2)``.

    Args:
        grad_out: The gradient of out, ``(*tokens, n)``, in x's dtype.
        x: The tensor given to `gelu_and_mul`, ``(*tokens, 2 * n)``.
        approximate: As given to `gelu_and_mul`.
        output_mask: Whether grad_x is wanted.

    Returns:
        grad_x: ``(*tokens, 2 * n)`` in x's dtype; ``(0,)`` where masked out.

    Raises:
        InvalidArgument: If a shape, option, dtype or device breaks the signature, or n is 0.

    Source:
        The chain rule on `gelu_and_mul`.
    """
    if not output_mask[0]:
        return x.new_empty(0)
    acc = accumulation_dtype(x.dtype)
    gate, up = x.to(acc).chunk(2, dim=-1)
    grad = grad_out.to(acc)
    grad_gate = grad * up * _gelu_slope(gate, approximate)
    return torch.cat((grad_gate, grad * _gelu(gate, approximate)), dim=-1).to(x.dtype).contiguous()


@define_op(same_dtype=(("gate", "up"),), gradient="silu_mul_backward", require=_REQUIRED)
def silu_mul(gate: Real[Tensor, "*tokens n"], up: Real[Tensor, "*tokens n"]) -> Real[Tensor, "*tokens n"]:
    """Multiply the up projection by the SiLU of the gate (SwiGLU, in separate tensors).

    ``out = silu(gate) * up`` with ``silu(g) = g * sigmoid(g)``, computed in float32 (in float64 for float64)
    and rounded once. A gate of -inf gives NaN.

    Args:
        gate: The gate, ``(*tokens, n)``.
        up: The up projection, ``(*tokens, n)``, in gate's dtype.

    Returns:
        out: ``(*tokens, n)`` in gate's dtype.

    Raises:
        InvalidArgument: If a shape, dtype or device breaks the signature, or n is 0.

    Source:
        Shazeer, "GLU Variants Improve Transformer", 2020, https://arxiv.org/abs/2002.05202.
    """
    acc = accumulation_dtype(gate.dtype)
    return (_silu(gate.to(acc)) * up.to(acc)).to(gate.dtype).contiguous()


@define_op(outputs=("grad_gate", "grad_up"), same_dtype=(("grad_out", "gate", "up"),), require=_REQUIRED)
def silu_mul_backward(
    grad_out: Real[Tensor, "*tokens n"],
    gate: Real[Tensor, "*tokens n"],
    up: Real[Tensor, "*tokens n"],
    *,
    output_mask: tuple[bool, ...] = (True, True),
) -> tuple[Real[Tensor, "*tokens n"], Real[Tensor, "*tokens n"]]:
    """Compute the gradients of `silu_mul`.

    ``grad_gate = grad_out * up * silu'(gate)`` with ``silu'(g) = s * (1 + g * (1 - s))`` and
    ``s = sigmoid(g)``; ``grad_up = grad_out * silu(gate)``; computed in float32 (in float64 for float64) and
    rounded once.

    Args:
        grad_out: The gradient of out, ``(*tokens, n)``, in gate's dtype.
        gate: The gate given to `silu_mul`, ``(*tokens, n)``.
        up: The up projection given to `silu_mul`, ``(*tokens, n)``.
        output_mask: Which of (grad_gate, grad_up) are wanted.

    Returns:
        grad_gate: ``(*tokens, n)`` in gate's dtype; ``(0,)`` where masked out.
        grad_up: ``(*tokens, n)`` in gate's dtype; ``(0,)`` where masked out.

    Raises:
        InvalidArgument: If a shape, dtype or device breaks the signature, or n is 0.

    Source:
        The chain rule on `silu_mul`.
    """
    acc = accumulation_dtype(gate.dtype)
    grad = grad_out.to(acc)
    grad_gate, grad_up = gate.new_empty(0), up.new_empty(0)
    if output_mask[0]:
        grad_gate = (grad * up.to(acc) * _silu_slope(gate.to(acc))).to(gate.dtype).contiguous()
    if output_mask[1]:
        grad_up = (grad * _silu(gate.to(acc))).to(up.dtype).contiguous()
    return grad_gate, grad_up


@define_op(same_dtype=(("gate", "up"),), gradient="gelu_mul_backward", require=_REQUIRED)
def gelu_mul(
    gate: Real[Tensor, "*tokens n"],
    up: Real[Tensor, "*tokens n"],
    *,
    approximate: Literal["none", "tanh"] = "none",
) -> Real[Tensor, "*tokens n"]:
    """Multiply the up projection by the GELU of the gate (GeGLU, in separate tensors).

    ``out = gelu(gate) * up``, computed in float32 (in float64 for float64) and rounded once. ``gelu(g)`` is
    ``g * (1 + erf(g / sqrt(2))) / 2``, or in its tanh form
    ``g * (1 + tanh(sqrt(2 / pi) * (g + 0.044715 * g**3))) / 2``. A gate of -inf gives NaN.

    Args:
        gate: The gate, ``(*tokens, n)``.
        up: The up projection, ``(*tokens, n)``, in gate's dtype.
        approximate: ``"none"`` for the exact form, ``"tanh"`` for the tanh form.

    Returns:
        out: ``(*tokens, n)`` in gate's dtype.

    Raises:
        InvalidArgument: If a shape, option, dtype or device breaks the signature, or n is 0.

    Source:
        Shazeer, "GLU Variants Improve Transformer", 2020, https://arxiv.org/abs/2002.05202; Hendrycks and
        Gimpel, "Gaussian Error Linear Units", 2016, https://arxiv.org/abs/1606.08415.
    """
    acc = accumulation_dtype(gate.dtype)
    return (_gelu(gate.to(acc), approximate) * up.to(acc)).to(gate.dtype).contiguous()


@define_op(outputs=("grad_gate", "grad_up"), same_dtype=(("grad_out", "gate", "up"),), require=_REQUIRED)
def gelu_mul_backward(
    grad_out: Real[Tensor, "*tokens n"],
    gate: Real[Tensor, "*tokens n"],
    up: Real[Tensor, "*tokens n"],
    *,
    approximate: Literal["none", "tanh"] = "none",
    output_mask: tuple[bool, ...] = (True, True),
) -> tuple[Real[Tensor, "*tokens n"], Real[Tensor, "*tokens n"]]:
    """Compute the gradients of `gelu_mul`.

    ``grad_gate = grad_out * up * gelu'(gate)`` and ``grad_up = grad_out * gelu(gate)``, computed in float32
    (in float64 for float64) and rounded once; `gelu_and_mul_backward` has the slope ``gelu'`` of either form.

    Args:
        grad_out: The gradient of out, ``(*tokens, n)``, in gate's dtype.
        gate: The gate given to `gelu_mul`, ``(*tokens, n)``.
        up: The up projection given to `gelu_mul`, ``(*tokens, n)``.
        approximate: As given to `gelu_mul`.
        output_mask: Which of (grad_gate, grad_up) are wanted.

    Returns:
        grad_gate: ``(*tokens, n)`` in gate's dtype; ``(0,)`` where masked out.
        grad_up: ``(*tokens, n)`` in gate's dtype; ``(0,)`` where masked out.

    Raises:
        InvalidArgument: If a shape, option, dtype or device breaks the signature, or n is 0.

    Source:
        The chain rule on `gelu_mul`.
    """
    acc = accumulation_dtype(gate.dtype)
    grad = grad_out.to(acc)
    grad_gate, grad_up = gate.new_empty(0), up.new_empty(0)
    if output_mask[0]:
        grad_gate = (grad * up.to(acc) * _gelu_slope(gate.to(acc), approximate)).to(gate.dtype).contiguous()
    if output_mask[1]:
        grad_up = (grad * _gelu(gate.to(acc), approximate)).to(up.dtype).contiguous()
    return grad_gate, grad_up
