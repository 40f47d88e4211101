"""The points that are still to be measured: each is taken once, by whichever worker is free."""

import threading
import time
from collections import deque
from collections.abc import Sequence

from opmux.shapes.point import Point


class Backlog:
    """Points in the order in which they are worth measuring.

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
        self.skipped = 0

    def take(self, machine: str) -> Point | None:
        """The next point for a machine, or None where there is none or the time is up.

        Args:
            machine: its `Machine.identity`.
        """
        return next(iter(self.take_several(machine, 1)), None)

    def take_several(self, machine: str, most: int) -> list[Point]:
        """The next points for a machine, none where the time is up."""
        found: list[Point] = []
        with self._lock:
            while self._waiting and len(found) < most and not self._late():
                point = self._waiting.popleft()
                if (point.key, machine) in self._done:
                    self.skipped += 1
                else:
                    found.append(point)
        return found

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
