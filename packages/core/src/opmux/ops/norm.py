"""RMS norm, alone or after a residual sum, with its gradients.

Sums are accumulated in float32 (float64 if any tensor is float64), and results are rounded once.
"""

import torch
from torch import Tensor

from opmux.definition import define_op
from opmux.dtypes import Real
from opmux.ops._norms import REQUIRED, accumulation_dtype_of
from opmux.ops._variants import in_place


def _rms_normalised(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x / rms(x), and 1 / rms(x) as a column."""
    inverse_rms = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    return x * inverse_rms, inverse_rms


def _rms_grad_input(grad: Tensor, normalised: Tensor, inverse_rms: Tensor) -> Tensor:
    """Return the gradient with respect to the x of `_rms_normalised`, given that of its first result."""
    return inverse_rms * (grad - normalised * (grad * normalised).mean(dim=-1, keepdim=True))


@define_op(outputs=("y",), require=REQUIRED, gradient="rms_norm_backward")
def rms_norm(
    x: Real[Tensor, "*tokens hidden"],
    weight: Real[Tensor, "hidden"],
    *,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
) -> Real[Tensor, "*tokens hidden"]:
    """Scale each row by the reciprocal of its root mean square.

    ``y = x * rsqrt(mean(x**2) + eps) * (weight + weight_offset)``, accumulated in float32 (in float64 where x
    or weight is float64) and rounded once, to x's dtype.

    A row that holds an infinity gives NaN there and zeros elsewhere; one that holds a NaN is all NaN.

    Args:
        x: The rows, ``(*tokens, hidden)``.
        weight: The gain of each column, ``(hidden,)``; its dtype may differ from x's.
        eps: Added to the mean square, in the unit of ``x**2``.
        weight_offset: Added to the weight before it is used; 1.0 in Gemma, which stores weights around 0.

    Returns:
        y: The normalised rows, ``(*tokens, hidden)``, in x's dtype.

    Raises:
        InvalidArgument: If a shape, dtype or device breaks the signature, hidden is 0, or eps is negative or NaN.

    Source:
        Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, https://arxiv.org/abs/1910.07467.
    """
    acc = accumulation_dtype_of(x, weight)
    normalised, _ = _rms_normalised(x.to(acc), eps)
    return (normalised * (weight.to(acc) + weight_offset)).to(x.dtype).contiguous()


@define_op(
    outputs=("grad_x", "grad_weight"),
    out_dtype={"grad_x": "x", "grad_weight": "weight"},
    same_dtype=(("grad_y", "x"),),
    require=REQUIRED,
)
def rms_norm_backward(
    grad_y: Real[Tensor, "*tokens hidden"],
    x: Real[Tensor, "*tokens hidden"],
    weight: Real[Tensor, "hidden"],
    *,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    output_mask: tuple[bool, ...] = (True, True),
) -> tuple[Real[Tensor, "*tokens hidden"], Real[Tensor, "hidden"]]:
    """Compute the gradients of `rms_norm`.

    With ``r = rsqrt(mean(x**2) + eps)``, ``n = x * r`` and ``g = grad_y * (weight + weight_offset)``:
    ``grad_x = r * (g - n * mean(g * n))`` and ``grad_weight = sum over tokens of grad_y * n``, accumulated in
    float32 (in float64 where x or weight is float64) and rounded once.

    Args:
        grad_y: The gradient of y, ``(*tokens, hidden)``, in x's dtype.
        x: The rows given to `rms_norm`, ``(*tokens, hidden)``.
        weight: The gain given to `rms_norm`, ``(hidden,)``.
        eps: As given to `rms_norm`.
        weight_offset: As given to `rms_norm`.
        output_mask: Which of (grad_x, grad_weight) are wanted.

    Returns:
        grad_x: ``(*tokens, hidden)`` in x's dtype; ``(0,)`` where masked out.
        grad_weight: ``(hidden,)`` in weight's dtype; ``(0,)`` where masked out.

    Raises:
        InvalidArgument: If a shape, dtype or device breaks the signature, hidden is 0, or eps is negative or NaN.

    Source:
        The chain rule on `rms_norm`.
    """
    acc = accumulation_dtype_of(x, weight)
    normalised, inverse_rms = _rms_normalised(x.to(acc), eps)
    grad_x, grad_weight = x.new_empty(0), weight.new_empty(0)
    if output_mask[0]:
        grad = grad_y.to(acc) * (weight.to(acc) + weight_offset)
        grad_x = _rms_grad_input(grad, normalised, inverse_rms).to(x.dtype).contiguous()
    if output_mask[1]:
        grad_weight = (grad_y.to(acc) * normalised).sum_to_size(weight.shape).to(weight.dtype)
    return grad_x, grad_weight


@define_op(
    outputs=("y", "residual_out"),
    out_dtype={"residual_out": "residual"},
    require=REQUIRED,
    gradient="add_rms_norm_backward",
)
def add_rms_norm(
    x: Real[Tensor, "*tokens hidden"],
    residual: Real[Tensor, "*tokens hidden"],
    weight: Real[Tensor, "hidden"],
    *,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
) -> tuple[Real[Tensor, "*tokens hidden"], Real[Tensor, "*tokens hidden"]]:
    """Add a residual to each row, then scale by the reciprocal of the sum's root mean square.

    ``residual_out = x + residual``, computed in float32 and rounded to residual's dtype; then
    ``y = residual_out * rsqrt(mean(residual_out**2) + eps) * (weight + weight_offset)`` of the rounded sum,
    accumulated in float32 and rounded once, to x's dtype. If any tensor is float64, float64 is
    used instead of float32.

    Args:
        x: The output of the previous layer, ``(*tokens, hidden)``.
        residual: The residual stream, ``(*tokens, hidden)``; its dtype may be wider than x's.
        weight: The gain of each column, ``(hidden,)``; its dtype may differ from x's.
        eps: Added to the mean square, in the unit of ``x**2``.
        weight_offset: Added to the weight before it is used; 1.0 in Gemma, which stores weights around 0.

    Returns:
        y: The normalised sum, ``(*tokens, hidden)``, in x's dtype.
        residual_out: The sum, ``(*tokens, hidden)``, in residual's dtype.

    Raises:
        InvalidArgument: If a shape, dtype or device breaks the signature, hidden is 0, or eps is negative or NaN.

    Source:
        Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, https://arxiv.org/abs/1910.07467.
    """
    acc = accumulation_dtype_of(x, residual, weight)
    residual_out = (x.to(acc) + residual.to(acc)).to(residual.dtype).contiguous()
    normalised, _ = _rms_normalised(residual_out.to(acc), eps)
    y = (normalised * (weight.to(acc) + weight_offset)).to(x.dtype)
    return y, residual_out


add_rms_norm_ = in_place(add_rms_norm, x="y", residual="residual_out")


@define_op(
    outputs=("grad_x", "grad_residual", "grad_weight"),
    out_dtype={"grad_x": "grad_y", "grad_residual": "residual_out", "grad_weight": "weight"},
    same_dtype=(("grad_residual_out", "residual_out"),),
    require=REQUIRED,
)
def add_rms_norm_backward(
    grad_y: Real[Tensor, "*tokens hidden"],
    grad_residual_out: Real[Tensor, "*tokens hidden"],
    residual_out: Real[Tensor, "*tokens hidden"],
    weight: Real[Tensor, "hidden"],
    *,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    output_mask: tuple[bool, ...] = (True, True, True),
) -> tuple[Real[Tensor, "*tokens hidden"], Real[Tensor, "*tokens hidden"], Real[Tensor, "hidden"]]:
    """Compute the gradients of `add_rms_norm`.

    With ``s = residual_out``, ``r = rsqrt(mean(s**2) + eps)``, ``n = s * r`` and
    ``g = grad_y * (weight + weight_offset)``: the gradient of the sum is
    ``r * (g - n * mean(g * n)) + grad_residual_out``, and both x and residual receive it, each in its dtype;
    ``grad_weight = sum over tokens of grad_y * n``. The rounding of the sum is treated as the identity.
    Accumulated in float32 (in float64 where one of the tensors is float64) and rounded once.

    Args:
        grad_y: The gradient of y, ``(*tokens, hidden)``, in x's dtype.
        grad_residual_out: The gradient of residual_out, ``(*tokens, hidden)``, in residual's dtype.
        residual_out: The sum that `add_rms_norm` returned, ``(*tokens, hidden)``.
        weight: The gain given to `add_rms_norm`, ``(hidden,)``.
        eps: As given to `add_rms_norm`.
        weight_offset: As given to `add_rms_norm`.
        output_mask: Which of (grad_x, grad_residual, grad_weight) are wanted.

    Returns:
        grad_x: ``(*tokens, hidden)`` in grad_y's dtype; ``(0,)`` where masked out.
        grad_residual: ``(*tokens, hidden)`` in residual_out's dtype; ``(0,)`` where masked out.
        grad_weight: ``(hidden,)`` in weight's dtype; ``(0,)`` where masked out.

    Raises:
        InvalidArgument: If a shape, dtype or device breaks the signature, hidden is 0, or eps is negative or NaN.

    Source:
        The chain rule on `add_rms_norm`.
    """
    acc = accumulation_dtype_of(grad_y, residual_out, weight)
    normalised, inverse_rms = _rms_normalised(residual_out.to(acc), eps)
    grad_x, grad_residual, grad_weight = grad_y.new_empty(0), residual_out.new_empty(0), weight.new_empty(0)
    if output_mask[0] or output_mask[1]:
        grad = grad_y.to(acc) * (weight.to(acc) + weight_offset)
        grad_sum = _rms_grad_input(grad, normalised, inverse_rms) + grad_residual_out.to(acc)
        grad_sum = grad_sum.contiguous()
        if output_mask[0]:
            grad_x = grad_sum.to(grad_y.dtype, copy=True)  # a copy: the two gradients must not share memory
        if output_mask[1]:
            grad_residual = grad_sum.to(residual_out.dtype)
    if output_mask[2]:
        grad_weight = (grad_y.to(acc) * normalised).sum_to_size(weight.shape).to(weight.dtype)
    return grad_x, grad_residual, grad_weight
