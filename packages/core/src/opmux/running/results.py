"""Results: the first run of a plan, and the check of what a target returns."""

from typing import Any

from opmux.callpath.op import Op
from opmux.declared.call import Call
from opmux.declared.implementation import Implementation
from opmux.errors import BackendFault
from opmux.running.attempt import Attempt
from opmux.signatures.outputs import first_fault


def first_run(attempt: Attempt, implementation: Implementation, run: Any) -> Any:
    """Run a plan for the first time and check what comes back.

    Raises:
        BackendFault: where the results break the rule for outputs.
        Exception: whatever the target raises.
    """
    results = run(*attempt.call.tensors.values(), **attempt.call.options)
    check_results(attempt.op, attempt.call, implementation, results)
    return results


def check_results(op: Op, call: Call, implementation: Implementation, results: Any) -> None:
    """Check what a target returned against the rule for outputs. An op that writes into its arguments returns nothing.

    Raises:
        BackendFault: where the number of results, a class, shape, dtype, device, strides or the memory is wrong.
    """
    if op.signature.mutates:
        return
    fault = first_fault(op.signature, call.tensors, call.dims, call.options, results)
    if fault is not None:
        raise BackendFault(f"{op.name}: {implementation.title} {fault.message}; report it to its authors")
