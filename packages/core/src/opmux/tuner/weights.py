"""Which points are worth measuring first: those on which a live run spends most time."""

from collections.abc import Iterable

from opmux.shapes.point import Point
from opmux.tuning.work import Work

_BYTES_PER_S, _FLOPS_PER_S = 2e12, 4e14
"""About what a data center GPU does: only the ratio of the two matters here."""

_CALL_S = 5e-6
"""What the smallest call takes."""


def weight(point: Point) -> float:
    """The seconds that the calls of a point take in all, by a rough roofline."""
    work, sizes = Work(point.definition, point.dtypes, point.options), {**point.dims, **point.options}
    once = max(_CALL_S, work.moved_bytes(sizes) / _BYTES_PER_S, work.flops(sizes) / _FLOPS_PER_S)
    return point.count * once


def heaviest_first(points: Iterable[Point]) -> list[Point]:
    """Points in the order of their weights."""
    return sorted(points, key=lambda point: (-weight(point), point.key))
