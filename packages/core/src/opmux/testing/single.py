"""One case: its run, its outcome, and the command that runs it again."""

import gc
import os
import sys
import traceback
from dataclasses import dataclass, field

import torch

from opmux.running.faults import is_out_of_memory
from opmux.testing import execution, refusals
from opmux.testing.case import Case, op_named, parse_case
from opmux.testing.comparison import Errors, Finding
from opmux.testing.probes import OF_THE_OP, PROBES, not_declared
from opmux.testing.subject import NotClaimed, Subject, TargetRaised, prepare, traceback_of
from opmux.testing.surroundings import surroundings
from opmux.testing.threads import one_thread

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass
class Outcome:
    """The outcome of one case.

    Attributes:
        status: passed, failed or skipped.
        reason: why it was skipped.
        findings: what is wrong.
        errors: errors divided by their bounds.
        claimed: whether the backend claims the call; a refusal can fail too.
    """

    case: str
    status: str
    reason: str = ""
    findings: list[Finding] = field(default_factory=list)
    errors: Errors = field(default_factory=Errors)
    claimed: bool = True


def run_one(backend: str, case: Case, device: torch.device) -> Outcome:
    """Run one case; errors of the target do not propagate."""
    if case.probe == "large":
        _release_memory()
    try:
        with one_thread(device):
            return _run(prepare(backend, case, device))
    except Exception as error:  # an error of the kit or of the reference
        if is_out_of_memory(error):
            return _out_of_memory(case, error)
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"the suite itself failed at {os.path.basename(where.filename)}:{where.lineno}: "
        return Outcome(case.id, FAILED, findings=[Finding("suite", f"{text}{type(error).__name__}: {error}")])
    finally:
        if device.type == "cuda" and torch.cuda.memory_reserved(device) > KEPT:
            torch.cuda.empty_cache()


KEPT = 2**28
"""Bytes of a GPU that a process keeps for its next case: with several processes there, what they all keep may be what
one of them lacks, which then fails or leaves a case out.
"""


def _out_of_memory(case: Case, error: BaseException) -> Outcome:
    """A case that does not fit in memory says nothing about the kernel, so it is reported as not run."""
    held = str(error).partition(". GPU ")[0].partition("\n")[0]
    return Outcome(case.id, SKIPPED, f"the case does not fit this device: {held}", claimed=False)


def _release_memory() -> None:
    """Free the memory of the last case: a failed one is kept alive by the cycle of its exception and its frames."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _run(subject: Subject) -> Outcome:
    case = subject.case
    implementation = subject.claim.implementation
    if case.probe in OF_THE_OP:
        PROBES[case.probe](subject)
        return Outcome(case.id, FAILED if subject.findings else PASSED, findings=subject.findings, claimed=False)
    if implementation is None:
        finding = refusals.check_refused(subject)
        if finding is not None:
            return Outcome(case.id, FAILED, findings=[finding], claimed=False)
        return Outcome(case.id, SKIPPED, subject.claim.reason, claimed=False)
    reason = not_declared(implementation, case.probe)
    if reason is not None:
        return Outcome(case.id, SKIPPED, reason, claimed=False)
    try:
        with torch.no_grad():
            PROBES[case.probe](subject)
    except NotClaimed as error:
        return Outcome(case.id, SKIPPED, str(error), claimed=False)
    except TargetRaised as error:
        cause = error.__cause__
        if case.probe == "large" and cause is not None and is_out_of_memory(cause):
            return _out_of_memory(case, cause)
        subject.report("runs", str(error), traceback_of(error))
    return Outcome(case.id, FAILED if subject.findings else PASSED, findings=subject.findings, errors=subject.errors)


def run_case(backend: str, op: str, case: str, within: str | None = None) -> Outcome:
    """Run one case of a report again.

    Args:
        backend: the backend's name.
        op: the op's name.
        case: the case's id.
        within: the context that it ran in, as `run_conformance` takes it.

    Returns:
        The outcome, if it passed or was skipped.

    Raises:
        AssertionError: If it failed; lists everything that is wrong.
        UnknownBackend: If no plugin registers the backend.
        InvalidArgument: If there is no such op, or the text is no id.
    """
    execution.ops_of(backend)
    with surroundings(within):
        if case.startswith(refusals.PREFIX):
            outcome = refusals.run_refusal(backend, op_named(op), case, execution.device_for(backend))
            found = Outcome(case, FAILED if outcome else PASSED, findings=[outcome] if outcome else [])
        else:
            found = run_one(backend, parse_case(op, case), execution.device_for(backend))
    if found.status == FAILED:
        raise AssertionError(failure_text(backend, op, found, within))
    detail = found.reason or f"error over bound: element {found.errors.element:.3g}, whole {found.errors.whole:.3g}"
    sys.stdout.write(f"{op} {case}: {found.status} on {backend}; {detail}\n")
    return found


def repro(backend: str, op: str, case: str, within: str | None = None) -> str:
    """The shell command that runs one case."""
    more = f", within='{within}'" if within else ""
    return f"python -c \"from opmux.testing import run_case; run_case('{backend}', '{op}', '{case}'{more})\""


def repro_of_op(backend: str, op: str, profile: str, within: str | None = None) -> str:
    """The shell command that runs all cases of an op."""
    more = f" --within '{within}'" if within else ""
    return f"opmux conformance {backend} --op {op} --profile {profile}{more}"


def failure_text(backend: str, op: str, outcome: Outcome, within: str | None = None) -> str:
    """A failed case in words."""
    lines = [f"{op} on {backend} fails case {outcome.case}"]
    for finding in outcome.findings:
        lines.append(f"  {finding.check}: {finding.message}")
        lines += [f"    {line}" for line in finding.traceback.splitlines()]
    return "\n".join([*lines, f"  again: {repro(backend, op, outcome.case, within)}"])
