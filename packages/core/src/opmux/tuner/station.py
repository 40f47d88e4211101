"""A station: one device and the process that measures on it, replaced whenever a candidate hangs or kills it."""

from dataclasses import replace
from typing import Any

from opmux.bench.isolated import DIED, DONE, LATE, READY, SAID, START_S, Message, Worker
from opmux.errors import OpmuxError
from opmux.tuner.candidates import Candidate, Failure
from opmux.tuner.measuring import Measured, Request, serve
from opmux.tuning.measured import Machine


class Closed(OpmuxError):
    """The station was closed while it measured."""


class Station:
    """Measures points on one device, each in its process.

    Args:
        device: ``cpu`` or ``cuda:0``.
        patience_s: seconds that one step of one candidate may take, its compilation included, before the process is
            killed.
    """

    def __init__(self, device: str, patience_s: float) -> None:
        self.device, self._patience_s = device, patience_s
        self._worker: Worker | None = None
        self._closed = False

    def machine(self) -> Machine:
        """The machine, as its measuring process sees it.

        Raises:
            OpmuxError: where that process does not get as far.
        """
        return self._started(Worker(serve))

    def _started(self, worker: Worker) -> Machine:
        """Let a new process load the plugins and find its device, which has more time than a step of a candidate."""
        self._worker = worker
        message, _ = self._answer(worker, None, START_S)
        if message.kind != DONE:
            raise OpmuxError(f"tune: the measuring process on {self.device} does not start: {message.value}")
        found: Machine = message.value
        return found

    def measure(self, request: Request) -> Measured:
        """Measure a point; a candidate that hangs or kills the process is a failure, and the others are tried again."""
        excluded = list(request.excluded)
        while True:
            if self._worker is None:
                self._started(Worker(serve))
            assert self._worker is not None
            again = replace(request, excluded=tuple(excluded))
            message, doing = self._answer(self._worker, again, self._patience_s)
            if message.kind == DONE:
                found: Measured = message.value
                return replace(found, failures=(*excluded[len(request.excluded) :], *found.failures))
            if isinstance(doing, Candidate):
                doing = Failure(doing.implementation, doing.config, str(message.value))
            if message.kind not in (DIED, LATE) or not isinstance(doing, Failure):
                return Measured(request.point, failures=tuple(excluded), problem=f"{message.value} while {doing}")
            excluded.append(doing)

    def _answer(self, worker: Worker, request: Request | None, limit_s: float) -> tuple[Message, Any]:
        """Give a request to the process; returns how that ended, and what it was doing then."""
        doing: Any = "starting"
        worker.give((self.device, request), limit_s)
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

    def close(self) -> None:
        """End the process; a thread that waits for it gets `Closed`."""
        self._closed = True
        if (worker := self._worker) is not None:
            worker.process.kill()
