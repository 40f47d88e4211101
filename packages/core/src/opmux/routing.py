"""Where a call goes that is not plain: through torch's registration, through autograd, or straight to a plan."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from opmux import autograd, dispatch, loading, outputs, torch_library
from opmux.op import PLAIN, Op
from opmux.validation import check_call


def call(op: Op, tensors: tuple[Any, ...], options: Mapping[str, Any], backend: str | None, out: Any) -> Any:
    """Check a call, explaining what is wrong with it, and send it where it belongs.

    Raises:
        InvalidArgument: where it breaks the signature.
        UnknownBackend: where ``backend`` names none.
        GradientRefused: where a gradient is asked for that the op does not define.
        UnsupportedCall: where a torch.func transform is at work that the op does not support.
    """
    loading.ensure_loaded()
    named = op.names(tensors)
    dims, normal = check_call(op.signature, named, options)
    if backend is not None and (complaint := dispatch.unknown_backend(op, backend)):
        raise complaint
    if out is not None:
        outputs.check_out(op, out, named, dims, normal)
        autograd.refuse_with_out(op, tensors)
    if _needs_registration(tensors):
        return torch_library.call(op, tensors, normal, backend, out)
    if out is not None:
        return dispatch.execute(op, tensors, normal, backend, out)
    return autograd.call(op, tensors, normal, backend, dispatch.execute)


def _needs_registration(tensors: Sequence[Any]) -> bool:
    """Modes, transforms and tensor subclasses must see one op, not what computes it."""
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or autograd.under_transform()
        or any(t is not None and t.__class__ not in PLAIN for t in tensors)
    )
