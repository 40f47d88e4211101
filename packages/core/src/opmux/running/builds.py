"""Kernels that backends compiled in this process: how many, and how long that took. Backends report them."""

import threading
from dataclasses import dataclass

_lock = threading.Lock()


@dataclass(frozen=True)
class Builds:
    """Kernels compiled so far.

    Attributes:
        count: how many.
        seconds: how long compiling them took, one after another.
    """

    count: int = 0
    seconds: float = 0.0


_total = Builds()


def report_build(seconds: float) -> None:
    """Count a kernel that a backend compiled; one that it found in its cache is not reported.

    Args:
        seconds: how long that took.
    """
    global _total
    with _lock:
        _total = Builds(_total.count + 1, _total.seconds + seconds)


def total() -> Builds:
    """The kernels that were compiled so far in this process."""
    return _total
