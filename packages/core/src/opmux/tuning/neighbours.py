"""Prediction from the nearest measured rows, in pure Python: well under a millisecond with ten thousand rows.

For each row the *slowness* is its time over the roofline of its own work. What varies slowly between points is this
ratio, not the time, so it is interpolated: between the nearest rows of the same implementation, in the space of the
logarithms of the sizes, weighted by the inverse square of the distance. A prediction is the call's own roofline times
that slowness.

Two things that a plain roofline lacks are part of it. A launch costs time however little it computes: most of the time
of an implementation's fastest row is added for it. And work that is launched in tiles takes whole waves of whole tiles:
where an implementation declares its ``tiles``, operations are rounded up to them, for each row by its own config.
Without that declaration a prediction follows a staircase only as far as rows lie on its steps.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from opmux.callpath.op import Op
from opmux.tuning.estimates import Estimate
from opmux.tuning.measured.device import DeviceModel
from opmux.tuning.measured.row import MeasuredRow
from opmux.tuning.roofline import Roofline, roofline
from opmux.tuning.work import Work

NEIGHBOURS = 8
"""Rows that a prediction is made from, at most."""

LIMIT = 2.0
"""Octaves to the nearest row (Euclidean, over the logarithms of all sizes) beyond which nothing is predicted."""

CONFIG_REACH = 0.5
"""Octaves within which a call takes the config of its nearest row; beyond, the implementation's own answer does."""

_SOFTENING = 0.02
"""Added to squared distances, so that of two rows very near the call both count."""

_LAUNCH = 0.9
"""Which part of an implementation's fastest row is taken for the cost of a launch."""

Near = tuple[float, float, bool, MeasuredRow, float]
"""A row near a call: distance, weight, whether its config fits the call, the row, the logarithm of its slowness."""

_NEAR = 0.5
"""Octaves within which rows are looked for first: where they lie densely, that finds enough of them."""

_SAME = 1e-9
"""A distance of zero, but for rounding."""


