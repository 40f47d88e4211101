"""The worst latency of a call while new shapes arrive: calls wait for compilers, or builds run in the background.

``python benchmarks/measure_background.py --out FILE [--shapes 50] [--limit SECONDS] [--tiny]``. Each way is a process
of its own with an empty cache. Shapes of ``linear`` arrive one after another that each need kernels of their own. A
call's latency is the time until its result is there. In the background the process goes on, making calls of all shapes
that have arrived, until every one runs what it awaited or time is over.

On a CPU (``--tiny``) a backend takes part whose kernels are files that take a tenth of a second to write.
"""

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

import opmux
from opmux.plugin import Build, BuildDeferred, Implementation, Priority, builds_deferred, hookimpl, temporary_plugin
from opmux_triton.build_reports import reported

WAYS = ("wait", "background")
SLOW_S = 0.1


def sizes(count: int) -> Iterator[tuple[int, int, int]]:
    """Rows, outputs and inputs that need other kernels: by their widths, and by what they can be divided by."""
    rows = (1, 24, 80, 200, 400)
    for number in range(count):
        step = number // len(rows)
        k = 1024 + 64 * step + (8 if number % 2 else 0)
        yield rows[number % len(rows)], 1536 + 128 * (step % 4) + (8 if number % 3 == 0 else 0), k


def build_slowly(path: str) -> None:
    """What the slow backend's compiler does."""
    time.sleep(SLOW_S)
    Path(path).touch()


@contextmanager
def slow_backend(folder: Path) -> Iterator[None]:
    """A backend of ``linear`` for the CPU that has a kernel for every width of the inputs."""

    def target(
        x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, *, out_dtype: torch.dtype | None
    ) -> torch.Tensor:
        kernel = folder / f"kernel-{x.shape[-1]}-{w.shape[0]}"
        if not kernel.exists():
            if builds_deferred():
                name = f"{Path(__file__).stem}:build_slowly"
                raise BuildDeferred(Build(f"kernel {kernel.name}", kernel.name, name, (str(kernel),)))
            build_slowly(str(kernel))
        return torch.nn.functional.linear(x, w, bias)

    class Slow:
        OPMUX_API_VERSION = 1

        @staticmethod
        @hookimpl
        def opmux_implementations() -> list[Implementation]:
            return [Implementation(op="linear", target=target, archs=("cpu",), priority=Priority.SPECIALISED)]

    with temporary_plugin(Slow(), "slow", "opmux-slow", "0"):
        yield


class Arrivals:
    """The shapes that arrive, and how long the calls took."""

    def __init__(self, tiny: bool, count: int) -> None:
        self.device, self.dtype = ("cpu", torch.float32) if tiny else ("cuda", torch.bfloat16)
        self.arrivals = list(sizes(count))
        self.first_us: list[float] = []
        self.worst_us = 0.0
        self.calls: list[Callable[[], Any]] = []

    def warm_up(self) -> None:
        """Import, start and initialise what every process does once, whoever waits for compilers."""
        x, w = (torch.randn(512, 512, device=self.device, dtype=self.dtype) for _ in "xw")
        if self.device == "cuda":
            opmux.policy.prefer("triton")  # what is predicted to be fastest may be a library, which builds nothing
        opmux.linear(x, w)
        opmux.linear(x, w, backend="reference")

    def arrive(self, rows: int, outputs: int, inputs: int) -> None:
        """A shape arrives: its first call."""
        x = torch.randn(rows, inputs, device=self.device, dtype=self.dtype)
        w = torch.randn(outputs, inputs, device=self.device, dtype=self.dtype)
        self.calls.append(lambda: opmux.linear(x, w))
        self.first_us.append(self.timed(self.calls[-1]))

    def timed(self, call: Callable[[], Any]) -> float:
        """Microseconds until a call's result is there."""
        started = time.perf_counter_ns()
        call()
        if self.device == "cuda":
            torch.cuda.synchronize()
        taken = (time.perf_counter_ns() - started) / 1e3
        self.worst_us = max(self.worst_us, taken)
        return taken


