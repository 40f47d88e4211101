"""Norms by torch's own fused kernels."""

import torch
from torch import Tensor

aten = torch.ops.aten


def rms_norm(x: Tensor, weight: Tensor, *, eps: float, weight_offset: float) -> Tensor:
    """Compute ``opmux.rms_norm``; the record admits no weight offset."""
    y: Tensor = aten._fused_rms_norm(x, list(weight.shape), weight, eps)[0]
    return y


def rms_norm_backward(
    grad_y: Tensor, x: Tensor, weight: Tensor, *, eps: float, weight_offset: float, output_mask: tuple[bool, ...]
) -> tuple[Tensor, Tensor]:
    """Compute ``opmux.rms_norm_backward``; the forward runs again, for the statistics that the op does not keep."""
    shape = list(weight.shape)
    _, inverse_rms = aten._fused_rms_norm(x, shape, weight, eps)
    grads = aten._fused_rms_norm_backward(grad_y, x, shape, inverse_rms, weight, list(output_mask))
    return _given(grads[0], x), _given(grads[1], weight)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float) -> Tensor:
    """Compute ``opmux.layer_norm``."""
    y: Tensor = aten.native_layer_norm(x, list(weight.shape), weight, bias, eps)[0]
    return y


def layer_norm_backward(
    grad_y: Tensor, x: Tensor, weight: Tensor, *, eps: float, output_mask: tuple[bool, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute ``opmux.layer_norm_backward``; the forward runs again, for the statistics that the op does not keep."""
    shape = list(weight.shape)
    _, mean, inverse_std = aten.native_layer_norm(x, shape, weight, None, eps)
    grads = aten.native_layer_norm_backward(
        grad_y, x, shape, mean, inverse_std, weight, weight, list(output_mask)
    )  # of the bias only its form is read, which is the weight's
    return _given(grads[0], x), _given(grads[1], weight), _given(grads[2], weight)


def _given(grad: Tensor | None, argument: Tensor) -> Tensor:
    """A gradient; an empty tensor for one that was not asked for."""
    return argument.new_empty(0) if grad is None else grad.contiguous()
