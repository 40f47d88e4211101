"""TileGym's own call for a call that `figures.py` measures, on the same tensors, as its documentation has it.

TileGym tunes itself: its first call of a shape times its configs, and later ones take the best.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from cases import Example
from torch import Tensor


def peer(example: Example, tensors: Sequence[Any]) -> Callable[[], Any] | None:
    """TileGym's call; None where it has none for the op, or for its options.

    Raises:
        ImportError: TileGym is not installed.
    """
    from tilegym import ops

    make = CALLS.get(example.op)
    return None if make is None else make(ops, example.options, *tensors)


def _rms_norm(ops: Any, options: Mapping[str, Any], x: Tensor, w: Tensor) -> Callable[[], Any]:
    return lambda: ops.rms_norm(x, (x.shape[-1],), w, 1e-6)


def _layer_norm(ops: Any, options: Mapping[str, Any], x: Tensor, w: Tensor, b: Tensor) -> Callable[[], Any]:
    return lambda: ops.layer_norm_legacy(x, (x.shape[-1],), w, b, 1e-5)


def _silu_and_mul(ops: Any, options: Mapping[str, Any], x: Tensor) -> Callable[[], Any]:
    return lambda: ops.silu_and_mul(x)


def _silu_and_mul_backward(ops: Any, options: Mapping[str, Any], grad: Tensor, x: Tensor) -> Callable[[], Any]:
    """Its own gradient, which joins the two halves by torch's `cat`."""
    x = x.detach().requires_grad_()
    y = ops.silu_and_mul(x)
    return lambda: torch.autograd.grad(y, x, grad, retain_graph=True)


def _gelu_and_mul(ops: Any, options: Mapping[str, Any], x: Tensor) -> Callable[[], Any]:
    """It takes the gate from the second half: other numbers, the same work."""
    return lambda: ops.activation.geglu(x, -1, options["approximate"])


def _rms_norm_backward(ops: Any, options: Mapping[str, Any], grad: Tensor, x: Tensor, w: Tensor) -> Callable[[], Any]:
    """Its own gradient, which is given the reciprocal deviations of the forward pass."""
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    y = ops.rms_norm(x, (x.shape[-1],), w, 1e-6)
    return lambda: torch.autograd.grad(y, (x, w), grad, retain_graph=True)


def _rope(
    ops: Any, options: Mapping[str, Any], q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, _: None
) -> Callable[[], Any]:
    """In place, on heads before tokens, with tables for both halves."""
    q, k = q.transpose(1, 2), k.transpose(1, 2)
    cos, sin = (torch.cat([table, table], dim=-1)[None] for table in (cos, sin))
    return lambda: ops.apply_rope_base(q, k, cos, sin)


def _linear(ops: Any, options: Mapping[str, Any], x: Tensor, w: Tensor, _: None) -> Callable[[], Any]:
    """The persistent kernel: the other one takes no weight of rows for outputs."""
    return lambda: ops.matmul(x, w, trans_a=False, trans_b=True, static_persistent=True)


def _attention(
    ops: Any, options: Mapping[str, Any], q: Tensor, k: Tensor, v: Tensor, _: None
) -> Callable[[], Any]:  # fmt: skip
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return lambda: ops.fmha(q, k, v, is_causal=bool(options["causal"]))


def _scaled_linear(
    ops: Any, options: Mapping[str, Any], x: Tensor, w: Tensor, of_x: Tensor, of_w: Tensor, _: None
) -> Callable[[], Any] | None:
    if of_x.shape[1] == 1:
        return None  # scales of rows
    return lambda: ops.w8a8_block_fp8_matmul(x, w, of_x, of_w, [128, 128], output_dtype=options["out_dtype"])


CALLS: Mapping[str, Callable[..., Callable[[], Any] | None]] = {
    "rms_norm": _rms_norm,
    "rms_norm_backward": _rms_norm_backward,
    "layer_norm": _layer_norm,
    "silu_and_mul": _silu_and_mul,
    "silu_and_mul_backward": _silu_and_mul_backward,
    "gelu_and_mul": _gelu_and_mul,
    "apply_rope": _rope,
    "linear": _linear,
    "attention": _attention,
    "scaled_linear": _scaled_linear,
}
"""By op, what makes TileGym's call of its name's function, the options and the tensors."""
