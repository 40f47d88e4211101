"""`run_conformance`: run every case of every op that a backend implements, and report the results."""

import functools
import gc
import os
import platform
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from opmux import __about__
from opmux.arch import arch_of
from opmux.errors import InvalidArgument
from opmux.plugins import loading
from opmux.testing import execution, processes, refusals
from opmux.testing.case import Case, op_named, parse_case, probe_of
from opmux.testing.cases import gradient_case
from opmux.testing.comparison import Errors, Finding
from opmux.testing.fitted import cases_for
from opmux.testing.probes import OF_THE_OP, PROBES, not_declared
from opmux.testing.profiles import profile_named
from opmux.testing.subject import NotClaimed, Subject, TargetRaised, prepare, traceback_of
from opmux.testing.surroundings import surroundings
from opmux.testing.threads import one_thread
from opmux.testing.watch import Watch

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"

Progress = Callable[[str, int, int], None]


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
    except torch.OutOfMemoryError as error:
        return _out_of_memory(case, error)
    except Exception as error:  # an error of the kit or of the reference
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"the suite itself failed at {os.path.basename(where.filename)}:{where.lineno}: "
        return Outcome(case.id, FAILED, findings=[Finding("suite", f"{text}{type(error).__name__}: {error}")])


def _out_of_memory(case: Case, error: torch.OutOfMemoryError) -> Outcome:
    """A case that does not fit in memory says nothing about the kernel, so it is reported as not run."""
    held = str(error).partition(". GPU ")[0]
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
        if case.probe == "large" and isinstance(error.__cause__, torch.OutOfMemoryError):
            return _out_of_memory(case, error.__cause__)
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


@dataclass
class Held:
    """The result of checking a backend against one op's reference.

    Attributes:
        report: the op's part of the report.
        counts: how many cases passed, failed and were skipped.
        unbroken: constraints that no case breaks.
    """

    report: dict[str, Any]
    counts: Counter[str]
    unbroken: list[str] = field(default_factory=list)


def _hold(
    op: str,
    backend: str,
    profile: str,
    begin: Callable[[str], None],
    step: Callable[[str], None] | None = None,
    within: str | None = None,
) -> Held:
    """Run every case of one op in this process.

    Args:
        op: the op's name.
        backend: the backend's name.
        profile: the profile's name.
        begin: called before each case with a description of it.
        step: called after each case with the op's name.
        within: the context of the cases, as `run_conformance` takes it.
    """
    loading.ensure_loaded()  # this process may not have loaded the plugins yet
    with surroundings(within):
        return _hold_here(op, backend, profile, begin, step, within)


def _hold_here(
    op: str,
    backend: str,
    profile: str,
    begin: Callable[[str], None],
    step: Callable[[str], None] | None,
    within: str | None,
) -> Held:
    device = execution.device_for(backend)
    outcomes = []
    for case in cases_for(backend, op, profile, device):
        begin(f"case {case.id} of {op}: {repro(backend, op, case.id, within)}")
        outcomes.append(run_one(backend, case, device))
        if step is not None:
            step(op)
    begin(f"the refusals of {op}")
    with one_thread(device):
        more, unbroken = refusals.check_constraints(backend, op_named(op), device)
    refused = [Outcome(case, FAILED, findings=[finding]) for case, finding in more]
    gradient = gradient_case(op)
    if gradient is not None:
        refused += [o for o in (run_one(backend, gradient, device),) if o.status == FAILED]
    counts = Counter(o.status for o in (*outcomes, *refused))
    return Held(_report_of(backend, op, outcomes, refused, within), counts, unbroken)


def _not_held(backend: str, op: str, profile: str, cases: int, why: str, within: str | None) -> Held:
    """The result of an op whose process gave no answer."""
    failure = {"case": "", "check": "process", "message": why, "repro": repro_of_op(backend, op, profile, within)}
    return Held({**_report_of(backend, op, [], []), "cases": cases, "failures": [failure]}, Counter({FAILED: 1}))


def run_conformance(
    backend: str,
    ops: Sequence[str] | None = None,
    profile: str = "default",
    progress: Progress | None = None,
    jobs: int | None = None,
    limit_s: float | None = None,
    within: str | None = None,
) -> dict[str, Any]:
    """Check a backend against the references.

    Args:
        backend: the backend's name, or an implementation's full name.
        ops: names of ops; None takes every op that the backend implements.
        profile: the name of a profile (`opmux.testing.PROFILES`): how large the cases are.
        progress: called after each case (with ``jobs``, after each op) with the op, the number of cases done and the
            total number.
        jobs: run each op in a process of its own, this many at a time: one that dies fails its op, not the run. For
            installed backends only. None runs everything in this process.
        limit_s: seconds after which an op's process is ended and the op fails; needs ``jobs``.
        within: a context in which everything runs, in each process, as ``module:function`` or
            ``module:function(text)``: an emulator's lets the CPU pass for an arch and executes what is launched.

    Returns:
        The report as plain data::

            {"backend", "version", "passed", "failed", "skipped",
             "ops": [{"op", "cases", "claimed", "coverage", "max_error": {"global", "row", "element"},
                      "failures": [{"case", "check", "message", "repro"}], "skips": {REASON: COUNT},
                      "not_run": {PROBE: REASON}}],
             "not_loaded": [REASON],
             "environment": {...}}

        ``passed``, ``failed`` and ``skipped`` count cases; ``max_error`` holds errors divided by their bounds (above
        1 is a failure). A failure of the check ``runs`` also has a ``traceback``. ``not_run`` names the probes that no
        claimed case ran. A run in which no case ran fails: it has a failure of the check ``claims``. Each part of the
        backend that did not load (``not_loaded``) counts as failed.

    Raises:
        UnknownBackend: If no plugin registers the backend.
        InvalidArgument: If there is no such op, profile or context, the profile needs a GPU and there is none,
            ``jobs`` is below 1, or ``limit_s`` is given without ``jobs``.
    """
    if jobs is not None and jobs < 1:
        raise InvalidArgument(f"conformance: `jobs` expected a number of processes, at least 1, got {jobs}")
    if limit_s is not None and jobs is None:
        raise InvalidArgument("conformance: `limit_s` ends processes of `jobs`, which is not given; give jobs=1 too")
    with surroundings(within):
        return _run_conformance(backend, ops, profile, progress, jobs, limit_s, within)


