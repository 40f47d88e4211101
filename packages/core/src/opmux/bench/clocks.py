"""How long a call takes: interleaved rounds, and a clock for each kind of device."""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

Run = Callable[[], Any]

_FLUSH_BYTES = 512 * 2**20
"""Bytes written between calls on a GPU: more than any GPU's last-level cache (MI300X: 256 MiB)."""

_CPU_SAMPLE_S = 1e-3
"""A CPU sample repeats the call until this much time has passed, so that the timer's own cost does not matter."""

_MOST_FLUSHES = 64

_TRIES = 4
"""How often a sample is taken in which the device did not find the whole call queued."""


@dataclass(frozen=True)
class Timed:
    """A call to be timed.

    Attributes:
        run: the call.
        prepare: restores the state before each call, untimed, or None.
    """

    run: Run
    prepare: Run | None = None


class Clock(Protocol):
    """Times calls on one kind of device."""

    def warm_up(self, name: str, timed: Timed) -> None:
        """Run it a few times, so that nothing is compiled or allocated later, and measure roughly how long it takes."""

    def sample(self, name: str, timed: Timed) -> float:
        """Microseconds of one call."""


class CpuClock:
    """The host's clock around as many calls as a sample needs."""

    def __init__(self) -> None:
        self._calls: dict[str, int] = {}

    def warm_up(self, name: str, timed: Timed) -> None:
        """Run it twice; the second run determines how many calls make a sample."""
        self._calls[name] = 1
        self.sample(name, timed)
        took = self.sample(name, timed) / 1e6
        # A call that changes its arguments needs them restored each time: one call per sample.
        self._calls[name] = 1 if timed.prepare else max(1, round(_CPU_SAMPLE_S / max(took, 1e-7)))

    def sample(self, name: str, timed: Timed) -> float:
        """Microseconds of one call, the mean of a sample."""
        if timed.prepare is not None:
            timed.prepare()
        run, calls = timed.run, self._calls[name]
        started = time.perf_counter_ns()
        for _ in range(calls):
            run()
        return (time.perf_counter_ns() - started) / 1e3 / calls


class CudaClock:
    """Events around one call on a cold cache: all device work between them counts.

    The cache is flushed before each call by writing a large buffer, often enough that the host stays ahead: the events
    then include no time in which the device waits for the host, unless the call itself waits for the device. Where the
    device was there before the whole call was queued, since other processes took the host's time, the sample is taken
    again after more flushes.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffer = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device=device)
        self._flushes: dict[str, int] = {}
        self._flush_us = 0.0
        self._waiting: set[str] = set()
        """Calls that wait for the device: it is always there first."""

    def warm_up(self, name: str, timed: Timed) -> None:
        """Run it a few times, and determine how often to flush so that the host stays ahead."""
        if not self._flush_us:
            self._buffer.zero_()
            self._flush_us, _ = self._between(self._buffer.zero_)
        for _ in range(3):
            if timed.prepare is not None:
                timed.prepare()
            timed.run()
        torch.cuda.synchronize(self._device)
        started = time.perf_counter_ns()
        timed.run()
        host_us = (time.perf_counter_ns() - started) / 1e3
        torch.cuda.synchronize(self._device)
        self._flushes[name] = min(_MOST_FLUSHES, 1 + round(1.5 * host_us / self._flush_us))
        self._waiting.discard(name)

    def sample(self, name: str, timed: Timed) -> float:
        """Microseconds between the events."""
        flushes, took = self._flushes[name], 0.0
        for _ in range(1 if name in self._waiting else _TRIES):
            if timed.prepare is not None:
                timed.prepare()
            for _ in range(flushes):
                self._buffer.zero_()
            took, late = self._between(timed.run)
            if not late:
                self._flushes[name] = flushes
                return took
            flushes = min(_MOST_FLUSHES, 2 * flushes)
        self._waiting.add(name)
        return took

    def _between(self, run: Run) -> tuple[float, bool]:
        """Microseconds from before a call to after it, and whether the device was there before it was queued."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        late = start.query()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3, late


def clock_for(device: torch.device) -> Clock:
    """The clock for a device."""
    return CudaClock(device) if device.type == "cuda" else CpuClock()


def interleave(
    clock: Clock,
    contenders: Mapping[str, Timed],
    rounds: int,
    limit_s: float,
    least_rounds: int = 3,
    shuffled: random.Random | None = None,
) -> dict[str, list[float]]:
    """Time every contender once a round, starting each round with a different one, so that drift affects all alike.

    Args:
        contenders: the calls to be timed, already warmed up.
        rounds: the maximum number of rounds.
        limit_s: seconds after which no further round starts, once ``least_rounds`` are done.
        least_rounds: the minimum number of rounds.
        shuffled: a generator that draws a new order for each round, so that neighbours change too.

    Returns:
        Microseconds of each round, by name.
    """
    names = list(contenders)
    samples: dict[str, list[float]] = {name: [] for name in names}
    started = time.perf_counter()
    for number in range(rounds):
        if number >= least_rounds and time.perf_counter() - started > limit_s:
            break
        first = number % max(1, len(names))
        order = names[first:] + names[:first]
        if shuffled is not None:
            shuffled.shuffle(order)
        for name in order:
            samples[name].append(clock.sample(name, contenders[name]))
    return samples
