"""Layer norm, alone or after a residual sum, with its gradients.

Sums are accumulated in float32 (float64 if any tensor is float64), and results are rounded once.
"""

import torch
from torch import Tensor

from opmux.declared.caveats import Caveat
from opmux.definition import define_op
from opmux.dtypes import Real
from opmux.ops._norms import REQUIRED, accumulation_dtype_of


def _standardised(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return (x - mean(x)) / std(x), and 1 / std(x) as a column; the variance is the biased one."""
    centred = x - x.mean(dim=-1, keepdim=True)
    inverse_std = torch.rsqrt(centred.square().mean(dim=-1, keepdim=True) + eps)
    return centred * inverse_std, inverse_std


def _standard_grad_input(grad: Tensor, normalised: Tensor, inverse_std: Tensor) -> Tensor:
    """Return the gradient with respect to the x of `_standardised`, given that of its first result."""
    grad_mean = grad.mean(dim=-1, keepdim=True)
    return inverse_std * (grad - grad_mean - normalised * (grad * normalised).mean(dim=-1, keepdim=True))


def _bias_gradient(grad_y: Tensor, acc: torch.dtype, weight: Tensor) -> Tensor:
    """Return the bias's gradient, in weight's dtype: a copy, because the sum of a single row is the row itself."""
    return grad_y.to(acc).sum_to_size(weight.shape).to(weight.dtype, copy=True)


@define_op(outputs=("y",), same_dtype=(("weight", "bias"),), require=REQUIRED, gradient="layer_norm_backward")
def layer_norm(
    x: Real[Tensor, "*tokens hidden"],
    weight: Real[Tensor, "hidden"],
    bias: Real[Tensor, "hidden"] | None = None,
    *,
    eps: float = 1e-5,
) -> Real[Tensor, "*tokens hidden"]:
    """Shift each row to mean zero and scale it to variance one.

    ``y = (x - mean(x)) * rsqrt(var(x) + eps) * weight + bias`` with the biased variance
    ``var(x) = mean((x - mean(x))**2)``, accumulated in float32 (in float64 where x or weight is float64) and
    rounded once, to x's dtype.

    A row that holds an infinity or a NaN is all NaN.

    Args:
        x: The rows, ``(*tokens, hidden)``.
        weight: The gain of each column, ``(hidden,)``; its dtype may differ from x's.
        bias: Added to each column, ``(hidden,)``, in weight's dtype; None adds nothing.
        eps: Added to the variance, in the unit of ``x**2``.

    Returns:
        y: The normalised rows, ``(*tokens, hidden)``, in x's dtype.

    Raises:
        InvalidArgument: If a shape, dtype or device breaks the signature, hidden is 0, or eps is negative or NaN.

    Source:
        Ba, Kiros and Hinton, "Layer Normalization", 2016, https://arxiv.org/abs/1607.06450.
    """
    acc = accumulation_dtype_of(x, weight)
    normalised, _ = _standardised(x.to(acc), eps)
    y = normalised * weight.to(acc)
    if bias is not None:
        y = y + bias.to(acc)
    return y.to(x.dtype).contiguous()


@define_op(
    outputs=("grad_x", "grad_weight", "grad_bias"),
    out_dtype={"grad_x": "x", "grad_weight": "weight", "grad_bias": "weight"},
    same_dtype=(("grad_y", "x"),),
    require=REQUIRED,
    caveats=(Caveat.NONFINITE_KIND,),
)
def layer_norm_backward(
    grad_y: Real[Tensor, "*tokens hidden"],
    x: Real[Tensor, "*tokens hidden"],
    weight: Real[Tensor, "hidden"],
    *,
    eps: float = 1e-5,
    output_mask: tuple[bool, ...] = (True, True, True),
) -> tuple[Real[Tensor, "*tokens hidden"], Real[Tensor, "hidden"], Real[Tensor, "hidden"]]:
    """Compute the gradients of `layer_norm`.

    With ``r = rsqrt(var(x) + eps)``, ``n = (x - mean(x)) * r`` and ``g = grad_y * weight``:
    ``grad_x = r * (g - mean(g) - n * mean(g * n))``, ``grad_weight = sum over tokens of grad_y * n`` and
    ``grad_bias = sum over tokens of grad_y``, accumulated in float32 (in float64 where x or weight is
    float64) and rounded once.

    Args:
        grad_y: The gradient of y, ``(*tokens, hidden)``, in x's dtype.
        x: The rows given to `layer_norm`, ``(*tokens, hidden)``.
        weight: The gain given to `layer_norm`, ``(hidden,)``.
        eps: As given to `layer_norm`.
        output_mask: Which of (grad_x, grad_weight, grad_bias) are wanted.

    Returns:
        grad_x: ``(*tokens, hidden)`` in x's dtype; ``(0,)`` where masked out.
        grad_weight: ``(hidden,)`` in weight's dtype; ``(0,)`` where masked out.
        grad_bias: ``(hidden,)`` in weight's dtype, which is the bias's too; ``(0,)`` where masked out.

    Raises:
        InvalidArgument: If a shape, dtype or device breaks the signature, hidden is 0, or eps is negative or NaN.

    Source:
        The chain rule on `layer_norm`.
    """
    acc = accumulation_dtype_of(x, weight)
    grad_x, grad_weight, grad_bias = x.new_empty(0), weight.new_empty(0), weight.new_empty(0)
    if output_mask[0] or output_mask[1]:
        normalised, inverse_std = _standardised(x.to(acc), eps)
        if output_mask[0]:
            grad = grad_y.to(acc) * weight.to(acc)
            grad_x = _standard_grad_input(grad, normalised, inverse_std).to(x.dtype).contiguous()
        if output_mask[1]:
            grad_weight = (grad_y.to(acc) * normalised).sum_to_size(weight.shape).to(weight.dtype)
    if output_mask[2]:
        grad_bias = _bias_gradient(grad_y, acc, weight)
    return grad_x, grad_weight, grad_bias


@define_op(
    outputs=("y", "residual_out"),
    out_dtype={"residual_out": "residual"},
    same_dtype=(("weight", "bias"),),
    require=REQUIRED,
    gradient="add_layer_norm_backward",
)
def add_layer_norm(
    x: Real[Tensor, "*tokens hidden"],
    residual: Real[Tensor, "*tokens hidden"],
    weight: Real[Tensor, "hidden"],
    bias: Real[Tensor, "hidden"] | None = None,
    *,
    eps: float = 1e-5,
) -> tuple[Real[Tensor, "*tokens hidden"], Real[Tensor, "*tokens hidden"]]:
    """Add a residual to each row, then shift the sum to mean zero and scale it to variance one.

    ``s = x + residual``, computed in float32 and rounded to residual's dtype, is residual_out; then
    ``y = (s - mean(s)) * rsqrt(var(s) + eps) * weight + bias`` of the rounded sum, with the biased variance
    ``var(s) = mean((s - mean(s))**2)``, accumulated in float32 and rounded once, to x's dtype. If any
    tensor is float64, float64 is used instead of float32.

    Args:
        x: The output of the previous layer, ``(*tokens, hidden)``.
        residual: The residual stream, ``(*tokens, hidden)``; its dtype may be wider than x's.
        weight: The gain of each column, ``(hidden,)``; its dtype may differ from x's.
        bias: Added to each column, ``(hidden,)``, in weight's dtype; None adds nothing.
        eps: Added to the variance, in the unit of ``x**2``.

    Returns:
        y: The normalised sum, ``(*tokens, hidden)``, in x's dtype.
        residual_out: The sum, ``(*tokens, hidden)``, in residual's dtype.

    Raises:
        InvalidArgument: If a shape, dtype or device breaks the signature, hidden is 0, or eps is negative or NaN.

    Source:
        Ba, Kiros and Hinton, "Layer Normalization", 2016, https://arxiv.org/abs/1607.06450.
    """
    acc = accumulation_dtype_of(x, residual, weight)
    residual_out = (x.to(acc) + residual.to(acc)).to(residual.dtype).contiguous()
    normalised, _ = _standardised(residual_out.to(acc), eps)
    y = normalised * weight.to(acc)
    if bias is not None:
        y = y + bias.to(acc)
    return y.to(x.dtype), residual_out


@define_op(
    outputs=("grad_x", "grad_residual", "grad_weight", "grad_bias"),
    out_dtype={
        "grad_x": "grad_y",
        "grad_residual": "residual_out",
        "grad_weight": "weight",
        "grad_bias": "weight",
    },
    same_dtype=(("grad_residual_out", "residual_out"),),
    require=REQUIRED,
)
def add_layer_norm_backward(
    grad_y: Real[Tensor, "*tokens hidden"],
    grad_residual_out: Real[Tensor, "*tokens hidden"],
    residual_out: Real[Tensor, "*tokens hidden"],
    weight: Real[Tensor, "hidden"],
    *,
    eps: float = 1e-5,
    output_mask: tuple[bool, ...] = (True, True, True, True),
) -> tuple[
    Real[Tensor, "*tokens hidden"],
    Real[Tensor, "*tokens hidden"],
    Real[Tensor, "hidden"],
    Real[Tensor, "hidden"],
]:
    """Compute the gradients of `add_layer_norm`.

    With ``s = residual_out``, ``r = rsqrt(var(s) + eps)``, ``n = (s - mean(s)) * r`` and
    ``g = grad_y * weight``: the gradient of the sum is
    ``r * (g - mean(g) - n * mean(g * n)) + grad_residual_out``, and both x and residual receive it, each in
    its dtype; ``grad_weight = sum over tokens of grad_y * n`` and
    ``grad_bias = sum over tokens of grad_y``. The rounding of the sum is treated as the identity. Accumulated in
    float32 (in float64 where one of the tensors is float64) and rounded once.

    Args:
        grad_y: The gradient of y, ``(*tokens, hidden)``, in x's dtype.
        grad_residual_out: The gradient of residual_out, ``(*tokens, hidden)``, in residual's dtype.
        residual_out: The sum that `add_layer_norm` returned, ``(*tokens, hidden)``.
        weight: The gain given to `add_layer_norm`, ``(hidden,)``.
        eps: As given to `add_layer_norm`.
        output_mask: Which of (grad_x, grad_residual, grad_weight, grad_bias) are wanted.

    Returns:
        grad_x: ``(*tokens, hidden)`` in grad_y's dtype; ``(0,)`` where masked out.
        grad_residual: ``(*tokens, hidden)`` in residual_out's dtype; ``(0,)`` where masked out.
        grad_weight: ``(hidden,)`` in weight's dtype; ``(0,)`` where masked out.
        grad_bias: ``(hidden,)`` in weight's dtype, which is the bias's too; ``(0,)`` where masked out.

    Raises:
        InvalidArgument: If a shape, dtype or device breaks the signature, hidden is 0, or eps is negative or NaN.

    Source:
        The chain rule on `add_layer_norm`.
    """
    acc = accumulation_dtype_of(grad_y, residual_out, weight)
    grad_x, grad_residual = grad_y.new_empty(0), residual_out.new_empty(0)
    grad_weight, grad_bias = weight.new_empty(0), weight.new_empty(0)
    if any(output_mask[:3]):
        normalised, inverse_std = _standardised(residual_out.to(acc), eps)
        if output_mask[0] or output_mask[1]:
            grad = grad_y.to(acc) * weight.to(acc)
            grad_sum = _standard_grad_input(grad, normalised, inverse_std) + grad_residual_out.to(acc)
            grad_sum = grad_sum.contiguous()
            if output_mask[0]:
                grad_x = grad_sum.to(grad_y.dtype, copy=True)  # a copy: the two must not share memory
            if output_mask[1]:
                grad_residual = grad_sum.to(residual_out.dtype)
        if output_mask[2]:
            grad_weight = (grad_y.to(acc) * normalised).sum_to_size(weight.shape).to(weight.dtype)
    if output_mask[3]:
        grad_bias = _bias_gradient(grad_y, acc, weight)
    return grad_x, grad_residual, grad_weight, grad_bias