def _run_conformance(
    backend: str,
    ops: Sequence[str] | None,
    profile: str,
    progress: Progress | None,
    jobs: int | None,
    limit_s: float | None,
    within: str | None,
) -> dict[str, Any]:
    began = time.perf_counter()
    implemented = execution.ops_of(backend)
    chosen = [op_named(name).name for name in (implemented if ops is None else dict.fromkeys(ops))]
    settings = profile_named(profile)
    device = execution.device_for(backend)
    if settings.needs_gpu and device.type == "cpu":
        raise InvalidArgument(
            "conformance: `profile` expected one that runs on a CPU (small, default, interpreter, emulator), "
            f"got {profile!r}, which needs a GPU, and {backend} has none here; run it on a machine with one"
        )
    todo = {name: len(cases_for(backend, name, profile, device)) for name in chosen}
    total, done = sum(todo.values()), 0

    def step(op: str, cases: int = 1) -> None:
        nonlocal done
        done += cases
        if progress is not None:
            progress(op, done, total)

    hold = functools.partial(_hold, backend=backend, profile=profile, within=within)
    if jobs is None:
        with Watch() as watch:

            def begin(what: str) -> None:
                watch.about_to(f"conformance: the process died in {what}; give --jobs 1 to go on to the next op")

            held = [hold(op, begin=begin, step=step) for op in todo]
    else:
        apart = functools.partial(hold, begin=processes.note)
        answers = processes.call_apart(apart, todo, jobs, limit_s, lambda op: step(op, todo[op]))
        held = [
            _not_held(backend, op, profile, todo[op], a, within) if isinstance(a, str) else a
            for op, a in zip(todo, answers, strict=True)
        ]
    reports = [h.report for h in held]
    unbroken = [constraint for h in held for constraint in h.unbroken]
    counts = Counter({PASSED: 0, FAILED: 0, SKIPPED: 0})
    for one in held:
        counts.update(one.counts)
    if not counts[PASSED] and not counts[FAILED]:
        _fail_empty(reports, backend, profile, within)
        counts[FAILED] = len(reports)
    unloaded = execution.unloaded_parts(backend)
    counts[FAILED] += len(unloaded)
    return {
        "backend": backend,
        "version": _version(backend),
        **counts,
        "ops": reports,
        "not_loaded": unloaded,
        "environment": _environment(device, profile, unbroken, time.perf_counter() - began, within),
    }


def _report_of(
    backend: str, op: str, outcomes: Sequence[Outcome], refused: Sequence[Outcome], within: str | None = None
) -> dict[str, Any]:
    errors = Errors()
    for outcome in outcomes:
        errors.include(outcome.errors)
    claimed = sum(o.claimed for o in outcomes)
    return {
        "op": op,
        "cases": len(outcomes),
        "claimed": claimed,
        "coverage": claimed / len(outcomes) if outcomes else 0.0,
        "max_error": errors.as_dict(),
        "failures": [
            {"case": o.case, "check": f.check, "message": f.message, "repro": repro(backend, op, o.case, within)}
            | ({"traceback": f.traceback} if f.traceback else {})
            for o in (*outcomes, *refused)
            for f in o.findings
        ],
        "skips": dict(Counter(o.reason for o in outcomes if o.status == SKIPPED)),
        "not_run": _not_run(outcomes),
    }


def _not_run(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Probes that no claimed case ran, each with the reason given for its last case, which is fitted to the backend."""
    ran = {probe_of(o.case) for o in outcomes if o.claimed and o.status != SKIPPED}
    reasons = {probe_of(o.case): o.reason for o in outcomes if o.status == SKIPPED}
    return {probe: reason for probe, reason in reasons.items() if probe not in ran}


def _fail_empty(reports: Sequence[dict[str, Any]], backend: str, profile: str, within: str | None) -> None:
    """Make a run without any claimed case fail."""
    for report in reports:
        reasons = "; ".join(report["skips"]) or "there are none"
        report["failures"].append(
            {
                "case": "",
                "check": "claims",
                "message": f"no case ran: {backend} claims none of {report['cases']} cases ({reasons})",
                "repro": repro_of_op(backend, report["op"], profile, within),
            }
        )


def _version(backend: str) -> str:
    for op in execution.ops_of(backend):
        return execution.implementations(op_named(op), backend)[0].version
    return ""


def _environment(
    device: torch.device, profile: str, unbroken: Sequence[str], seconds: float, within: str | None
) -> dict[str, Any]:
    gpu = device.type == "cuda"
    return {
        "opmux": __about__.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if gpu else "cpu",
        "arch": arch_of(device).name,
        "plugins": {p.name: f"{p.distribution} {p.version}" for p in loading.loaded_plugins()},
        "profile": profile,
        "within": within or "",
        "seconds": round(seconds, 3),
        "not_checked": {} if gpu else {"graph capture": "needs a GPU", "tensors past 2**31 elements": "needs a GPU"},
        "constraints_not_broken": list(unbroken),
    }
