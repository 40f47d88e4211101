"""Running a planned call on real tensors, and what happens when something is raised on the way."""

from collections.abc import Mapping, Sequence
from typing import Any

from opmux.callpath.op import Op, PlanTable
from opmux.running import faults, outputs
from opmux.running.attempt import Forced, attempt_of
from opmux.running.quarantine import quarantined_for
from opmux.running.targets import Plan


def execute(op: Op, tensors: Sequence[Any], options: Mapping[str, Any], backend: str | None, out: Any = None) -> Any:
    """Run a checked call on real tensors, no gradient: one lookup, then the plan's callable.

    A key that has no plan is planned by the table itself.
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
    table: PlanTable,
    tensors: Sequence[Any],
    options: Mapping[str, Any],
    backend: str | None,
    out: Any = None,
) -> Any:
    """Something was raised by a plan of ``table``: the caller's bad data, or the target's fault.

    Returns:
        What the next choice computes, where one may run.
    """
    if faults.is_callers(error):
        raise error
    attempt = attempt_of(op, table.state, tensors, options, backend)
    found: Plan | None = table.plans.get(attempt.table_key)
    if found is None:
        raise error  # before a plan was stored: it has been judged
    known = quarantined_for(op.name, found.arch.name, attempt.key)
    if found.implementation.full_name not in known or op.signature.mutates:
        faults.judge(attempt, found.implementation, error)
    # Else another thread met the same fault first, and what runs now is not to blame for it.
    return execute(op, tensors, attempt.call.options, backend, out)
