"""Routes calls off the fast path: to torch's registration, to autograd, or directly to a plan."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.autograd import profiler

from opmux.callpath.op import Op
from opmux.errors import invalid
from opmux.planning.forced import unknown_backend
from opmux.plugins import loading
from opmux.running import execution, outputs
from opmux.signatures.outputs import several
from opmux.signatures.validation import check_call
from opmux.torch_bridge import autograd, flops, torch_library


def call(op: Op, tensors: tuple[Any, ...], options: Mapping[str, Any], backend: str | None, out: Any) -> Any:
    """Check a call, report what is wrong with it, and route it.

    Raises:
        InvalidArgument: If it breaks the signature.
        UnknownBackend: If ``backend`` names no backend.
        GradientRefused: If a gradient is requested that the op does not define.
        UnsupportedCall: If a torch.func transform is active that the op does not support.
    """
    loading.ensure_loaded()
    tensors = _without_negation(op, tensors)
    registered = torch_library.is_needed((*tensors, *several(out)))
    if registered:
        flops.count_where_counted()
    elif profiler._is_profiler_enabled:  # the dispatcher itself shows registered ops
        with profiler.record_function(f"opmux::{op.name}"):
            return _route(op, tensors, options, backend, out, registered)
    return _route(op, tensors, options, backend, out, registered)


def _route(
    op: Op, tensors: tuple[Any, ...], options: Mapping[str, Any], backend: str | None, out: Any, registered: bool
) -> Any:
    if not registered and backend is None and out is None and torch_library.fits(op)(*tensors, **options):
        # A gradient is due, or the guard did not know the tensors. The shapes are checked; the plan checks the rest.
        return autograd.call(op, tensors, options, None, execution.execute)
    named = op.names(tensors)
    dims, normal = check_call(op.signature, named, options)
    if backend is not None and (complaint := unknown_backend(op, backend)):
        raise complaint
    if out is not None:
        outputs.check_out(op, out, named, dims, normal)
        autograd.refuse_with_out(op, (*tensors, *several(out)))
    if registered:
        return torch_library.call(op, tensors, normal, backend, out)
    if out is not None:
        return execution.execute(op, tensors, normal, backend, out)
    return autograd.call(op, tensors, normal, backend, execution.execute)


def _without_negation(op: Op, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    """Resolve lazily negated views (the imaginary part of a conjugate), whose memory does not hold their values."""
    if not any(isinstance(t, Tensor) and t.is_neg() for t in tensors):
        return tensors
    for name, tensor in op.names(tensors).items():
        if name in op.signature.mutates and isinstance(tensor, Tensor) and tensor.is_neg():
            raise invalid(op.name, name, "a tensor that can be written", "a negated view", "pass .resolve_neg() of it")
    return tuple(t.resolve_neg() if isinstance(t, Tensor) else t for t in tensors)