class Built(logging.Handler):
    """Adds up the builds of the helper process, from what the log says of them."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Note one."""
        if record.getMessage().startswith("kernel ") and "was built in the background, in" in record.getMessage():
            self.seconds.append(float(record.args[1]))  # type: ignore[index,arg-type]


def serve(way: str, count: int, limit: float, tiny: bool) -> dict[str, Any]:
    """One way, in this process."""
    until = time.monotonic() + limit
    logger, built = logging.getLogger("opmux"), Built()
    logger.setLevel(logging.INFO)
    logger.addHandler(built)
    with ExitStack() as stack:
        if tiny:
            stack.enter_context(slow_backend(Path(os.environ["TRITON_CACHE_DIR"])))
        stack.enter_context(reported())
        shapes = Arrivals(tiny, count)
        shapes.warm_up()
        opmux.policy.build(way)
        for arrival in shapes.arrivals:
            if time.monotonic() > until:
                break
            shapes.arrive(*arrival)
        while way == "background":
            with opmux.trace() as trace:  # which drops the plans: not timed
                for call in shapes.calls:
                    call()
            awaiting = sum(row.awaiting for row in trace.rows)
            if not awaiting or time.monotonic() > until:
                break
            for call in shapes.calls:
                shapes.timed(call)
            time.sleep(0.05)
        found = {
            "shapes": len(shapes.first_us), "worst_ms": round(shapes.worst_us / 1e3, 2),
            "median_first_ms": round(statistics.median(shapes.first_us) / 1e3, 2),
            "all_first_s": round(sum(shapes.first_us) / 1e6, 2), "chosen": chosen(shapes),
        }  # fmt: skip
        if way == "background":
            found |= {"still_awaited": awaiting, "builds": len(built.seconds), "built_s": round(sum(built.seconds), 1)}
            opmux.policy.build("wait")
            if len(shapes.calls) > 1:  # what remains is fast: what a call takes when nothing is built any more
                for call in shapes.calls:
                    call()
                found["settled_worst_ms"] = round(max(shapes.timed(c) for c in shapes.calls) / 1e3, 2)
    return found


def chosen(shapes: Arrivals) -> dict[str, int]:
    """Implementation -> the number of shapes that it runs at the end."""
    with opmux.trace() as trace:
        for call in shapes.calls:
            call()
    return {row.backend: row.calls for row in trace.rows}


def measure(count: int, limit: float, tiny: bool) -> dict[str, Any]:
    """Both ways, each in a process of its own."""
    found: dict[str, Any] = {}
    started = time.monotonic()
    for place, way in enumerate(WAYS):
        left = (limit - (time.monotonic() - started)) / (len(WAYS) - place)
        command = [sys.executable, __file__, "--way", way, "--shapes", str(count), "--limit", str(max(5.0, left - 20))]
        with tempfile.TemporaryDirectory(prefix="background-") as cache:
            own = {"TRITON_CACHE_DIR": cache, "OPMUX_CACHE": cache}
            try:
                done = subprocess.run(
                    [*command, *(["--tiny"] if tiny else [])], env={**os.environ, **own}, timeout=max(30.0, left),
                    capture_output=True, text=True, check=True,
                )  # fmt: skip
            except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
                print(f"{way}: {error}\n{(error.stderr or '')[-2000:]}", flush=True)
                continue
        found[way] = json.loads(done.stdout.strip().splitlines()[-1])
        print(f"{way:12} {found[way]}", flush=True)
    return found


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--shapes", type=int, default=50)
    parser.add_argument("--limit", type=float, default=200.0)
    parser.add_argument(
        "--tiny", action="store_true", help="on the CPU with a slow backend, to see that everything runs"
    )
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        print(json.dumps(serve(arguments.way, arguments.shapes, arguments.limit, arguments.tiny)))
        return
    found = measure(arguments.shapes, arguments.limit, arguments.tiny)
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
