"""`run_conformance`: run every case of every op that a backend implements, and report the results."""

import functools
import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from opmux.errors import InvalidArgument
from opmux.plugins import loading
from opmux.testing import execution, processes, refusals
from opmux.testing.case import op_named
from opmux.testing.cases import gradient_case
from opmux.testing.fitted import cases_for
from opmux.testing.processes import Lost, Returned
from opmux.testing.profiles import profile_named
from opmux.testing.reports import environment, fail_empty, report_of, version_of
from opmux.testing.single import FAILED, PASSED, SKIPPED, Outcome, repro, repro_of_op, run_one
from opmux.testing.surroundings import surroundings
from opmux.testing.threads import one_thread
from opmux.testing.watch import Watch

Progress = Callable[[str, int, int], None]


class Of(NamedTuple):
    """An op's part of the report, and how many of its cases passed, failed and were skipped."""

    report: dict[str, Any]
    counts: Counter[str]


class Share(NamedTuple):
    """Cases of an op that one process runs: every ``of``-th, from ``number`` on; the first share has the refusals."""

    op: str
    number: int = 0
    of: int = 1


@dataclass
class Held:
    """What came of a share, beside the outcomes of its cases.

    Attributes:
        refused: of refusals and of the gradient, where they failed.
        unbroken: constraints that no case breaks.
    """

    refused: list[Outcome] = field(default_factory=list)
    unbroken: list[str] = field(default_factory=list)


CASES_OF_A_SHARE = 32
"""An op is shared out among processes where each has as many cases: the start of a process takes seconds."""


