"""The points nearest to a place, one after the other: a k-d tree in pure Python.

A box is looked into only when nothing nearer is left, so the first few points cost a few boxes however many there are.
A few hundred points are not divided: to compute all their distances takes less time than to look for boxes.
"""

import math
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

_WHOLE = 400
"""Points that are not divided."""

_MOST = 12
"""Points of the smallest boxes of more than these."""

_ROUNDING = 1 - 1e-12
"""Bounds are a little less than they were computed, so that rounding puts no box behind a point that lies in it."""

Point = tuple[float, ...]


class Tree:
    """Points, divided at medians into boxes of a few."""

    def __init__(self, points: Sequence[Point]) -> None:
        """Divide the points.

        Args:
            points: at least one, all with as many coordinates. The numbers that `nearest` returns are their places.
        """
        self._points = points
        self._low: list[Point] = []
        self._high: list[Point] = []
        self._inside: list[tuple[int, int] | list[int]] = []
        """Of each box the numbers of its halves, or those of its points."""
        if len(points) > _WHOLE:
            self._add(list(range(len(points))))

    def nearest(self, center: Point, reach: float) -> Iterator[tuple[float, int]]:
        """Distance and number of every point within reach, the nearest first; of equally near ones the first.

        Args:
            center: from where.
            reach: the largest distance.
        """
        points, inside, low, high, dist = self._points, self._inside, self._low, self._high, math.dist
        if inside:
            waiting = [(0.0, -1)]  # boxes have negative numbers: those as near as a point come before it
        else:
            waiting = [(dist(center, point), place) for place, point in enumerate(points)]
            heapify(waiting)
        while waiting:
            each = heappop(waiting)
            distance, number = each
            if distance > reach:
                return
            if number >= 0:
                yield each
                continue
            found = inside[~number]
            if isinstance(found, list):
                for place in found:
                    heappush(waiting, (dist(center, points[place]), place))
                continue
            for box in found:
                within = tuple(map(max, low[box], map(min, high[box], center)))
                heappush(waiting, (_ROUNDING * dist(center, within), ~box))

    def _add(self, places: list[int]) -> int:
        """Add the box of some points; returns its number."""
        number = len(self._inside)
        axes = list(zip(*(self._points[place] for place in places), strict=True))
        low, high = tuple(map(min, axes)), tuple(map(max, axes))
        self._low.append(low)
        self._high.append(high)
        self._inside.append(places)
        widths = [b - a for a, b in zip(low, high, strict=True)]
        if len(places) > _MOST and max(widths) > 0:
            along = axes[widths.index(max(widths))]
            order = sorted(range(len(places)), key=along.__getitem__)
            halves = order[: len(order) // 2], order[len(order) // 2 :]
            first, second = (self._add([places[at] for at in half]) for half in halves)
            self._inside[number] = first, second
        return number
