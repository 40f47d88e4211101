"""How far a run of the tuner is, and how long it still takes."""

from dataclasses import dataclass

from opmux.tuner.backlog import Backlog


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes:
        done: points that are finished, those of an earlier run included.
        total: all points.
        left_s: seconds that it will take from here; None while that is not known.
        now: the point that was finished last.
    """

    done: int
    total: int
    left_s: float | None
    now: str

    def __str__(self) -> str:
        left = "" if self.left_s is None else f", {self.left_s:.0f} s left"
        return f"{self.done} of {self.total}{left}: {self.now}"


def seconds_left(measured: int, total: int, backlog: Backlog, limit_s: float | None) -> float:
    """Seconds that a run still takes: at the pace so far, and no more than its limit leaves.

    Args:
        measured: points that were measured in this run.
        total: all points of the run.
        backlog: its backlog, which knows when it began and what it skipped.
        limit_s: the limit.
    """
    took_s = backlog.took_s
    left = took_s / max(1, measured) * (total - measured - backlog.skipped)
    return left if limit_s is None else max(0.0, min(left, limit_s - took_s))
