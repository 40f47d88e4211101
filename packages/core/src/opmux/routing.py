"""Where a call goes that is not plain: through torch's registration, through autograd, or straight to a plan."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from opmux import autograd, dispatch, loading, torch_library
from opmux.errors import UnsupportedCall
from opmux.op import Op
from opmux.validation import check_call

PLAIN = frozenset({Tensor, torch.nn.Parameter})
"""The classes of tensors that the direct way takes."""


def call(op: Op, tensors: tuple[Any, ...], options: Mapping[str, Any], backend: str | None, out: Any) -> Any:
    """Check a call, explaining what is wrong with it, and send it where it belongs.

    Raises:
        InvalidArgument: where it breaks the signature.
        UnknownBackend: where ``backend`` names none.
        GradientRefused: where a gradient is asked for that the op does not define.
    """
    loading.ensure_loaded()
    named = op.names(tensors)
    dims, normal = check_call(op.signature, named, options)
    if backend is not None and (complaint := dispatch.unknown_backend(op, backend)):
        raise complaint
    if out is not None:
        dispatch.check_out(op, out, named, dims, normal)
        dispatch.refuse_gradient_with_out(op, tensors)
    if _needs_registration(tensors):
        return _registered(op, tensors, normal, backend, out)
    if torch._C._functorch.peek_interpreter_stack() is not None:
        if out is not None:
            raise UnsupportedCall(f"{op.name}: out= is not supported under torch.func transforms; leave it away")
        return autograd.transformed_call(op, tensors, normal, backend, run)
    if forward_ad._current_level >= 0 and any(_has_tangent(t) for t in tensors):
        raise autograd.forward_mode(op.name)
    if autograd.gradient_due(tensors):
        dispatch.refuse_gradient_into_mutated(op, named)
        return autograd.differentiable_call(op, tensors, normal, backend, run)
    return dispatch.execute(op, tensors, normal, backend, out)


def run(op: Op, tensors: Sequence[Any], options: Mapping[str, Any], backend: str | None) -> Any:
    """Run on plain tensors, inside an autograd function."""
    if _needs_registration(tensors):
        return torch_library.invoke_registered(op, tensors, options, backend)
    return dispatch.execute(op, tensors, options, backend)


def _needs_registration(tensors: Sequence[Any]) -> bool:
    """Dispatch and function modes and tensor subclasses must see one op, not what computes it."""
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or any(t is not None and t.__class__ not in PLAIN for t in tensors)
    )


def _registered(op: Op, tensors: tuple[Any, ...], options: Mapping[str, Any], backend: str | None, out: Any) -> Any:
    if out is None:
        return torch_library.overload(op)(*tensors, **options, backend=backend)
    outs = out if isinstance(out, (tuple, list)) else (out,)
    names = torch_library.out_names(op.signature)
    arguments = dict(zip(names, outs, strict=True))
    getattr(torch.ops.opmux, op.name).out(*tensors, **options, backend=backend, **arguments)
    return out


def _has_tangent(tensor: Any) -> bool:
    return tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None
