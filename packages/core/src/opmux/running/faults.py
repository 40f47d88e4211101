"""Faults: who caused an exception, and whether another implementation may take over."""

import torch

from opmux import policy
from opmux.declared.implementation import Implementation, Priority
from opmux.errors import BackendFault, BuildDeferred, BuildFailed, CaptureRefused, OpmuxError
from opmux.running import background, modes, quarantine
from opmux.running.attempt import FUNCTIONAL_BACKEND, Attempt


def judge(attempt: Attempt, implementation: Implementation, error: Exception) -> None:
    """Decide what follows from an exception that a target raised, or from its wrong result.

    Returns if the next choice may run; the implementation is then in quarantine, or awaited: it is being built.

    Raises:
        Exception: the error itself, where it comes from the caller, the environment or the reference.
        CaptureRefused: while a graph is captured.
        BackendFault: where no other implementation may take its place.
    """
    op, call = attempt.op, attempt.call
    if isinstance(error, BuildDeferred) and (attempt.forced is not None or not background.builds_deferred()):
        error = BuildFailed(f"{error}, but this call waits for it: the target has to build it")
    if isinstance(error, BuildDeferred):
        op.forget_plan(attempt.table_key)
        problem = background.problem_of(attempt, implementation, error.build)
        if problem is None:
            return
        error = problem
    if is_callers(error) or is_nobodys_fault(error) or _is_last_resort(implementation):
        raise error
    if not modes.capturing():
        attempt.check_data()
    reason = str(error) if isinstance(error, BackendFault) else f"{type(error).__name__}: {error}"
    launched = not isinstance(error, BuildFailed)
    if modes.capturing():
        raise CaptureRefused(
            f"{op.name}: {implementation.title} failed during graph capture, where no fallback may run: "
            f"{reason}; run the call once before the capture"
        ) from error
    if attempt.forced is not None or policy.current().strict:
        why = f"backend={attempt.forced!r} was asked for" if attempt.forced is not None else "the policy is strict"
        raise BackendFault(
            f"{op.name}: {implementation.title} failed, and {why}: {reason}\n"
            f"  call:      {attempt}\n"
            f"  try:       another backend (see opmux.explain), or report it to its authors"
        ) from error
    quarantine.quarantine(op.name, implementation, call.arch.name, _scope_of(error), reason, attempt.key)
    op.drop_plans()
    if op.signature.mutates and launched:
        written = ", ".join(f"`{name}`" for name in op.signature.mutates)
        raise BackendFault(
            f"{op.name}: {implementation.title} failed while writing {written}, whose contents are now undefined: "
            f"{reason}\n"
            f"  call:      {attempt}\n"
            f"  try:       restore {written} and call again: the next choice will run"
        ) from error


def _scope_of(error: Exception) -> str:
    """How far the quarantine for a fault of a target reaches."""
    if isinstance(error, BuildFailed) and error.one_kernel:
        return quarantine.KERNEL
    whole_arch = isinstance(error, BuildFailed) and not isinstance(error, background.BuildAbandoned)
    return quarantine.ARCH if whole_arch else quarantine.PLAN


def pass_over(
    attempt: Attempt, implementation: Implementation, error: BaseException, *, scope: str, reason: str, told: str
) -> None:
    """Quarantine an implementation that could not be prepared, before its target has run on the call.

    Args:
        attempt: the call.
        implementation: what could not be prepared.
        error: what was raised.
        scope: how far the quarantine reaches.
        reason: the reason to record.
        told: the text after the implementation's name, where an error is raised.

    Raises:
        Exception: the error itself, where no implementation is to blame.
        BackendFault: where no other implementation may take its place.
    """
    if is_nobodys_fault(error):
        raise error
    if attempt.forced is not None or policy.current().strict:
        raise BackendFault(f"{attempt.op.name}: {implementation.title}{told}") from error
    quarantine.quarantine(attempt.op.name, implementation, attempt.call.arch.name, scope, reason, attempt.key)
    attempt.op.drop_plans()


def _is_last_resort(implementation: Implementation) -> bool:
    """Whether it is the core's own: the reference, or the functional form, whose inner call is already judged."""
    return implementation.priority == Priority.REFERENCE or implementation.backend == FUNCTIONAL_BACKEND


def is_callers(error: Exception) -> bool:
    """Whether an error tells the caller what is wrong with the call; an implementation's own is a `BackendFault`."""
    return isinstance(error, OpmuxError) and not isinstance(error, BackendFault)


def is_nobodys_fault(error: BaseException) -> bool:
    """Whether it is out of memory or a sticky device error: these are raised unchanged and never fallen back from."""
    return is_out_of_memory(error) or _device_is_lost(error)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: on the host, in torch's allocator, or where the driver itself takes it, as for a module.

    The last kind is a `torch.AcceleratorError`, or a `RuntimeError` of Triton's loader. A later call can recover of
    it as of the others.
    """
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error)
    of_driver = isinstance(error, torch.AcceleratorError) or text.startswith("Triton Error [")
    return "DefaultCPUAllocator" in text or (of_driver and "out of memory" in text)


def _device_is_lost(error: BaseException) -> bool:
    """Whether every later call fails too, after a sticky error such as an illegal access or a failed device assert."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return False
    if not isinstance(error, RuntimeError) or modes.capturing():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
