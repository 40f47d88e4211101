"""The output projection of a gated MLP in training, which does not keep its input for the backward pass.

Its input, the result of the gate's op, is as large as each of that op's own inputs, which are kept for the op's
gradient anyway. Computing it from them again takes little time beside the products.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional

import opmux
from opmux.nn import autocast_dtype
from opmux_transformers.calls import held_by

RECOMPUTED = "_opmux_recomputed"
"""Attribute of a gated MLP, True where its output projection does not keep its input."""


def projected(name: str, options: Mapping[str, Any], parts: Sequence[Tensor], linear: Any) -> Tensor | None:
    """The result of a linear for what an op gives; the op runs again in the backward pass.

    The gradients are those of calling the two, bit by bit. Not valid if `calls.all_are_watched`.

    Args:
        name: The op's name in `opmux`.
        options: Its options.
        parts: Its tensors, ``(*tokens, ...)``.
        linear: The module that takes its result.

    Returns:
        ``(*tokens, out_features)``. None if the two have to be called: the linear is not torch's own or is watched, it
        would keep nothing for its gradient or the op would not keep its inputs, or something other than plain autograd
        is at work (autocast, torch.func, forward mode, tensor subclasses).
    """
    held = held_by(linear) if torch.is_grad_enabled() else None
    if held is None or not _keeps(*held, parts):
        return None
    apply: Callable[..., Tensor] = _Projected.apply
    return apply(name, options, *held, *parts)


def _keeps(weight: Tensor, bias: Tensor | None, parts: Sequence[Tensor]) -> bool:
    """Whether plain autograd would keep the parts, for the op, and the op's result, for the weight's gradient."""
    dtype = weight.dtype
    return (
        weight.requires_grad
        and any(part.requires_grad for part in parts)
        and all(part.__class__ is Tensor and part.dtype is dtype and part.ndim > 1 for part in parts)
        and weight.__class__ in (nn.Parameter, Tensor)
        and (bias is None or (bias.__class__ in (nn.Parameter, Tensor) and bias.dtype is dtype))
        and autocast_dtype(parts[0]) is None
        and torch._C._functorch.peek_interpreter_stack() is None
        and forward_ad._current_level < 0
    )


class _Projected(torch.autograd.Function):
    """An op and a linear. Products of the backward pass are those that torch takes for a linear's."""

    @staticmethod
    def forward(
        ctx: Any, name: str, options: Mapping[str, Any], weight: Tensor, bias: Tensor | None, *parts: Tensor
    ) -> Tensor:
        ctx.name, ctx.options = name, options
        ctx.save_for_backward(weight, *parts)
        op: Callable[..., Tensor] = getattr(opmux, name)
        return functional.linear(op(*parts, **options), weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        _, _, of_weight, of_bias, *of_parts = ctx.needs_input_grad
        weight, *parts = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        grad_weight = grad_bias = None
        if of_weight:
            again = getattr(opmux, ctx.name)(*parts, **ctx.options)
            grad_weight = rows.t().mm(again.reshape(-1, again.shape[-1]))
            del again  # before there is memory for its gradient
        if of_bias:
            grad_bias = rows.sum(0)
        grad_parts: list[Any] = [None] * len(parts)
        if any(of_parts):
            given = rows.mm(weight).view(*grad.shape[:-1], weight.shape[1])
            backward = getattr(opmux, f"{ctx.name}_backward")
            results = backward(given, *parts, **ctx.options, output_mask=tuple(of_parts))
            several = results if isinstance(results, tuple) else (results,)
            grad_parts = [one if due else None for one, due in zip(several, of_parts, strict=True)]
        return None, None, grad_weight, grad_bias, *grad_parts
