"""A process that builds what calls are not to wait for: started with the first build, one build at a time.

A thread hands it the builds and waits for the answers, so that no call waits for a pipe. A process that dies is started
again, and the build that it died of is tried once more. It sees no GPU and ends with this process.
"""

import atexit
import functools
import logging
import os
import pickle
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import IO, Any

logger = logging.getLogger("opmux")

PATIENCE_S = 600.0
"""How long a build may take before its process is killed."""

TRIES = 2
"""How often a build is begun whose process dies."""

_COMMAND = "import sys; sys.path[:] = {path!r}; from opmux.running.build_loop import serve; serve({answers})"
_HIDDEN = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "OPMUX_BUILD": "wait"}
"""Compilers need no GPU, and a context on one would cost memory. What is built there must not be put off again."""


@dataclass(frozen=True)
class Build:
    """Something that a helper process can build, such as a kernel, into a cache where this process will find it.

    Attributes:
        name: what is built, as messages call it.
        key: equal for equal builds.
        function: ``"module:function"``; the helper process calls it.
        arguments: what it is called with; they are pickled.
    """

    name: str
    key: str
    function: str
    arguments: tuple[Any, ...] = ()


@dataclass(eq=False)
class Job:
    """A build that was handed over.

    Attributes:
        finished: whether it is over, for better or worse.
        problem: why there is nothing built; None where there is.
        refused: whether the build itself raised, and not its process died.
    """

    build: Build
    finished: bool = False
    problem: str | None = None
    refused: bool = False
    seconds: float = 0.0


class _Died(Exception):
    """The process ended, or did not answer in time; the message says how."""


@dataclass(eq=False)
class Helper:
    """The process, and the builds that wait for it."""

    _process: "subprocess.Popen[bytes] | None" = None
    _answers: IO[bytes] | None = None
    _thread: threading.Thread | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _waiting: "queue.SimpleQueue[Job]" = field(default_factory=queue.SimpleQueue)

    @property
    def pid(self) -> int | None:
        """The id of the process, or None where none runs."""
        return None if self._process is None else self._process.pid

    def give(self, build: Build) -> Job:
        """Hand over a build; returns at once."""
        job = Job(build)
        self._waiting.put(job)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="opmux builds", daemon=True)
                self._thread.start()
        return job

    def stop(self) -> None:
        """End the process, and the compilers that it has started."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, self._answers):
            if pipe is not None:
                with suppress(OSError):  # what the process did not read is lost with it
                    pipe.close()

    def _work(self) -> None:
        while True:
            job = self._waiting.get()
            started = time.perf_counter()
            job.problem, job.refused = self._result_of(job.build)
            job.seconds = time.perf_counter() - started
            job.build = replace(job.build, arguments=())  # jobs are kept, and sources may be long
            if job.problem is None:
                logger.info("%s was built in the background, in %.1f s", job.build.name, job.seconds)
            job.finished = True

    def _result_of(self, build: Build) -> tuple[str | None, bool]:
        """What went wrong with a build, or None; and whether the build itself raised."""
        try:
            arguments = pickle.dumps(build.arguments)
        except Exception as error:  # objects may raise anything when they are pickled
            return f"its arguments cannot be sent to a process: {type(error).__name__}: {error}", True
        ends = []
        for _ in range(TRIES):
            try:
                problem = self._answer(build.function, arguments)
                return problem, problem is not None
            except _Died as death:
                ends.append(str(death))
                self.stop()
            except OSError as error:
                return f"no process can be started to build it: {error}", False
        return f"the process that built it ended {TRIES} times: {'; '.join(ends)}", False

    def _answer(self, function: str, arguments: bytes) -> str | None:
        if self._process is None:
            self._process, self._answers = _started()
        process, answers = self._process, self._answers
        assert process.stdin is not None
        assert answers is not None
        try:
            pickle.dump((function, arguments), process.stdin)
            process.stdin.flush()
            if not select.select([answers], [], [], PATIENCE_S)[0]:
                raise _Died(f"not done within {PATIENCE_S:g} s")
            problem: str | None = pickle.load(answers)  # written by `build_loop` alone: nobody else has this pipe
        except (EOFError, OSError, ValueError, pickle.UnpicklingError):
            # Nothing, or half an answer; or another thread has stopped the process and closed its pipes meanwhile.
            raise _Died(f"exit code {process.wait()}") from None
        return problem


def _started() -> "tuple[subprocess.Popen[bytes], IO[bytes]]":
    """The process, and the end of a pipe where it answers: its output may be written to by whatever it imports."""
    ours, theirs = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND.format(path=sys.path, answers=theirs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=(theirs,),
            env={**os.environ, **_HIDDEN},
            start_new_session=True,  # an interrupt from the terminal is for this process, which then ends the other
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return process, os.fdopen(ours, "rb")


@functools.cache
def helper() -> Helper:
    """The helper of this process."""
    made = Helper()
    atexit.register(made.stop)
    return made


os.register_at_fork(after_in_child=helper.cache_clear)
