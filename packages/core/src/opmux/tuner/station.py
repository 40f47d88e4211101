"""A station: one device and the processes that work on it, each replaced whenever a candidate hangs or kills it."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

from opmux.bench.isolated import DIED, DONE, LATE, READY, SAID, START_S, Message, Worker
from opmux.errors import OpmuxError
from opmux.tuner.candidates import Candidate, Failure
from opmux.tuner.measuring import Measured, Request, serve
from opmux.tuning.matching import matching_of
from opmux.tuning.measured import Machine
from opmux.tuning.work import Work

_BUILDERS_BYTES = 2.0**34
"""Memory of the device for the arguments of all processes that only build."""

_COPIES = 3
"""Arguments, results and scratch, in copies of what a call reads and writes."""


class Closed(OpmuxError):
    """The station was closed while it measured."""


class _Process:
    """One measuring process, started when it is first needed, and again after a candidate hung or killed it."""

    def __init__(self, device: str, patience_s: float) -> None:
        self._device, self._patience_s = device, patience_s
        self._worker: Worker | None = None
        self._closed = False

    def machine(self) -> Machine:
        """Start, load the plugins and find the device, which has more time than a step of a candidate.

        Raises:
            OpmuxError: where the process does not get as far.
        """
        self._worker = Worker(serve)
        message, _ = self._answer(self._worker, (self._device, None), START_S)
        if message.kind != DONE:
            raise OpmuxError(f"tune: the measuring process on {self._device} does not start: {message.value}")
        found: Machine = message.value
        return found

    def measure(self, request: Request, share: tuple[int, int] | None = None) -> Measured:
        """Do a request; a candidate that hangs or kills the process is a failure, and the others are tried again."""
        excluded = list(request.excluded)
        while True:
            if self._worker is None:
                self.machine()
            assert self._worker is not None
            again = replace(request, excluded=tuple(excluded))
            message, doing = self._answer(self._worker, (self._device, again, share), self._patience_s)
            if message.kind == DONE:
                found: Measured = message.value
                return replace(found, failures=(*excluded[len(request.excluded) :], *found.failures))
            if isinstance(doing, Candidate):
                doing = Failure(doing.implementation, doing.config, str(message.value))
            if message.kind not in (DIED, LATE) or not isinstance(doing, Failure):
                failures = tuple(excluded[len(request.excluded) :])
                return Measured(request.point, failures=failures, problem=f"{message.value} while {doing}")
            excluded.append(doing)

    def close(self) -> None:
        """End the process; a thread that waits for it gets `Closed`."""
        self._closed = True
        if (worker := self._worker) is not None:
            worker.process.kill()

    def _answer(self, worker: Worker, job: tuple[Any, ...], limit_s: float) -> tuple[Message, Any]:
        """Give a job to the process; returns how that ended, and what it was doing then."""
        doing: Any = "starting"
        worker.give(job, limit_s)
        while True:
            message = worker.hear()
            if message.kind == SAID:
                doing = message.value
            elif message.kind != READY:
                if message.kind in (DIED, LATE):
                    self._worker = None
                if self._closed:
                    raise Closed("tune: this station was closed")
                return message, doing


class Station:
    """Measures points on one device.

    Args:
        device: ``cpu`` or ``cuda:0``.
        patience_s: seconds that one step of one candidate may take, its compilation included, before its process is
            killed.
        builders: processes that compile candidates together before they are timed; 0 leaves that to the measuring
            process, one candidate after another.
    """

    def __init__(self, device: str, patience_s: float, builders: int = 0) -> None:
        self.device = device
        self._measuring = _Process(device, patience_s)
        self._builders = [_Process(device, patience_s) for _ in range(builders)]
        self._built: set[str] = set()
        self._parts: dict[str, list[Measured]] = {}

    def machine(self) -> Machine:
        """The machine, as its measuring process sees it.

        Raises:
            OpmuxError: where that process does not get as far.
        """
        return self._measuring.machine()

    def ahead(self, request: Request) -> int:
        """For how many points like a request's to build at a time, so that every builder has something to do."""
        return max(1, len(self._builders) // request.most_configs) if request.most_configs else 1

    def measure(self, request: Request) -> Measured:
        """Measure a point; unless `build` was called for it, its candidates are built first."""
        self.build([request])
        built = self._parts.pop(request.point.key, [])
        failures = tuple(failure for part in built for failure in part.failures)
        measured = self._measuring.measure(replace(request, excluded=(*request.excluded, *failures)))
        return replace(
            measured,
            failures=(*failures, *measured.failures),
            builds=measured.builds + sum(part.builds for part in built),
            build_s=measured.build_s + sum(part.build_s for part in built),
        )

    def build(self, requests: Sequence[Request]) -> None:
        """Let the builders compile, but for points like which one was built before."""
        fresh: dict[str, Request] = {}
        for request in requests:
            if (alike := _alike(request)) not in self._built:
                fresh.setdefault(alike, request)
        count = min([len(self._builders), *map(_most_builders, fresh.values())])
        if not fresh or count < 2:
            return
        self._built.update(fresh)
        shares = max(1, count // len(fresh))
        free: SimpleQueue[_Process] = SimpleQueue()
        for process in self._builders[:count]:
            free.put(process)

        def job(request: Request, which: int) -> Measured:
            process = free.get()
            try:
                return process.measure(request, (which, shares))
            finally:
                free.put(process)

        with ThreadPoolExecutor(count) as pool:
            jobs = {r.point.key: [pool.submit(job, r, n) for n in range(shares)] for r in fresh.values()}
            self._parts.update({key: [part.result() for part in parts] for key, parts in jobs.items()})

    def close(self) -> None:
        """End the processes; a thread that waits for one gets `Closed`."""
        for process in (self._measuring, *self._builders):
            process.close()


def _most_builders(request: Request) -> int:
    """How many processes may hold the arguments of a point at a time."""
    point = request.point
    work = Work(point.definition, point.dtypes, point.options)
    moved = work.moved_bytes({**point.dims, **point.options})
    return int(_BUILDERS_BYTES / (_COPIES * max(1.0, moved)))


def _alike(request: Request) -> str:
    """What points have in common whose kernels are compiled alike.

    For whole spaces that is all but the sizes that change from call to call. The first configs depend on those too.
    """
    point = request.point
    near = matching_of(point.definition).nearest if request.most_configs is None else ()
    return replace(
        point,
        dims={name: size for name, size in point.dims.items() if name not in near},
        options={name: value for name, value in point.options.items() if name not in near},
        count=1,
    ).key
