"""Measuring a point on a device: every candidate is checked, then those that are right are timed side by side.

`measure` runs in a process of its own (`opmux.bench.isolated`) and tells before each step what it is about to do, so
that whoever waits for it knows which candidate hung or took the process with it.
"""

import functools
import os
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from opmux.arch import arch_of
from opmux.bench.clocks import Clock, Timed, clock_for, interleave
from opmux.bench.isolated import in_one_line, tell
from opmux.bench.results import spread
from opmux.plugins import loading
from opmux.running import builds
from opmux.shapes.point import Point
from opmux.tuner.candidates import Candidate, Entrant, Failure, entrants_of, takers_of, worth_timing
from opmux.tuner.checking import Agreement, Oracle, Prepared, Wrong
from opmux.tuner.machine import machine_of
from opmux.tuning.measured import Machine

SCREENING = 3
"""Rounds in which every candidate is timed; only the best of each implementation go on."""

_FINALISTS = 4
_WITHIN = 1.2
"""How many configs of an implementation go on at most, and how much slower than its best they may have been."""

_NO_MEMORY = "out of memory"

_HELD = 2**33
"""Bytes of the device that a measuring process keeps between points: returning memory takes the driver's locks."""

_BROKEN = 71
"""The exit code of a process whose device no longer answers."""


@dataclass(frozen=True)
class Request:
    """What to measure.

    Attributes:
        point: the call.
        backends: only these backends or implementations; None takes all that take the call.
        only: implementation -> its configs as JSON, to measure instead of spaces; other implementations are left out.
        excluded: candidates that are known to fail.
        most_configs: configs of an implementation that are tried at most, see `opmux.tuner.tune`; None for all.
        rounds: the largest number of rounds.
        limit_s: seconds after which no further round starts.
    """

    point: Point
    backends: tuple[str, ...] | None = None
    only: Mapping[str, tuple[str, ...]] | None = None
    excluded: tuple[Failure, ...] = ()
    most_configs: int | None = None
    rounds: int = 15
    limit_s: float = 2.0


@dataclass(frozen=True)
class Timing:
    """A candidate that was timed.

    Attributes:
        median_us, q1_us, q3_us, min_us, max_us: microseconds of a call over the rounds.
        error: the worst error as a fraction of the conformance bound, at most 1.
    """

    candidate: Candidate
    rounds: int
    median_us: float
    q1_us: float
    q3_us: float
    min_us: float
    max_us: float
    error: float


@dataclass(frozen=True)
class Measured:
    """What was found at a point.

    Attributes:
        timings: every candidate that was timed to the end, the fastest first.
        failures: what was not, and why.
        builds: how many kernels were compiled.
        build_s: seconds that compiling them took.
        flops: floating-point operations of the call, where index data decides them; None means what its dims say.
        problem: why nothing at all could be measured; empty otherwise.
        lost: whether that is because the worker was lost, so that another one may measure it.
    """

    point: Point
    timings: tuple[Timing, ...] = ()
    failures: tuple[Failure, ...] = ()
    builds: int = 0
    build_s: float = 0.0
    flops: float | None = None
    problem: str = ""
    lost: bool = False

    @property
    def best(self) -> tuple[Timing, ...]:
        """The fastest config of each implementation, the fastest first."""
        found: dict[str, Timing] = {}
        for timing in self.timings:
            found.setdefault(timing.candidate.implementation, timing)
        return tuple(found.values())


@dataclass
class _Runner:
    """A candidate that passed its check.

    Attributes:
        error: see `Timing`.
    """

    candidate: Candidate
    run: Callable[..., Any]
    error: float


@functools.cache
def _clock(device: torch.device) -> Clock:
    """A device's clock: one for all points, as on a GPU it holds a buffer."""
    return clock_for(device)


