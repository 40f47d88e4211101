"""Jobs run in spawned processes: one that raises, hangs or kills its process costs only itself."""

import contextlib
import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

START_S = 120.0
"""The seconds that a process may take to start and import, before its first job."""

_LAST_S = 10.0
"""The seconds that a process may take to end after it has closed its pipe."""

READY, SAID, DONE, RAISED, DIED, LATE = "ready", "said", "done", "raised", "died", "late"


@dataclass(frozen=True)
class Message:
    """What became of a job.

    Attributes:
        kind: ``said`` for what a job tells while it runs; ``done``, ``raised``, ``died`` (with its process) and
            ``late`` (its process was killed) end it; ``ready`` comes before the first job.
        value: what the job told or returned, or a text that says what went wrong.
    """

    kind: str
    value: Any = None


class Worker:
    """A process that runs one job at a time, given by `give` and followed by `hear`.

    Args:
        function: called with the values of each job; it may `tell` what it does. Function, jobs and results are
            pickled, so functions must be importable by name from a module.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, function), daemon=True)
        self.process.start()
        theirs.close()
        self.deadline = time.monotonic() + START_S
        self._limit_s = START_S

    def give(self, job: tuple[Any, ...], limit_s: float) -> None:
        """Send a job, which must be done, or say something, within ``limit_s`` seconds of what it said last."""
        self._limit_s = limit_s
        self.deadline = max(self.deadline, time.monotonic() + limit_s)
        with contextlib.suppress(OSError):  # the process is gone: `hear` will say so
            self.pipe.send(job)

    def hear(self) -> Message:
        """Wait for the next message; after ``died`` and ``late`` the process is gone."""
        if not self.pipe.poll(max(0.0, self.deadline - time.monotonic())):
            return self.give_up()
        return self.read()

    def read(self) -> Message:
        """The next message, which is there or imminent."""
        try:
            message: Message = self.pipe.recv()
        except (EOFError, OSError):
            return Message(DIED, f"its process ended with exit code {self.stop(_LAST_S)}")
        self.deadline = time.monotonic() + self._limit_s
        return message

    def give_up(self) -> Message:
        """Kill the process, since it has said nothing for too long."""
        self.kill()
        return Message(LATE, f"not done within {self._limit_s:g} s")

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.stop()

    def stop(self, within_s: float = 1.0) -> int | None:
        """End the process; returns its exit code if it ends by itself within this time."""
        self.pipe.close()
        self.process.join(within_s)
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
        function: takes a job's values and returns a complaint, or an empty text if nothing is wrong; see `Worker`.
        jobs: the arguments of each call.
        workers: processes at a time. One whose job has failed is replaced, as a device error may outlast its kernel.
        limit_s: seconds that a job may take before its process is killed.

    Yields:
        The number of a job and its complaint, in the order in which jobs end.
    """
    waiting = deque(range(len(jobs)))
    busy: dict[Connection, tuple[Worker, int]] = {}

    def give(worker: Worker) -> None:
        number = waiting.popleft()
        busy[worker.pipe] = worker, number
        worker.give(jobs[number], limit_s)

    try:
        while waiting or busy:
            while waiting and len(busy) < workers:
                give(Worker(function))
            until = min(worker.deadline for worker, _ in busy.values())
            ready = wait(list(busy), max(0.0, until - time.monotonic()))
            for pipe, (worker, number) in list(busy.items()):
                if pipe in ready:
                    message = worker.read()
                elif time.monotonic() > worker.deadline:
                    message = worker.give_up()
                else:
                    continue
                if message.kind in (READY, SAID):
                    continue
                del busy[pipe]
                if waiting and message.kind == DONE and not message.value:
                    give(worker)
                elif message.kind in (DONE, RAISED):
                    worker.stop()
                yield number, message.value
    finally:
        for worker, _ in busy.values():
            worker.kill()


_parent: list[Connection] = []
"""In a process that serves jobs, the pipe to the process that gives them."""


def tell(value: Any) -> None:
    """Say what the current job does to the process that gave it; nothing happens where there is none."""
    for pipe in _parent:
        pipe.send(Message(SAID, value))


def in_one_line(error: BaseException) -> str:
    """An exception's class and the beginning of its text."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _serve(pipe: Connection, function: Callable[..., Any]) -> None:
    """The loop of a process: run one job after another until the pipe is closed."""
    _parent.append(pipe)
    pipe.send(Message(READY))
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        try:
            said = Message(DONE, function(*job))
        except Exception as error:  # kernels and compilers may raise anything
            said = Message(RAISED, in_one_line(error))
        try:
            pipe.send(said)
        except OSError:
            return  # whoever gave the job is gone
