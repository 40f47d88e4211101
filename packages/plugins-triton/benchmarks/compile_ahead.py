"""Kernels of calls, compiled by processes that never touch the device: it can measure other calls meanwhile.

``python benchmarks/compile_ahead.py shapes.json [--jobs 14] [--configs 1] [--arch sm_90]`` compiles what the Triton
backend's implementations launch for the calls of a file of shapes into Triton's own cache, in the order in which the
calls need it, so that a tuner on the same machine finds it there. ``measure_choice.py`` uses `Ahead` for its calls.
"""

import argparse
import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import torch
from triton.compiler import make_backend
from triton.runtime.jit import create_function_from_signature

from opmux.arch import known_arch
from opmux.callpath.op import OPS
from opmux.plugins import loading
from opmux.running import background
from opmux.shapes import Point, read_shapes
from opmux.tuner.candidates import Entrant, entrants_of, takers_of
from opmux_triton.aot.build import build_launcher, compile_launch, target_of
from opmux_triton.launch import Launch, recording

BACKEND = "triton"
NICE = 10
"""By how much processes that compile give way to the one that measures."""
POLL_S = 0.02


def with_forwards(points: Iterable[Point]) -> Iterator[Point]:
    """Each point, after that of the forward that makes its log-sum-exp, if it takes one."""
    for point in points:
        forward = OPS.get(f"{point.op.removesuffix('_backward')}_lse")
        if forward is not None and "lse" in point.dtypes:
            signature = forward.signature
            dtypes = {t.name: point.dtypes[t.name] for t in signature.tensors if t.name in point.dtypes}
            dims = {name: point.dims[name] for name in signature.binders}
            options = {o.name: point.options[o.name] for o in signature.options if o.name in point.options}
            yield Point(forward.name, dtypes, dims, options)
        yield point


def launches_of(point: Point, arch: str, configs: int) -> Iterator[Launch]:
    """What the Triton backend launches for a call; what cannot be recorded is left to the process that measures.

    Args:
        point: the call.
        arch: ``sm_90``, ...
        configs: of each implementation, as the tuner takes them: the heuristic's, then the first of its space; with 1
            the config that the call would get.
    """
    tensors = list(point.tensors().values())
    for taker in takers_of(point, known_arch(arch), None):
        if taker.implementation.backend != BACKEND:
            continue
        makes: list[Any] = [lambda taker=taker: taker.bound(taker.config())]
        if configs > 1:
            makes = [e.make for e in entrants_of(taker, most=configs) if isinstance(e, Entrant)]
        for make in makes:
            with contextlib.suppress(Exception), torch.no_grad(), background.building_here():
                with recording(arch) as recorded:
                    make()(*tensors, **taker.call.options)
                yield from recorded.launches


class Kernels:
    """The kernels of launches, each once as Triton tells them apart.

    Attributes:
        launches: one launch of each kernel, in the order in which they are needed first.
    """

    def __init__(self, arch: str) -> None:
        self.launches: list[Launch] = []
        self._backend = make_backend(target_of(arch))
        self._binders: dict[int, Any] = {}
        self._numbers: dict[str, int] = {}

    def number_of(self, launch: Launch) -> int:
        """The number of a launch's kernel."""
        kernel = launch.kernel
        if id(kernel) not in self._binders:
            self._binders[id(kernel)] = create_function_from_signature(kernel.signature, kernel.params, self._backend)
        _, specialised, options = self._binders[id(kernel)](*launch.arguments, debug=False, **launch.meta)
        key = f"{kernel.__module__}.{kernel.__name__} {specialised} {sorted(options.items(), key=str)}"
        number = self._numbers.setdefault(key, len(self._numbers))
        if number == len(self.launches):
            self.launches.append(launch)
        return number


class Ahead:
    """Processes that compile the kernels of calls, in the order of the calls.

    Args:
        points: the calls.
        arch: what for.
        jobs: processes; 0 compiles nothing, and every call counts as ready.
        configs: see `launches_of`.
    """

    def __init__(self, points: Sequence[Point], arch: str, jobs: int, configs: int = 1) -> None:
        if jobs < 0:
            raise ValueError(f"`jobs` expected the number of processes that compile, got {jobs}")
        self.problems: list[str] = []
        self._arch, self._needs, self._kernels = arch, dict[str, set[int]](), Kernels(arch) if jobs else None
        self._done: set[int] = set()
        self._began = time.perf_counter()
        self._processes: list[ForkProcess] = []
        if self._kernels is None:
            return
        for point in points:
            needed = self._needs.setdefault(point.key, set())
            for each in with_forwards([point]):
                needed.update(map(self._kernels.number_of, launches_of(each, arch, configs)))
        context = get_context("fork")  # a kernel and its arguments cannot be sent to processes that are spawned
        self._next, self._said = context.Value(ctypes.c_long, 0), context.SimpleQueue()
        self._processes = [context.Process(target=self._work, daemon=True) for _ in range(jobs)]
        for process in self._processes:
            process.start()

    @property
    def kernels(self) -> int:
        """How many there are."""
        return len(self._kernels.launches) if self._kernels else 0

    @property
    def compiled(self) -> int:
        """How many are finished."""
        return len(self._done)

    @property
    def busy(self) -> bool:
        """Whether something is still being compiled."""
        while self._processes and not self._said.empty():
            number, problem = self._said.get()
            self._done.add(number)
            self.problems += [problem] if problem else []
        return len(self._done) < self.kernels and any(process.is_alive() for process in self._processes)

    def ready(self, point: Point) -> bool:
        """Whether a call's kernels are compiled, or nobody compiles them any more."""
        return not self.busy or self._needs[point.key] <= self._done

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()

    def __str__(self) -> str:
        return f"{self.compiled} of {self.kernels} kernels compiled in {time.perf_counter() - self._began:.0f} s"

    def _work(self) -> None:
        assert self._kernels is not None
        os.nice(NICE)
        while True:
            with self._next.get_lock():
                number, self._next.value = self._next.value, self._next.value + 1
            if number >= len(self._kernels.launches):
                os._exit(0)  # what the parent registered for its exit is not this process's to do
            self._said.put((number, self._compiled(self._kernels.launches[number])))

    def _compiled(self, launch: Launch) -> str:
        """Compile a kernel; returns what went wrong."""
        try:
            compiled, _ = compile_launch(launch, self._arch)
        except Exception as error:  # the compiler may raise anything; the process that measures will say it again
            return f"{launch.kernel.__name__}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        with contextlib.suppress(Exception):  # without a driver or a C compiler it is compiled where it is launched
            build_launcher(compiled)
        return ""


def main(words: list[str] | None = None) -> int:
    """Compile; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("shapes", type=Path, help="a file of shapes")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument(
        "--configs", type=int, default=1, help="configs of each implementation, as the tuner tries them"
    )
    given = parser.parse_args(words)
    loading.ensure_loaded()
    ahead = Ahead(read_shapes(given.shapes), given.arch, given.jobs, given.configs)
    while ahead.busy:
        time.sleep(POLL_S)
    sys.stdout.write("".join(f"not compiled: {problem}\n" for problem in ahead.problems) + f"{ahead}\n")
    return int(ahead.compiled < ahead.kernels)


if __name__ == "__main__":
    sys.exit(main())