class Group:
    """Rows of one device model that differ in nothing but sizes and implementation.

    Points are ordered along the axis on which they lie farthest apart: those within reach are found by bisection.

    Attributes:
        machine: what its first row was measured on: the device model is that of all.
        implementations: full names of those with rows.
    """

    def __init__(self, op: Op, changing: Sequence[str], model: Sequence[str], rows: Sequence[MeasuredRow]) -> None:
        """Index the rows.

        Args:
            op: their op.
            changing: sizes that change from call to call, the first coordinates of a point.
            model: dims of the model, the others: a row's config fits where they are equal.
            rows: at least one.
        """
        first = rows[0]
        self.machine, self.count = first.machine, len(rows)
        self.implementations = frozenset(row.implementation for row in rows)
        self._arch, self._dtypes = first.machine.arch, tuple(first.dtypes.values())
        self._sizes, self._changing = (*changing, *model), len(changing)
        self._work = Work(op, first.dtypes, first.options)
        self._roof = roofline(self._arch, self._dtypes, self.machine)
        self._launch_us: dict[str, float] = {}
        for row in rows:
            launch = _LAUNCH * row.time_us
            self._launch_us[row.implementation] = min(launch, self._launch_us.get(row.implementation, launch))
        self._tiles = {i.full_name: i.tiles for i in op.implementations if i.tiles}
        points: dict[tuple[float, ...], list[tuple[MeasuredRow, float]]] = {}
        for row in rows:
            at = {**row.options, **row.dims}
            point = tuple(math.log2(at[name]) for name in self._sizes)
            points.setdefault(point, []).append((row, math.log(row.time_us / self._least_us(self._roof, row, at))))
        spread = [max(axis) - min(axis) for axis in zip(*points, strict=True)]
        self._axis = spread.index(max(spread)) if spread else 0
        ordered = sorted(points.items(), key=lambda item: (item[0][self._axis : self._axis + 1], item[0]))
        self._points = [point for point, _ in ordered]
        self._rows = [sorted(found, key=lambda pair: (pair[0].implementation, pair[0].time_us)) for _, found in ordered]
        self._along = [point[self._axis] for point in self._points] if spread else [0.0] * len(ordered)

    def estimate(
        self,
        at: Mapping[str, Any],
        device: DeviceModel | None,
        times: dict[str, Estimate],
        far: dict[str, float],
    ) -> None:
        """Add a time for every implementation that has none yet and has rows near enough.

        Args:
            at: dims and options of the call.
            device: the call's device model; where it is another one, times are scaled. None means that of the rows.
            times: full name -> estimate, added to.
            far: full name -> octaves to its nearest row, of those whose rows are too far away; added to.
        """
        own = device is None or device.name == self.machine.device
        roof = self._roof if own or device is None else roofline(self._arch, self._dtypes, device, self.machine)
        point = tuple(math.log2(at[name]) for name in self._sizes)
        wanted = self.implementations - times.keys()
        found = self._nearest(point)
        shown = "" if device is not None and own else self.machine.device
        least = roof.time_us(self._work.flops(at), self._work.moved_bytes(at))
        for name in sorted(wanted):
            if near := found[name]:
                times[name] = self._from_rows(name, near, at, least, roof, own, shown)
            elif name not in far:
                far[name] = self._distance_of(name, point)

    def _nearest(self, point: tuple[float, ...]) -> dict[str, list[Near]]:
        """The nearest rows of each implementation, the nearest first."""
        found: dict[str, list[Near]] = {}
        for reach in (_NEAR, LIMIT):
            found = {name: [] for name in self.implementations}
            wanting = len(found)
            for distance, place in self._within(point, reach):
                weight = 1.0 / (distance * distance + _SOFTENING)
                # The dims of the model come last.
                fits = distance <= CONFIG_REACH and self._points[place][self._changing :] == point[self._changing :]
                for row, slowness in self._rows[place]:
                    near = found[row.implementation]
                    if len(near) < NEIGHBOURS:
                        near.append((distance, weight, fits, row, slowness))
                        wanting -= len(near) == NEIGHBOURS
                if not wanting:
                    return found
        return found

    def _from_rows(
        self,
        name: str,
        near: Sequence[Near],
        at: Mapping[str, Any],
        least: float,
        roof: Roofline,
        own: bool,
        shown: str,
    ) -> Estimate:
        """The estimate of one implementation from its nearest rows, the nearest first."""
        distance, _, _, nearest, _ = near[0]
        config, file, line = None, nearest.file, nearest.line
        for _, _, fits, row, _ in near:
            if fits:  # its config was measured for the same dims of the model
                config, file, line = row.config, row.file, row.line
                break
        if distance < _SAME and own:
            compared = len(nearest.compared) > 1
            return Estimate(nearest.time_us, True, 1, compared, shown, config, file, line)
        weights = total = 0.0
        tiled = name in self._tiles
        for _, weight, _, row, slowness in near:
            total += weight * (slowness + math.log(self._least_us(roof, row, at)) if tiled else slowness)
            weights += weight
        time_us = math.exp(total / weights) * (1.0 if tiled else self._launch_us[name] + least)
        return Estimate(time_us, False, len(near), False, shown, config, file, line)

    def _within(self, point: tuple[float, ...], reach: float) -> list[tuple[float, int]]:
        """Distance and place of every point within reach, the nearest first."""
        center = point[self._axis] if point else 0.0
        first, last = bisect_left(self._along, center - reach), bisect_right(self._along, center + reach)
        dist, points = math.dist, self._points
        found = [(d, place) for place in range(first, last) if (d := dist(point, points[place])) <= reach]
        found.sort()
        return found

    def _distance_of(self, name: str, point: tuple[float, ...]) -> float:
        """The distance to an implementation's nearest row."""
        return min(
            math.dist(point, other)
            for other, rows in zip(self._points, self._rows, strict=True)
            if any(row.implementation == name for row, _ in rows)
        )

    def _least_us(self, roof: Roofline, row: MeasuredRow, at: Mapping[str, Any]) -> float:
        """The roofline of the work at a point, in the tiles of a row's config, and the launch."""
        tiles, padding = _cut(self._tiles.get(row.implementation, ()), row.config or {}, at)
        work = self._work
        flops = work.flops(at) * padding
        return self._launch_us[row.implementation] + roof.time_us(flops, work.moved_bytes(at), tiles)


def _cut(
    declared: Sequence[tuple[str, str | int]], config: Mapping[str, Any], at: Mapping[str, Any]
) -> tuple[float, float]:
    """How many tiles a launch has, and by how much whole tiles exceed its work; (0, 1) where that is not known."""
    tiles, padding = (1.0 if declared else 0.0), 1.0
    for name, parameter in declared:
        block, size = config.get(parameter) if isinstance(parameter, str) else parameter, at.get(name)
        if not isinstance(block, int) or not isinstance(size, int) or block < 1:
            return 0.0, 1.0  # a config of an older version may lack the parameter
        parts = -(-size // block)
        tiles *= parts
        padding *= parts * block / size
    return tiles, padding