@dataclass
class _Bench:
    """One point while it is measured."""

    request: Request
    device: torch.device
    failures: list[Failure] = field(default_factory=list)

    def fail(self, candidate: Candidate, reason: str) -> None:
        """Leave a candidate out, and the process too where the device no longer answers."""
        self.failures.append(Failure(candidate.implementation, candidate.config, reason))
        if self.device.type != "cuda":
            return
        try:
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()
        except RuntimeError:  # an error of the device outlasts its kernel: this process is of no more use
            tell(self.failures[-1])
            os._exit(_BROKEN)

    def entrants(self) -> list[Entrant]:
        """Every candidate that is not excluded."""
        request, arch = self.request, arch_of(self.device)
        excluded = {(f.implementation, f.config) for f in request.excluded}
        found = []
        takers = takers_of(request.point, arch, request.backends)
        if request.only is None and request.backends is None:
            takers = worth_timing(takers, self.device)
        for taker in takers:
            name = taker.implementation.full_name
            if request.only is not None and name not in request.only:
                continue
            configs = None if request.only is None else request.only[name]
            for entrant in entrants_of(taker, configs, request.most_configs):
                if isinstance(entrant, Failure):
                    self.failures.append(entrant)
                elif (name, entrant.candidate.config) not in excluded:
                    found.append(entrant)
        return found

    def checked(self, entrants: Sequence[Entrant]) -> tuple[list[_Runner], Oracle]:
        """The candidates whose results are within their bounds."""
        oracle, runners = Oracle(self.request.point, self.device), []
        for entrant in entrants:
            tell(entrant.candidate)
            try:
                run = entrant.make()
                runners.append(_Runner(entrant.candidate, run, oracle.error(run)))
            except Wrong as error:
                self.fail(entrant.candidate, f"wrong: {error}")
            except Exception as error:  # a plugin's target may raise anything
                self.fail(entrant.candidate, _reason(error))
        return runners, oracle

    def agreed(self, runners: Sequence[_Runner], prepared: Prepared) -> list[_Runner]:
        """The candidates whose results of the whole call agree with those of the others."""
        agreement, raised = Agreement(), set()
        for number, runner in enumerate(runners):
            tell(runner.candidate)
            try:
                agreement.enter(number, prepared.results(runner.run))
            except Exception as error:  # as above; what fits the smaller call may fail on the whole one
                raised.add(number)
                self.fail(runner.candidate, _reason(error))
        outside = agreement.outside()
        for number in sorted(outside):
            self.fail(runners[number].candidate, "wrong: its result of the whole call differs from the others'")
        return [runner for number, runner in enumerate(runners) if number not in outside | raised]

    def timed(self, runners: Sequence[_Runner], prepared: Prepared) -> list[Timing]:
        """Time every candidate in a few rounds, then the best of each implementation in all of them."""
        clock = _Telling(_clock(self.device), {str(n): r.candidate for n, r in enumerate(runners)})
        entered: dict[str, Timed] = {}
        for number, runner in enumerate(runners):
            timed = Timed(prepared.call(runner.run), prepared.restore)
            try:
                clock.warm_up(str(number), timed)
            except Exception as error:  # as above
                self.fail(runner.candidate, _reason(error))
            else:
                entered[str(number)] = timed
        shuffled = random.Random(0)
        samples = interleave(clock, entered, SCREENING, self.request.limit_s, shuffled=shuffled)
        finalists = _finalists(samples, runners)
        if len(finalists) < len(samples) or self.request.rounds > SCREENING:
            kept = {name: entered[name] for name in finalists}
            more = interleave(clock, kept, self.request.rounds, self.request.limit_s, shuffled=shuffled)
        else:
            more = {}
        timings = []
        for name in finalists:
            runner, taken = runners[int(name)], more.get(name) or samples[name]
            median, least, largest, q1, q3 = spread(taken)
            timings.append(Timing(runner.candidate, len(taken), median, q1, q3, least, largest, runner.error))
        return sorted(timings, key=lambda t: (t.median_us, t.candidate.name))


def serve(device: str, request: Request | None, share: tuple[int, int] | None = None) -> Measured | Machine:
    """The function of a measuring process: measure a point, or without a request say what the machine is.

    Args:
        device: ``cpu`` or ``cuda:0``.
        request: what to measure.
        share: (which, of how many): only build this share of the candidates, see `build`.
    """
    if device != "cpu":
        torch.cuda.set_device(device)
    if request is None:
        return machine_of(torch.device(device))
    found = measure(device, request) if share is None else build(device, request, *share)
    if device != "cpu" and torch.cuda.memory_reserved() > (_HELD if share is None else 0):
        torch.cuda.empty_cache()  # other processes use the device too
    return found


