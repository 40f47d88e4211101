"""Running a planned call on real tensors, and recovering from exceptions."""

from collections.abc import Mapping, Sequence
from typing import Any

from opmux.callpath.op import Op
from opmux.callpath.plans import Forced, Front, PlanTable, Recording
from opmux.errors import BuildDeferred
from opmux.running import background, faults, outputs
from opmux.running.attempt import attempt_of
from opmux.running.quarantine import quarantined_for
from opmux.running.targets import Plan


def execute(op: Op, tensors: Sequence[Any], options: Mapping[str, Any], backend: str | None, out: Any = None) -> Any:
    """Run a validated call on real tensors, without gradient: one lookup, then the plan's callable.

    For a key without a plan, the table makes one.
    """
    table = op.table
    key: Any = table.state.key_of(*tensors, **options)
    if backend is not None:
        key = Forced(backend, key)
    try:
        if out is None:
            return table[key](*tensors, **options)
        return outputs.run_into(table, key, tensors, options, out)
    except Exception as error:
        return recover(op, error, table, tensors, options, backend, out)


def recover(
    op: Op,
    error: Exception,
    runs: PlanTable | Front | Recording,
    tensors: Sequence[Any],
    options: Mapping[str, Any],
    backend: str | None,
    out: Any = None,
) -> Any:
    """Handle an exception that a plan of a table or front raised: the caller's bad data, or the target's fault.

    Returns:
        The result of the next choice, where one may run.
    """
    if faults.is_callers(error):
        raise error
    attempt = attempt_of(op, runs.state, tensors, options, backend)
    found: Plan | None = runs.plan_of(attempt.table_key)
    if found is None:
        raise error  # raised before a plan was stored, so it is already judged
    known = quarantined_for(op.name, found.arch.name, attempt.key)
    met = isinstance(error, BuildDeferred) and background.is_awaited_by_another(
        attempt, found.implementation, error.build
    )
    if not met and (found.implementation.full_name not in known or op.signature.mutates):
        faults.judge(attempt, found.implementation, error)
    # Otherwise another thread met the same fault first, and the implementation chosen now is not to blame.
    return execute(op, tensors, attempt.call.options, backend, out)
