"""``out=``: checking the tensors that the caller provides for the results, and writing into them."""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from opmux.callpath import wrappers
from opmux.callpath.op import Op
from opmux.callpath.plans import PlanTable, Writer
from opmux.errors import InvalidArgument, invalid
from opmux.running.targets import Plan, bump_version
from opmux.signatures import memory
from opmux.signatures.outputs import copy_into, forms, several, shares_memory
from opmux.signatures.validation import check_call, describe


def check_out(
    op: Op, out: Any, tensors: Mapping[str, Any], dims: Mapping[str, Any], options: Mapping[str, Any]
) -> None:
    """Check number, shapes, dtypes, device and memory of ``out=`` against the outputs; any strides are allowed.

    Raises:
        InvalidArgument: where it does not fit.
    """
    wanted = op.signature.outputs
    listed = isinstance(out, (tuple, list))
    outs = out if listed else (out,)
    if len(wanted) == 1 and listed:
        raise invalid(op.name, "out", "a tensor", f"a {type(out).__name__} of {len(outs)}", "pass the tensor itself")
    if len(outs) != len(wanted):
        names = ", ".join(o.name for o in wanted)
        raise InvalidArgument(
            f"{op.name}: `out` expected {len(wanted)} tensors ({names}), got {len(outs)}; pass a tuple of that length"
        )
    for value, form in zip(outs, forms(op.signature, tensors, dims, options), strict=True):
        label = "out" if len(wanted) == 1 else f"out[{form.name}]"
        if not isinstance(value, Tensor):
            raise invalid(op.name, label, str(form), describe(value), "pass a tensor")
        if value.is_nested or value.layout is not torch.strided:
            layout = "a nested tensor" if value.is_nested else f"layout {value.layout}"
            raise invalid(op.name, label, "a strided tensor", layout, "make it with torch.empty")
        if not form.fits(value):
            raise InvalidArgument(
                f"{op.name}: `{label}` expected {form}, got {describe(value)} on {value.device}; "
                "make it with torch.empty of that shape, dtype and device"
            )
        if value.is_neg():  # a target writes into memory, which holds the values with the other sign
            raise invalid(op.name, label, "a tensor that can be written", "a negated view", "make it with torch.empty")
        if value.is_inference() and not torch.is_inference_mode_enabled():
            raise invalid(
                op.name, label, "a tensor that can be written", "one of inference mode, which is off",
                "make it outside of inference mode, or call under torch.inference_mode()",
            )  # fmt: skip
        if memory.has_memory(value) and memory.overlaps_itself(value):
            raise InvalidArgument(
                f"{op.name}: `{label}` expected a tensor whose elements do not overlap, got strides "
                f"{list(value.stride())}; pass a tensor that is not expanded"
            )
        if value.requires_grad and torch.is_grad_enabled():
            raise InvalidArgument(
                f"{op.name}: `{label}` expected a tensor that requires no gradient, got one that does; "
                "out= does not support autograd: pass out.detach(), or omit out="
            )

    for first, second in itertools.combinations(outs, 2):
        if memory.has_memory(first) and memory.has_memory(second) and memory.overlap(first, second):
            raise invalid(op.name, "out", "tensors of their own", "two in one memory", "pass tensors that share none")


def write_first(table: PlanTable, key: Any, tensors: tuple[Any, ...], options: Mapping[str, Any], out: Any) -> None:
    """Check a call with ``out=`` in full and run it: what follows behind the same guard is held to shapes and memory.

    Raises:
        InvalidArgument: where an argument or ``out`` does not fit.
    """
    op = table.state.op
    named = op.names(tensors)
    dims, normal = check_call(op.signature, named, options)
    check_out(op, out, named, dims, normal)
    run_into(table, key, tensors, normal, out)


def writing(op: Op, plan: Plan, run: Callable[..., Any]) -> Callable[..., Any]:
    """A plan's callable that takes ``out=`` and returns it; no argument may share its memory."""
    made: Callable[..., Any] = _writer(op, plan.implementation.takes_out)(run)
    return made


@functools.cache
def _writer(op: Op, takes_out: bool) -> Callable[..., Any]:
    return wrappers.make_writer(op.signature, takes_out, bump_version)


WRITER = Writer(write_first, writing)


def run_into(table: PlanTable, key: Any, tensors: Sequence[Any], options: Mapping[str, Any], out: Any) -> Any:
    """Write the results into the caller's tensors: by the target itself where it takes ``out``, else by a copy."""
    outs = several(out)
    aliased = any(_aliases(o, t) for o in outs for t in tensors if t is not None)
    plan: Plan | None = table.plans.get(key)
    run = table.get(key)
    if run is not None and plan is not None and plan.implementation.takes_out and not aliased:
        run(*tensors, **options, out=out)
        for target in outs:
            bump_version(target)
        return out
    copy_into(out, table[key](*tensors, **options))
    return out


def _aliases(out: Any, argument: Any) -> bool:
    """Whether two tensors lie in one storage, or in storages that overlap, as those of arrays of another library do."""
    if shares_memory(out, argument):
        return True
    return memory.has_memory(out) and memory.has_memory(argument) and memory.overlap(out, argument)
