"""Rounds in turns, and the two clocks."""

import time
from types import SimpleNamespace

import pytest
import torch

from opmux.bench import clocks
from opmux.bench.clocks import CpuClock, CudaClock, Timed, interleave


class Told:
    """A clock that only writes down whose turn it was."""

    def __init__(self, takes_s: float = 0.0) -> None:
        self.turns, self._takes_s = [], takes_s

    def warm_up(self, name: str, timed: Timed) -> None:
        raise AssertionError("interleave warms nobody up")

    def sample(self, name: str, timed: Timed) -> float:
        self.turns.append(name)
        time.sleep(self._takes_s)
        return float(len(self.turns))


NOBODY = Timed(lambda: None)


def test_each_round_has_everybody_once_and_begins_with_another() -> None:
    clock = Told()
    samples = interleave(clock, {"a": NOBODY, "b": NOBODY, "c": NOBODY}, rounds=4, limit_s=60)
    assert "".join(clock.turns) == "abcbcacababc"
    assert samples["a"] == [1.0, 6.0, 8.0, 10.0]
    assert {name: len(s) for name, s in samples.items()} == {"a": 4, "b": 4, "c": 4}


def test_after_the_limit_no_round_is_begun_but_the_least() -> None:
    assert len(interleave(Told(0.01), {"a": NOBODY}, rounds=50, limit_s=0.0)["a"]) == 3
    assert len(interleave(Told(), {"a": NOBODY}, rounds=2, limit_s=0.0)["a"]) == 2


def test_nobody_takes_no_time() -> None:
    assert interleave(Told(), {}, rounds=5, limit_s=1) == {}


def test_a_cpu_sample_is_as_many_calls_as_last_long_enough() -> None:
    calls = []
    clock, timed = CpuClock(), Timed(lambda: calls.append(time.sleep(1e-4)))
    clock.warm_up("a", timed)
    assert len(calls) == 2
    took = clock.sample("a", timed)
    assert 2 < len(calls) <= 2 + 10
    assert took >= 100


def test_a_cpu_sample_of_a_call_that_needs_preparing_is_one_call() -> None:
    done = []
    clock, timed = CpuClock(), Timed(lambda: done.append("run"), lambda: done.append("prepare"))
    clock.warm_up("a", timed)
    clock.sample("a", timed)
    assert done == ["prepare", "run"] * 3


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A GPU whose events count what is queued: a flush is 100 us, the call 7; so often it is there before the call."""
    gpu = SimpleNamespace(queue=[], marks=[], early=0)

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = len(gpu.queue)

        def query(self) -> bool:
            if "run" not in gpu.queue[self.at :]:
                return False
            gpu.early -= 1
            return gpu.early >= 0

        def synchronize(self) -> None:
            gpu.marks.append(self.at)

        def elapsed_time(self, other: "Event") -> float:
            return sum({"flush": 0.1, "run": 0.007}[work] for work in gpu.queue[self.at : other.at])

    buffer = SimpleNamespace(zero_=lambda: gpu.queue.append("flush"))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(clocks.torch, "empty", lambda *_, **__: buffer)
    return gpu


def test_a_gpu_sample_holds_the_call_alone_on_a_flushed_cache(device: SimpleNamespace) -> None:
    clock, timed = CudaClock(torch.device("cuda")), Timed(lambda: device.queue.append("run"))
    clock.warm_up("a", timed)
    device.queue.clear()
    assert clock.sample("a", timed) == pytest.approx(7.0)
    assert device.queue[-1] == "run"
    assert set(device.queue[:-1]) == {"flush"}


def test_the_host_is_given_time_to_be_ahead(device: SimpleNamespace) -> None:
    def slow_on_the_host() -> None:
        time.sleep(2e-3)
        device.queue.append("run")

    clock = CudaClock(torch.device("cuda"))
    clock.warm_up("a", Timed(slow_on_the_host))
    device.queue.clear()
    clock.sample("a", Timed(slow_on_the_host))
    assert 30 <= device.queue.count("flush") <= clocks._MOST_FLUSHES


def runs_of(device: SimpleNamespace) -> list[int]:
    """How many flushes come before each run that is queued."""
    flushes = "".join("f" if work == "flush" else "r" for work in device.queue).split("r")
    return [len(each) for each in flushes[:-1]]


def test_a_sample_that_waited_for_the_host_is_taken_again_after_more_flushes(device: SimpleNamespace) -> None:
    prepared = []
    clock, timed = (
        CudaClock(torch.device("cuda")),
        Timed(lambda: device.queue.append("run"), lambda: prepared.append(1)),
    )
    clock.warm_up("a", timed)
    device.queue.clear()
    prepared.clear()
    device.early = 2
    assert clock.sample("a", timed) == pytest.approx(7.0)
    assert (runs_of(device), len(prepared)) == ([1, 2, 4], 3)
    device.queue.clear()
    clock.sample("a", timed)
    assert runs_of(device) == [4]


def test_a_call_that_waits_for_the_device_is_taken_as_it_is(device: SimpleNamespace) -> None:
    clock, timed = CudaClock(torch.device("cuda")), Timed(lambda: device.queue.append("run"))
    clock.warm_up("a", timed)
    device.queue.clear()
    device.early = 1000
    assert clock.sample("a", timed) == pytest.approx(7.0)
    assert runs_of(device) == [1, 2, 4, 8]
    device.queue.clear()
    clock.sample("a", timed)
    assert runs_of(device) == [1]
