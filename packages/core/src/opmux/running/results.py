"""Results: the first run of a plan, and the rule that what a target returns is held to."""

from typing import Any

from opmux.callpath.op import Op
from opmux.declared.call import Call
from opmux.declared.implementation import Implementation
from opmux.errors import BackendFault
from opmux.running.attempt import Attempt
from opmux.signatures.outputs import as_tuple, faults_of, forms


def first_run(attempt: Attempt, implementation: Implementation, run: Any) -> Any:
    """Run a plan for the first time and check what comes back.

    Raises:
        BackendFault: where the results are not the op's.
        Exception: whatever the target raises.
    """
    results = run(*attempt.call.tensors.values(), **attempt.call.options)
    check_results(attempt.op, attempt.call, implementation, results)
    return results


def check_results(op: Op, call: Call, implementation: Implementation, results: Any) -> None:
    """Hold what a target returned to the rule for outputs. An op that writes into its arguments returns nothing.

    Raises:
        BackendFault: where the number, a class, a shape, a dtype, a device, strides or the memory is not the op's.
    """
    if op.signature.mutates:
        return
    expected = forms(op.signature, call.tensors, call.dims, call.options)
    fault = next(faults_of(expected, as_tuple(results, expected), call.tensors), None)
    if fault is not None:
        raise BackendFault(f"{op.name}: {implementation.title} {fault.message}; report it to its authors")
