"""Backward ops computed by PyTorch's autograd: the graph is built once, untimed, and run backward at each call."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from opmux.bench import formulations as f

Named = Mapping[str, Any]


@dataclass(frozen=True)
class Graph:
    """A forward that has run: its outputs, the tensors to differentiate with respect to, and the incoming gradients."""

    outputs: Sequence[Tensor]
    leaves: Sequence[Tensor]
    grads: Sequence[Tensor]


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_()


def _through(formulation: Callable[..., Any], leaves: Sequence[str], grads: Sequence[str], *options: str) -> Any:
    """A builder for backward ops that take all arguments of their forward."""

    def build(given: Named) -> Graph:
        made = [_leaf(given[name]) for name in leaves]
        outputs = given["through"](formulation)(*made, **{name: given[name] for name in options})
        return Graph(outputs if isinstance(outputs, tuple) else (outputs,), made, [given[name] for name in grads])

    return build


def _layer_norm(given: Named) -> Graph:
    x, weight, bias = _leaf(given["x"]), _leaf(given["weight"]), _leaf(torch.zeros_like(given["weight"]))
    return Graph(
        (given["through"](f.layer_norm)(x, weight, bias, eps=given["eps"]),), (x, weight, bias), (given["grad_y"],)
    )


def _add_rms_norm(given: Named) -> Graph:
    residual, weight = _leaf(given["residual_out"]), _leaf(given["weight"])
    x = _leaf(torch.zeros_like(residual))
    outputs = given["through"](f.add_rms_norm)(
        x, residual, weight, eps=given["eps"], weight_offset=given["weight_offset"]
    )
    return Graph(outputs, (x, residual, weight), (given["grad_y"], given["grad_residual_out"]))


def _add_layer_norm(given: Named) -> Graph:
    residual, weight = _leaf(given["residual_out"]), _leaf(given["weight"])
    x, bias = _leaf(torch.zeros_like(residual)), _leaf(torch.zeros_like(weight))
    outputs = given["through"](f.add_layer_norm)(x, residual, weight, bias, eps=given["eps"])
    return Graph(outputs, (x, residual, weight, bias), (given["grad_y"], given["grad_residual_out"]))


def _attention_varlen(given: Named) -> Graph:
    q, k, v = (_leaf(given[name]) for name in ("q", "k", "v"))
    offsets = (given["cu_seqlens_q"].tolist(), given["cu_seqlens_k"].tolist())
    out = f.each_sequence(*offsets, f.attention)(q, k, v, causal=given["causal"])
    return Graph((out,), (q, k, v), (given["grad_out"],))


def _cross_entropy(given: Named) -> Graph:
    logits = _leaf(given["logits"])
    loss = given["through"](f.cross_entropy)(logits, given["target"], reduction=given["reduction"])
    return Graph((loss,), (logits,), (given["grad_loss"],))


def _fused_cross_entropy(given: Named) -> Graph:
    x, weight = _leaf(given["x"]), _leaf(given["weight"])
    loss = given["through"](f.fused_linear_cross_entropy)(x, weight, given["target"], reduction=given["reduction"])
    return Graph((loss,), (x, weight), (given["grad_loss"],))


_BUILDERS: dict[str, Callable[[Named], Graph]] = {
    "rms_norm_backward": _through(f.rms_norm, ("x", "weight"), ("grad_y",), "eps", "weight_offset"),
    "add_rms_norm_backward": _add_rms_norm,
    "layer_norm_backward": _layer_norm,
    "add_layer_norm_backward": _add_layer_norm,
    "silu_and_mul_backward": _through(f.silu_and_mul, ("x",), ("grad_out",)),
    "gelu_and_mul_backward": _through(f.gelu_and_mul, ("x",), ("grad_out",), "approximate"),
    "silu_mul_backward": _through(f.silu_mul, ("gate", "up"), ("grad_out",)),
    "gelu_mul_backward": _through(f.gelu_mul, ("gate", "up"), ("grad_out",), "approximate"),
    "attention_backward": _through(f.attention, ("q", "k", "v"), ("grad_out",), "causal"),
    "attention_varlen_backward": _attention_varlen,
    "merge_attention_states_backward": _through(
        f.merge_attention_states, ("out_a", "lse_a", "out_b", "lse_b"), ("grad_out", "grad_lse")
    ),
    "cross_entropy_backward": _cross_entropy,
    "fused_linear_cross_entropy_backward": _fused_cross_entropy,
}


def has_gradient(op: str) -> bool:
    """Whether the op is a backward op that autograd can compute."""
    return op in _BUILDERS


def backward_call(
    op: str, given: Named, through: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda built: built
) -> Callable[[], tuple[Tensor, ...]]:
    """The call that is timed: autograd from the outputs to the leaves, with the graph retained.

    Args:
        through: a transformation of the forward's formulation, such as torch.compile.
    """
    with torch.enable_grad():
        graph = _BUILDERS[op]({**given, "through": through})
    outputs, leaves, grads = list(graph.outputs), list(graph.leaves), list(graph.grads)
    return lambda: torch.autograd.grad(outputs, leaves, grads, retain_graph=True)
