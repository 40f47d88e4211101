"""The first call with a key, and `bind`: check, plan, run, store.

A plan table comes here for a key that it does not have; the next call with that key runs the stored plan.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from opmux.callpath import wrappers
from opmux.callpath.op import Op
from opmux.callpath.plans import Forced, PlanTable
from opmux.errors import BuildDeferred, CaptureRefused, InvalidArgument
from opmux.planning.forced import unknown_backend
from opmux.planning.plan import plan
from opmux.plugins import loading
from opmux.running import background, faults, modes
from opmux.running.attempt import attempt_of
from opmux.running.execution import execute
from opmux.running.observe import observed, open_traces
from opmux.running.results import first_run
from opmux.signatures.validation import describe_call


def plan_and_run(table: PlanTable, key: Any, /, *tensors: Any, **options: Any) -> Any:
    """Check the call, plan it, run the plan for the first time, and store it in the table."""
    op, forced = table.state.op, key.backend if isinstance(key, Forced) else None
    _refuse_capture(op, tensors, options, "this call has none yet", "run the call once before the capture")
    attempt = attempt_of(op, table.state, tensors, options, forced)
    call = attempt.call
    refuse_gradient_into_mutated(op, call.tensors)
    if tensors[0].is_meta:
        return _as_returned(op.signature.empty_outputs(call.tensors, call.dims, call.options))
    if loading.ensure_loaded() or op.state is not table.state:
        return execute(op, tensors, call.options, forced)  # under a key of the new table
    if forced is not None and (complaint := unknown_backend(op, forced)):
        raise complaint
    while True:
        made = plan(attempt)
        run = observed(op, made) if open_traces else made.run
        try:
            with background.building_here() if made.waits else nullcontext():
                results = first_run(attempt, made.implementation, run)
        except Exception as error:
            faults.judge(attempt, made.implementation, error)
            continue  # what failed is in quarantine now, or being built
        if made.job is not None:
            run = background.until_built(op, table, key, run, made.awaits, made.job)
        table.store(key, run, made)
        return results


def bind(op: Op, tensors: Sequence[Any], options: Mapping[str, Any], backend: str | None) -> Callable[..., Any]:
    """Plan for these arguments; return the planned target with its options fixed, and nothing else around it."""
    arguments, filled = op.bind_arguments(tensors, options)
    remedy = "bind before the capture, and call what it returns inside"
    _refuse_capture(op, arguments, filled, "bind makes one", remedy)
    loading.ensure_loaded()
    if backend is not None and (complaint := unknown_backend(op, backend)):
        raise complaint
    attempt = attempt_of(op, op.state, arguments, filled, backend)
    present = frozenset(name for name, tensor in attempt.call.tensors.items() if tensor is not None)
    run = plan(attempt, awaits=False).run
    retry = (BuildDeferred, background.run_and_build)
    bound: Callable[..., Any] = wrappers.make_bound(op.signature, run, dict(attempt.call.options), present, retry)
    return bound


def _refuse_capture(op: Op, tensors: Sequence[Any], options: Mapping[str, Any], why: str, remedy: str) -> None:
    if modes.capturing():
        raise CaptureRefused(
            f"{op.name}: no plan is made during graph capture, and {why}\n"
            f"  call:      {describe_call(op.signature, tensors, options)}\n"
            f"  try:       {remedy}"
        )


def _as_returned(results: tuple[Tensor, ...]) -> Any:
    if not results:
        return None
    return results[0] if len(results) == 1 else results


def refuse_gradient_into_mutated(op: Op, named: Mapping[str, Any]) -> None:
    """A tensor that is written in place must not require a gradient.

    Raises:
        InvalidArgument: names the tensor.
    """
    if op.signature.mutates and torch.is_grad_enabled():
        for name in op.signature.mutates:
            if named[name].requires_grad:
                raise InvalidArgument(
                    f"{op.name}: `{name}` expected a tensor that requires no gradient, since it is written in place, "
                    f"got one that does; pass {name}.detach(), or call it under torch.no_grad()"
                )