def build(device: str, request: Request, which: int, of: int) -> Measured:
    """Run every ``of``-th candidate once, so that its kernels are compiled and in their cache when it is timed.

    Returns:
        What failed and what was compiled; nothing is timed.
    """
    loading.ensure_loaded()
    before = builds.total()
    bench = _Bench(request, torch.device(device))
    tell("preparing")
    with torch.no_grad():
        entrants = bench.entrants()[which::of]
        bench.failures.clear()  # of what is no config: `measure` says it again
        prepared = Prepared(request.point, bench.device, exact=False)
        for entrant in entrants:
            tell(entrant.candidate)
            try:
                prepared.results(entrant.make())
                if bench.device.type == "cuda":
                    torch.cuda.synchronize(bench.device)
            except Exception as error:  # a plugin's target may raise anything
                if not _reason(error).startswith(_NO_MEMORY):  # others build at the same time: `measure` finds out
                    bench.fail(entrant.candidate, _reason(error))
                elif bench.device.type == "cuda":
                    torch.cuda.empty_cache()
    made = builds.total()
    failures = tuple(bench.failures)
    return Measured(request.point, (), failures, made.count - before.count, made.seconds - before.seconds)


def measure(device: str, request: Request) -> Measured:
    """Check and time every candidate of a point.

    Args:
        device: ``cpu`` or ``cuda:0``.
        request: what to measure.
    """
    loading.ensure_loaded()
    before = builds.total()
    bench = _Bench(request, torch.device(device))
    tell("preparing")
    try:
        with torch.no_grad():
            timings, flops = _measured(bench)
    except Exception as error:  # the call itself is too large, or the device is gone
        return Measured(request.point, failures=tuple(bench.failures), problem=_reason(error))
    made = builds.total()
    count, seconds = made.count - before.count, made.seconds - before.seconds
    return Measured(request.point, tuple(timings), tuple(bench.failures), count, seconds, flops)


def _measured(bench: _Bench) -> tuple[list[Timing], float | None]:
    """The timings of a point, and its floating-point operations where they depend on index data."""
    entrants = bench.entrants()
    if not entrants:
        return [], None
    runners, oracle = bench.checked(entrants)
    tell("preparing")
    whole = oracle.point == bench.request.point
    prepared = oracle.prepared if whole else Prepared(bench.request.point, bench.device, exact=False)
    del oracle
    if not whole:
        runners = bench.agreed(runners, prepared)
    count = prepared.op.flops
    flops = float(count(**prepared.arguments.tensors, **prepared.arguments.options)) if callable(count) else None
    return bench.timed(runners, prepared), flops


def _finalists(samples: Mapping[str, Sequence[float]], runners: Sequence[_Runner]) -> list[str]:
    """The fastest configs of each implementation after screening."""
    by_name: dict[str, list[tuple[float, str]]] = {}
    for name, taken in samples.items():
        implementation = runners[int(name)].candidate.implementation
        by_name.setdefault(implementation, []).append((statistics.median(taken), name))
    kept = []
    for found in by_name.values():
        found.sort()
        kept += [name for median, name in found[:_FINALISTS] if median <= _WITHIN * found[0][0]]
    return kept


class _Telling:
    """A clock that tells what it is about to time."""

    def __init__(self, clock: Clock, candidates: Mapping[str, Candidate]) -> None:
        self._clock, self._candidates = clock, candidates

    def warm_up(self, name: str, timed: Timed) -> None:
        """As the clock does."""
        tell(self._candidates[name])
        self._clock.warm_up(name, timed)

    def sample(self, name: str, timed: Timed) -> float:
        """As the clock does."""
        tell(self._candidates[name])
        return self._clock.sample(name, timed)


def _reason(error: Exception) -> str:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "DefaultCPUAllocator" in str(error):
        return f"{_NO_MEMORY}: {' '.join(str(error).split())[:200]}"
    return in_one_line(error)
