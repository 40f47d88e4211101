"""The program that times paged decode: what it reads from a profiler's trace."""

import runpy
from pathlib import Path
from typing import Any

import pytest

PROGRAM = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "measure_paged.py"))


def kernel(name: str, ts: float, dur: float, grid: int) -> dict[str, Any]:
    args = {"grid": [grid, 1, 1], "registers per thread": 64, "shared memory": 1024}
    return {"cat": "kernel", "name": name, "ts": ts, "dur": dur, "args": args}


def test_kernels_of_several_calls_are_told_by_their_place() -> None:
    events: list[dict[str, Any]] = [{"cat": "gpu_memset", "name": "Memset", "ts": 0, "dur": 9}]
    for number in range(3):
        begun = 100.0 * number
        events.append(kernel("join", begun + 12 + number, 2.0, 8))  # a trace has no order
        events.append(kernel("attend_shares", begun + 2, 10.0 + number, 264))
        events.append(kernel("vectorized_elementwise_kernel<4, FillFunctor>", begun, 1.0, 1))
    first, second = PROGRAM["kernels_in"]({"traceEvents": events}, 3)
    assert (first["name"], first["us"]) == ("attend_shares", 11.0)
    assert first["grid"] == [264, 1, 1]
    assert first["registers per thread"] == 64
    assert (first["from_us"], second["from_us"]) == (0.0, 11.0)
    assert (second["name"], second["us"], second["shared memory"]) == ("join", 2.0, 1024)


def test_a_trace_that_lacks_a_kernel_is_refused() -> None:
    events = [kernel("attend_shares", 0.0, 1.0, 8), kernel("join", 2.0, 1.0, 8), kernel("attend_shares", 9.0, 1.0, 8)]
    with pytest.raises(RuntimeError, match="the same kernels in each of 2 calls, got 3 kernels in all"):
        list(PROGRAM["kernels_in"]({"traceEvents": events}, 2))
