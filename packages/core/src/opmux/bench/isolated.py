"""Jobs run in a pool of spawned processes: one that raises, hangs or kills its process costs only itself."""

import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

_START_S = 120.0
"""The seconds that a process may take to start and import, before its first job."""

_READY = "ready"


class _Worker:
    """A process and its current job."""

    def __init__(self, function: Callable[..., str], job: tuple[Any, ...], number: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, function), daemon=True)
        self.process.start()
        theirs.close()
        self.give(job, number, _START_S)

    def give(self, job: tuple[Any, ...], number: int, limit_s: float) -> None:
        """Send a job, which must be done within ``limit_s`` seconds."""
        self.number, self.deadline = number, time.monotonic() + limit_s
        self.pipe.send(job)

    def stop(self) -> int | None:
        """End the process; returns its exit code if it ends by itself."""
        self.pipe.close()
        self.process.join(1.0)
        code = self.process.exitcode
        if code is None:
            self.process.kill()
            self.process.join()
        return code


def complaints(
    function: Callable[..., str], jobs: Sequence[tuple[Any, ...]], *, workers: int, limit_s: float
) -> Iterator[tuple[int, str]]:
    """Call a function with each job, ``workers`` at a time.

    Args:
        function: takes a job's values and returns a complaint, or an empty text if nothing is wrong. Function and jobs
            are pickled, so functions must be importable by name from a module.
        jobs: the arguments of each call.
        workers: processes at a time. One whose job has failed is replaced, as a device error may outlast its kernel.
        limit_s: seconds that a job may take before its process is killed.

    Yields:
        The number of a job and its complaint, in the order in which jobs end.
    """
    waiting = deque(range(len(jobs)))
    busy: dict[Connection, _Worker] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < workers:
                number = waiting.popleft()
                worker = _Worker(function, jobs[number], number)
                busy[worker.pipe] = worker
            until = min(worker.deadline for worker in busy.values())
            for pipe in wait(list(busy), max(0.0, until - time.monotonic())):
                assert isinstance(pipe, Connection)  # nothing else is waited for
                worker = busy[pipe]
                try:
                    said: str = pipe.recv()
                except (EOFError, ConnectionError):
                    del busy[pipe]
                    yield worker.number, f"its process ended with exit code {worker.stop()}"
                    continue
                if said == _READY:
                    worker.deadline = time.monotonic() + limit_s
                    continue
                number = worker.number
                if waiting and not said:
                    worker.give(jobs[next_number := waiting.popleft()], next_number, limit_s)
                else:
                    del busy[pipe]
                    worker.stop()
                yield number, said
            for pipe, worker in list(busy.items()):
                if time.monotonic() > worker.deadline:
                    del busy[pipe]
                    worker.process.kill()
                    worker.stop()
                    yield worker.number, f"not done within {limit_s:g} s"
    finally:
        for worker in busy.values():
            worker.process.kill()
            worker.stop()


def _serve(pipe: Connection, function: Callable[..., str]) -> None:
    """The loop of a process: run one job after another until the pipe is closed."""
    pipe.send(_READY)
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        try:
            said = function(*job)
        except Exception as error:  # kernels and compilers may raise anything
            said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        pipe.send(said)
