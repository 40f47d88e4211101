"""What is found at one call: the choice and why, every implementation's time, torch's own, and whole calls."""

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import choice_peers
import torch

import opmux
from opmux.arch import arch_of
from opmux.bench.clocks import Clock, Timed, clock_for, interleave
from opmux.bench.data import Arguments
from opmux.bench.isolated import in_one_line
from opmux.bench.libraries import package_of
from opmux.bench.peers import peers_of
from opmux.bench.results import spread
from opmux.planning.takers import Taker, takers
from opmux.plugin import Priority
from opmux.shapes import Point
from opmux.tuner.checking import Agreement, Prepared

WHOLE_CALLS, WHOLE_S, WHOLE_ROUNDS = 200, 0.01, 5
"""A sample of whole calls: this many one after another, or as many as fit into the time; and how many samples."""

Run = Callable[[], Any]


def accepting(point: Point, prepared: Prepared, device: torch.device) -> list[Taker]:
    """Every implementation that takes a call, the choice first; on a GPU without the reference, which may be slow."""
    tensors, options = prepared.arguments.tensors, prepared.arguments.options
    found = takers(point.definition.public, *tensors.values(), arch=arch_of(device), **options)
    least = Priority.REFERENCE + (device.type == "cuda")
    return [taker for taker in found if taker.implementation.priority >= least]


class Measuring:
    """Measures one call after another on a device.

    Args:
        device: the device.
        rounds, limit_s: of each call, as `interleave` has them.
    """

    def __init__(self, device: torch.device, rounds: int, limit_s: float) -> None:
        self.device, self._rounds, self._limit_s = device, rounds, limit_s
        self._clock: Clock = clock_for(device)

    def row(self, group: str, point: Point, whole: bool) -> dict[str, Any]:
        """What is found at a call, as the file has it."""
        prepared = Prepared(point, self.device, exact=False)
        arguments = prepared.arguments
        why = opmux.explain(point.definition.public, *arguments.tensors.values(), **arguments.options)
        assert why.chosen is not None  # the reference takes every call
        failed: dict[str, str] = {}
        refused: dict[str, str] = {}
        own = self._entered(self._implementations(point, prepared, failed), prepared, failed)
        torchs = self._entered(self._peers(point, prepared, refused), prepared, refused)
        samples = interleave(self._clock, {**own, **torchs}, self._rounds, self._limit_s, shuffled=random.Random(0))
        found: dict[str, Any] = {
            "group": group,
            "point": point.as_dict(),
            "chosen": why.chosen.name,
            "why": why.chosen.reason,
            "source": why.chosen.time_source,
            "expected_us": {c.name: c.time_us for c in why.candidates if c.time_us is not None},
            "opmux": {name: _figures(samples[name]) for name in own},
            "torch": {name: _figures(samples[name]) for name in torchs},
            "failed": failed,
            "refused": refused,
        }
        if whole:
            found["whole"] = self._whole(point, prepared, torchs)
        return found

    def _implementations(self, point: Point, prepared: Prepared, failed: dict[str, str]) -> dict[str, Run]:
        """The implementations whose results agree, by name."""
        calls: dict[str, Run] = {}
        agreement = Agreement()
        for taker in accepting(point, prepared, self.device):
            name = taker.implementation.full_name
            try:
                run = taker.bound(taker.config())
                agreement.enter(len(calls), prepared.results(run))
            except Exception as error:  # kernels, compilers and plugins may raise anything
                failed[name] = in_one_line(error)
            else:
                calls[name] = prepared.call(run)
        for number in agreement.outside():
            failed[list(calls)[number]] = "wrong: its result differs from the others'"
        return {name: run for name, run in calls.items() if name not in failed}

    def _peers(self, point: Point, prepared: Prepared, refused: dict[str, str]) -> dict[str, Run]:
        """torch's own ways to do a call, by name, as far as they take it."""
        op, arguments = point.definition, prepared.arguments
        given = Arguments(tuple(arguments.tensors.values()), dict(arguments.options))
        made: dict[str, Run] = {}
        for name, make in peers_of(op, given, self.device, compiled=False).items():
            if package_of(name) is None:
                try:
                    made[name] = make()
                except Exception as error:  # a library that does not take the call
                    refused[name] = in_one_line(error)
        return made | choice_peers.quantised(point.op, arguments.tensors, arguments.options)

    def _entered(self, calls: dict[str, Run], prepared: Prepared, left: dict[str, str]) -> dict[str, Timed]:
        """Calls that are warmed up; what raises is left out."""
        entered: dict[str, Timed] = {}
        for name, run in calls.items():
            timed = Timed(run, prepared.restore)
            try:
                self._clock.warm_up(name, timed)
            except Exception as error:  # as above
                left[name] = in_one_line(error)
            else:
                entered[name] = timed
        return entered

    def _whole(self, point: Point, prepared: Prepared, torchs: dict[str, Timed]) -> dict[str, float]:
        """Microseconds of whole calls one after another, host time included: opmux's and the best of torch's."""
        public = point.definition.public
        runs = {name: timed.run for name, timed in torchs.items()} | {"opmux": prepared.call(public)}
        taken: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(WHOLE_ROUNDS):
            for name, run in runs.items():
                taken[name].append(self._one_after_another(run))
        medians = {name: statistics.median(times) for name, times in taken.items()}
        mine = medians.pop("opmux")
        return {"opmux": round(mine, 3), **({"torch": round(min(medians.values()), 3)} if medians else {})}

    def _one_after_another(self, run: Run) -> float:
        once = self._seconds(run, 1)
        calls = max(1, min(WHOLE_CALLS, round(WHOLE_S / once)))
        return self._seconds(run, calls) / calls * 1e6

    def _seconds(self, run: Run, calls: int) -> float:
        self._wait()
        started = time.perf_counter()
        for _ in range(calls):
            run()
        self._wait()
        return time.perf_counter() - started

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _figures(taken: list[float]) -> list[float]:
    """Median and quartiles in microseconds, and the number of rounds."""
    median, _, _, q1, q3 = spread(taken)
    return [round(median, 3), round(q1, 3), round(q3, 3), len(taken)]