def shares_of(op: str, cases: int, jobs: int) -> list[Share]:
    """The shares of an op; a process of its own for each case would mostly start processes."""
    parts = max(1, min(jobs, cases // CASES_OF_A_SHARE))
    return [Share(op, number, parts) for number in range(parts)]


def _hold(
    share: Share,
    backend: str,
    profile: str,
    begin: Callable[[str], None],
    keep: Callable[[Outcome], None],
    within: str | None = None,
) -> Held:
    """Run every case of a share in this process.

    Args:
        share: whose cases are run.
        backend: the backend's name.
        profile: the profile's name.
        begin: called before each case with a description of it.
        keep: called after each case with its outcome.
        within: the context of the cases, as `run_conformance` takes it.
    """
    loading.ensure_loaded()  # this process may not have loaded the plugins yet
    with surroundings(within):
        return _hold_here(share, backend, profile, begin, keep, within)


def _hold_here(
    share: Share,
    backend: str,
    profile: str,
    begin: Callable[[str], None],
    keep: Callable[[Outcome], None],
    within: str | None,
) -> Held:
    op, device = share.op, execution.device_for(backend)
    for case in cases_for(backend, op, profile, device)[share.number :: share.of]:
        begin(f"case {case.id} of {op}: {repro(backend, op, case.id, within)}")
        keep(run_one(backend, case, device))
    if share.number:
        return Held()
    begin(f"the refusals of {op}")
    with one_thread(device):
        more, unbroken = refusals.check_constraints(backend, op_named(op), device)
    refused = [Outcome(case, FAILED, findings=[finding]) for case, finding in more]
    gradient = gradient_case(op)
    if gradient is not None:
        refused += [o for o in (run_one(backend, gradient, device),) if o.status == FAILED]
    return Held(refused, unbroken)


Answer = Returned[Held] | Lost
"""Of a share: what came of it; its parts are the outcomes of its cases."""


def _report(backend: str, op: str, profile: str, cases: int, answers: Sequence[Answer], within: str | None) -> Of:
    """An op's part of the report, of all its shares; of a process that was lost the cases that it had run count."""
    # In the order of the cases, whichever process ran them.
    rows = itertools.zip_longest(*(one.parts for one in answers))
    outcomes = [outcome for row in rows for outcome in row if outcome is not None]
    refused = [outcome for one in answers if isinstance(one, Returned) for outcome in one.answer.refused]
    report = report_of(backend, op, outcomes, refused, within)
    lost = [
        {"case": "", "check": "process", "message": one.why, "repro": repro_of_op(backend, op, profile, within)}
        for one in answers
        if isinstance(one, Lost)
    ]
    counts = Counter(outcome.status for outcome in (*outcomes, *refused))
    counts[FAILED] += len(lost)
    if lost:
        report |= {"cases": cases, "coverage": report["claimed"] / cases if cases else 0.0}
        report["failures"] += lost
    return Of(report, counts)


def run_conformance(
    backend: str,
    ops: Sequence[str] | None = None,
    profile: str = "default",
    progress: Progress | None = None,
    jobs: int | None = None,
    limit_s: float | None = None,
    within: str | None = None,
    total_s: float | None = None,
) -> dict[str, Any]:
    """Check a backend against the references.

    Args:
        backend: the backend's name, or an implementation's full name.
        ops: names of ops; None takes every op that the backend implements.
        profile: the name of a profile (`opmux.testing.PROFILES`): how large the cases are.
        progress: called after each case with the op, the number of cases done and the total number.
        jobs: run the ops in processes of their own, this many at a time: one that dies fails its op, not the run. An
            op with many cases is shared out among several. For installed backends only. None runs everything in this
            process.
        limit_s: seconds after which a process is ended and its op fails; needs ``jobs``.
        within: a context in which everything runs, in each process, as ``module:function`` or
            ``module:function(text)``: an emulator's lets the CPU pass for an arch and executes what is launched.
        total_s: seconds after which no process is begun and those that run are ended; needs ``jobs``. Their ops fail,
            and the cases that had been run by then are in the report.

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
            ``jobs`` is below 1, or ``limit_s`` or ``total_s`` is given without ``jobs``.
    """
    if jobs is not None and jobs < 1:
        raise InvalidArgument(f"conformance: `jobs` expected a number of processes, at least 1, got {jobs}")
    for name, seconds in (("limit_s", limit_s), ("total_s", total_s)):
        if seconds is not None and jobs is None:
            message = f"conformance: `{name}` ends processes of `jobs`, which is not given; give jobs=1 too"
            raise InvalidArgument(message)
    with surroundings(within):
        return _run_conformance(backend, ops, profile, progress, jobs, limit_s, within, total_s)


def _run_conformance(
    backend: str,
    ops: Sequence[str] | None,
    profile: str,
    progress: Progress | None,
    jobs: int | None,
    limit_s: float | None,
    within: str | None,
    total_s: float | None,
) -> dict[str, Any]:
    began = time.monotonic()
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

    def step(op: str) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(op, done, total)

    hold = functools.partial(_hold, backend=backend, profile=profile, within=within)
    if jobs is None:
        shares = [Share(op) for op in todo]
        with Watch() as watch:

            def begin(what: str) -> None:
                watch.about_to(f"conformance: the process died in {what}; give --jobs 1 to go on to the next op")

            def run_here(share: Share) -> Answer:
                outcomes: list[Outcome] = []

                def keep(outcome: Outcome) -> None:
                    outcomes.append(outcome)
                    step(share.op)

                return Returned(hold(share, begin=begin, keep=keep), outcomes)

            answers = [run_here(share) for share in shares]
    else:
        shares = [share for op, cases in todo.items() for share in shares_of(op, cases, jobs)]
        apart = functools.partial(hold, begin=processes.note, keep=processes.hand_over)
        answers = processes.call_apart(apart, shares, jobs, limit_s, lambda share: step(share.op), total_s, began)
    of: dict[str, list[Answer]] = {op: [] for op in todo}
    for share, answer in zip(shares, answers, strict=True):
        of[share.op].append(answer)
    found = [_report(backend, op, profile, todo[op], of[op], within) for op in todo]
    reports = [one.report for one in found]
    unbroken = [constraint for one in answers if isinstance(one, Returned) for constraint in one.answer.unbroken]
    counts = Counter({PASSED: 0, FAILED: 0, SKIPPED: 0})
    for one in found:
        counts.update(one.counts)
    if not counts[PASSED] and not counts[FAILED]:
        fail_empty(reports, backend, profile, within)
        counts[FAILED] = len(reports)
    unloaded = execution.unloaded_parts(backend)
    counts[FAILED] += len(unloaded)
    return {
        "backend": backend,
        "version": version_of(backend),
        **counts,
        "ops": reports,
        "not_loaded": unloaded,
        "environment": environment(device, profile, unbroken, time.monotonic() - began, within),
    }
