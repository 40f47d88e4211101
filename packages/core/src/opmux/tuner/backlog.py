"""The points that are still to be measured: each is taken once, by whichever worker is free."""

import threading
import time
from collections import deque
from collections.abc import Hashable, Sequence

from opmux.shapes.point import Point

_NEAR = 16
"""How many points a worker looks at for one whose kernels it has loaded, where the time is limited."""


class Backlog:
    """Points in the order in which they are worth measuring.

    What an op needs once in a process, such as loading its kernels and the handles of libraries, should be paid by as
    few workers as keep all of them busy: a worker leaves points of ops that only others have begun to them, as long as
    there are points for it nearby.

    Args:
        points: in that order.
        done: points that are finished, as `Journal.done` gives them: they are skipped on that machine.
        limit_s: seconds after which no further point is taken; None for no limit.
    """

    def __init__(self, points: Sequence[Point], done: set[tuple[str, str]], limit_s: float | None) -> None:
        self._waiting, self._done = deque(points), done
        self._began = time.monotonic()
        self._until = None if limit_s is None else time.monotonic() + limit_s
        self._lock = threading.Lock()
        self._begun: dict[str, set[Hashable]] = {}
        self.skipped = 0

    def take(self, machine: str, worker: Hashable = None) -> Point | None:
        """The next point for a machine, or None where there is none or the time is up.

        Args:
            machine: its `Machine.identity`.
            worker: who asks, where there are several.
        """
        return next(iter(self.take_several(machine, 1, worker)), None)

    def take_several(self, machine: str, most: int, worker: Hashable = None) -> list[Point]:
        """The next points for a machine, none where the time is up."""
        found: list[Point] = []
        with self._lock:
            while self._waiting and len(found) < most and not self._late():
                place = self._place_for(worker)
                point = self._waiting[place]
                del self._waiting[place]
                if (point.key, machine) in self._done:
                    self.skipped += 1
                else:
                    self._begun.setdefault(point.op, set()).add(worker)
                    found.append(point)
        return found

    def _place_for(self, worker: Hashable) -> int:
        """The place of the first point of an op that this worker has begun, or nobody; 0 where none is near."""
        near = len(self._waiting) if self._until is None else _NEAR
        for place, point in zip(range(near), self._waiting, strict=False):
            begun = self._begun.get(point.op)
            if begun is None or worker in begun:
                return place
        return 0

    def put_back(self, points: Sequence[Point]) -> None:
        """Points that were taken and not measured."""
        with self._lock:
            self._waiting.extendleft(reversed(points))

    @property
    def late(self) -> bool:
        """Whether the time is up."""
        with self._lock:
            return self._late()

    def stop(self) -> None:
        """Let no further point be taken."""
        with self._lock:
            self._until = 0.0

    @property
    def took_s(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._began

    @property
    def left(self) -> int:
        """How many points nobody has taken."""
        return len(self._waiting)

    def _late(self) -> bool:
        return self._until is not None and time.monotonic() > self._until
