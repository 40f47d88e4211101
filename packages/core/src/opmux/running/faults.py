"""Faults: whose fault an exception is, and whether another implementation may take the place of the one that failed."""

import torch

from opmux import policy
from opmux.declared.implementation import Implementation, Priority
from opmux.errors import BackendFault, BuildFailed, CaptureRefused, OpmuxError
from opmux.running import quarantine
from opmux.running.attempt import FUNCTIONAL_BACKEND, Attempt


def judge(attempt: Attempt, implementation: Implementation, error: Exception) -> None:
    """Decide what follows from an exception that a target raised, or from a wrong result of it.

    Returns where the next choice may run: the implementation is in quarantine then.

    Raises:
        Exception: the error itself, where it is the caller's, nobody's or the reference's.
        CaptureRefused: while a graph is captured.
        BackendFault: where no other implementation may take its place.
    """
    op, call = attempt.op, attempt.call
    if is_callers(error) or is_nobodys_fault(error) or _is_last_resort(implementation):
        raise error
    if not capturing():
        attempt.check_data()
    reason = str(error) if isinstance(error, BackendFault) else f"{type(error).__name__}: {error}"
    launched = not isinstance(error, BuildFailed)
    if capturing():
        raise CaptureRefused(
            f"{op.name}: {implementation.title} failed during graph capture, where nothing may take its place: "
            f"{reason}; run the call once before the capture"
        ) from error
    if attempt.forced is not None or policy.current().strict:
        why = f"backend={attempt.forced!r} was asked for" if attempt.forced is not None else "the policy is strict"
        raise BackendFault(
            f"{op.name}: {implementation.title} failed, and {why}: {reason}\n"
            f"  call:      {attempt}\n"
            f"  try:       another backend (see opmux.explain), or report it to its authors"
        ) from error
    scope = quarantine.PLAN if launched else quarantine.ARCH
    quarantine.quarantine(op.name, implementation, call.arch.name, scope, reason, attempt.key)
    op.drop_plans()
    if op.signature.mutates and launched:
        written = ", ".join(f"`{name}`" for name in op.signature.mutates)
        raise BackendFault(
            f"{op.name}: {implementation.title} failed while it was writing {written}, which may hold anything now: "
            f"{reason}\n"
            f"  call:      {attempt}\n"
            f"  try:       restore {written} and call again: the next choice will run"
        ) from error


def pass_over(
    attempt: Attempt, implementation: Implementation, error: Exception, *, scope: str, reason: str, told: str
) -> None:
    """Put an implementation in quarantine that could not be prepared; nothing of it has run.

    Args:
        attempt: the call.
        implementation: what could not be prepared.
        error: what was raised.
        scope: how far the quarantine reaches.
        reason: what is kept of it.
        told: what follows the implementation's name where it is an error.

    Raises:
        Exception: the error itself, where it is nobody's fault.
        BackendFault: where no other implementation may take its place.
    """
    if is_nobodys_fault(error):
        raise error
    if attempt.forced is not None or policy.current().strict:
        raise BackendFault(f"{attempt.op.name}: {implementation.title}{told}") from error
    quarantine.quarantine(attempt.op.name, implementation, attempt.call.arch.name, scope, reason, attempt.key)
    attempt.op.drop_plans()


def _is_last_resort(implementation: Implementation) -> bool:
    """The core's own: the reference, and the functional form of an in-place op, whose inner call has been judged."""
    return implementation.priority == Priority.REFERENCE or implementation.backend == FUNCTIONAL_BACKEND


def is_callers(error: Exception) -> bool:
    """Whether an error tells the caller what is wrong with the call; an implementation's own is a `BackendFault`."""
    return isinstance(error, OpmuxError) and not isinstance(error, BackendFault)


def capturing() -> bool:
    """Whether the current stream is capturing a CUDA/HIP graph; does not initialise a device."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def is_nobodys_fault(error: BaseException) -> bool:
    """Out of memory, and device errors that stick to the process: raised as what they are, never fallen back from."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "DefaultCPUAllocator" in str(error):
        return True
    return _device_is_lost(error)


def _device_is_lost(error: BaseException) -> bool:
    """A sticky error (an illegal access, a failed device assert) makes every later call fail: probe for that."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return False
    if not isinstance(error, RuntimeError) or capturing():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
