"""Prediction from the nearest measured rows, in pure Python: well under a millisecond with ten thousand rows.

For each row the *slowness* is its time over the roofline of its own work. What varies slowly between points is this
ratio, not the time, so it is interpolated: between the nearest rows of the same implementation, weighted by the inverse
square of the distance. A prediction is the call's own roofline times that slowness, and longer by what is expected of
its error: the farther the nearest row, the more a time is off, and of several implementations the one whose time is too
short by most would be chosen.

Near is what has about as much work, of about the same sizes: the distance is Euclidean, over the logarithm of the
roofline and, at half its weight, that of each size. So twice the heads and half the batch, which launch the same
programs, are nearer than twice the heads.

Rows of other device models of the arch count too, by their slowness on their own device, but from farther away: where
few calls were measured on a device, what is known of a like device at a near point says more than a row of its own
that is far away.

Two things that a plain roofline lacks are part of it. A launch costs time however little it computes: most of the time
of an implementation's fastest row, whatever its flags, is added for it. And work that is launched in tiles takes whole
waves of whole tiles: where an implementation declares its ``tiles``, operations are rounded up to them, for each row
by its own config. Without that declaration a prediction follows a staircase only as far as rows lie on its steps.
"""

import math
from collections.abc import Mapping, Sequence, Set
from operator import mul
from typing import Any

from opmux.callpath.op import Op
from opmux.tuning.devices import Devices
from opmux.tuning.estimates import Estimate
from opmux.tuning.measured.device import DeviceModel
from opmux.tuning.measured.row import MeasuredRow
from opmux.tuning.roofline import Roofline, tiles_of
from opmux.tuning.tree import Tree
from opmux.tuning.work import Work

NEIGHBOURS = 8
"""Rows that a prediction is made from, at most."""

LIMIT = 8.0
"""Octaves to the nearest row beyond which nothing is predicted: 7 octaves of one size are about as far. Far from all
rows the times are rough, but which implementation is faster changes more slowly, and bands know less."""

_OF_A_SIZE = 0.5
"""The weight of a size beside that of the work, in a distance."""

CONFIG_REACH = 0.5
"""Octaves (Euclidean, over the sizes that change from call to call) within which a call takes the config of its nearest
row; beyond, the implementation's own answer does."""

_SPREAD = 0.02
"""The variance that each square octave to the nearest row adds to a prediction's logarithm. Of 5925 predictions on an
H200 the standard deviation was 0.10 below half an octave, 0.19 from one, 0.24 from two and 0.53 from four. The mean of
a lognormal time is the median times the exponential of half the variance."""

_SOFTENING = 0.02
"""Added to squared distances, so that of two rows very near the call both count."""

_LAUNCH = 0.9
"""Which part of an implementation's fastest row, of any kind and device model, is taken for the cost of a launch."""

_NEAR = 2.0
"""Octaves beyond which no more rows are looked for where each implementation has some."""

_ENOUGH = 3
"""How many those are."""

_SAME = 1e-9
"""A distance of zero, but for rounding."""


class Group:
    """Rows that differ in nothing but sizes, implementation and device model, as a call on one device model sees them.

    Attributes:
        implementations: full names of those with rows.
    """

    def __init__(
        self,
        op: Op,
        changing: Sequence[str],
        model: Sequence[str],
        rows: Sequence[MeasuredRow],
        device: DeviceModel | None,
        fastest: Mapping[str, float],
    ) -> None:
        """Index the rows.

        Args:
            op: their op.
            changing: sizes that change from call to call, the first coordinates of a point.
            model: dims of the model, the others: a row's config fits where they are equal.
            rows: at least one.
            device: where calls run; None means the device model with the most rows.
            fastest: implementation -> the time of its fastest row of any kind: what a launch costs does not depend on
                flags or on ``head_dim``, and rows of small calls may be of other kinds.
        """
        first = rows[0]
        self.implementations = frozenset(row.implementation for row in rows)
        self._arch, self._dtypes = first.machine.arch, tuple(first.dtypes.values())
        self._sizes, self._changing = (*changing, *model), len(changing)
        self._work = Work(op, first.dtypes, first.options)
        self._known = device is not None
        places = Devices(self._arch, self._dtypes, rows, device)
        self._home, self._reference, self._roof = places.home, places.reference, places.roof
        self._launch_us = {name: _LAUNCH * fastest[name] for name in self.implementations}
        self._tiles = {i.full_name: i.tiles for i in op.implementations if i.tiles}
        points: dict[tuple[float, ...], list[tuple[MeasuredRow, float]]] = {}
        for row in rows:
            roof, away = places.of(row.machine)
            target = _Target({**row.options, **row.dims}, self._work, roof)
            slowness = math.log(row.time_us / self._least_us(row, target))
            points.setdefault(self._point(target, away), []).append((row, slowness))
        spread = [max(axis) - min(axis) for axis in zip(*points, strict=True)]
        axis = spread.index(max(spread))
        ordered = sorted(points.items(), key=lambda item: (item[0][axis], item[0]))
        self._points = [point for point, _ in ordered]
        self._tree = Tree(self._points)
        self._at: dict[str, dict[int, MeasuredRow]] = {name: {} for name in self.implementations}
        self._slowness: dict[str, dict[int, float]] = {name: {} for name in self.implementations}
        for place, (_, found) in enumerate(ordered):
            for row, slowness in sorted(found, key=lambda pair: pair[0].time_us):
                if place not in self._at[row.implementation]:  # the fastest
                    self._at[row.implementation][place] = row
                    self._slowness[row.implementation][place] = slowness
        self._own = {
            name: frozenset(place for place, row in rows.items() if self._known and row.machine.device == self._home)
            for name, rows in self._at.items()
        }
        self._everywhere = frozenset(name for name, rows in self._at.items() if len(rows) == len(ordered))

    def estimate(
        self,
        at: Mapping[str, Any],
        times: dict[str, Estimate],
        far: dict[str, float],
        work: Work | None = None,
    ) -> None:
        """Add a time for every implementation that has none yet and has rows near enough.

        Args:
            at: dims and options of the call.
            times: full name -> estimate, added to.
            far: full name -> octaves to its nearest row, of those whose rows are too far away; added to.
            work: the work of a call that is only like those of the rows; None where it is of their kind.
        """
        wanted = self.implementations - times.keys()
        target = _Target(at, work or self._work, self._roof, work is not None)
        point = self._point(target, 0.0)
        found = self._nearest(point, wanted)
        for name in sorted(wanted):
            if (places := found[name]).numbers:
                times[name] = self._from_rows(name, places, target)
            elif name not in far:
                far[name] = self._distance_of(name, point)

    def _point(self, target: "_Target", away: float) -> tuple[float, ...]:
        """Where a call or a row lies: sizes that change from call to call, those of the model, the work, the device.

        The work is measured by one roofline, wherever the call runs.
        """
        sizes = (_OF_A_SIZE * math.log2(target.at[name]) for name in self._sizes)
        return (*sizes, math.log2(self._reference.time_us(target.flops, target.moved_bytes)), away)

    def _nearest(self, point: tuple[float, ...], wanted: Set[str]) -> "dict[str, _Places]":
        """The nearest points with rows of each implementation."""
        everywhere = self._everywhere & wanted
        common: list[tuple[float, int]] = []
        found: dict[str, list[tuple[float, int]]] = {name: [] for name in sorted(wanted - everywhere)}
        kinds = [*found.values(), *([common] if everywhere else [])]
        rest = [(self._at[name], near) for name, near in found.items()]
        full, reach = 0, _NEAR
        for each in self._tree.nearest(point, LIMIT):
            distance, place = each
            if distance > reach:
                if min(map(len, kinds)) >= _ENOUGH:
                    break
                reach = LIMIT
            if everywhere and len(common) < NEIGHBOURS:
                common.append(each)
                full += len(common) == NEIGHBOURS
            for rows, near in rest:
                if place in rows and len(near) < NEIGHBOURS:
                    near.append(each)
                    full += len(near) == NEIGHBOURS
            if full == len(kinds):
                break
        return {
            **dict.fromkeys(everywhere, self._places(common, point)),
            **{name: self._places(near, point) for name, near in found.items()},
        }

    def _places(self, near: Sequence[tuple[float, int]], point: tuple[float, ...]) -> "_Places":
        changing, model = point[: self._changing], point[self._changing : -2]
        reach = _OF_A_SIZE * CONFIG_REACH
        for _, place in near:
            other = self._points[place]
            if other[self._changing : -2] == model and math.dist(other[: self._changing], changing) <= reach:
                return _Places(near, place)
        return _Places(near, None)

    def _from_rows(self, name: str, places: "_Places", target: "_Target") -> Estimate:
        """The estimate of one implementation from its nearest rows."""
        rows = self._at[name]
        nearest = rows[places.numbers[0]]
        config, file, line = None, nearest.file, nearest.line
        if places.fitting is not None and not target.like:
            row = rows[places.fitting]
            config, file, line = row.config, row.file, row.line
        if places.distance < _SAME and not target.like:
            compared = len(nearest.compared) > 1
            shown = "" if self._known else self._home
            return Estimate(nearest.time_us, True, 1, compared, shown, config, file, line)
        shown = nearest.machine.device if self._own[name].isdisjoint(places.numbers) else ""
        logarithms: Any = map(self._slowness[name].__getitem__, places.numbers)
        least_us = self._launch_us[name] + target.least_us
        if name in self._tiles:
            leasts = [math.log(self._least_us(rows[number], target)) for number in places.numbers]
            logarithms, least_us = map(sum, zip(logarithms, leasts, strict=True)), 1.0
        mean = sum(map(mul, places.weights, logarithms)) / places.weight + _SPREAD / 2 * places.distance**2
        time_us = math.exp(mean) * least_us
        return Estimate(time_us, False, len(places.numbers), False, shown, config, file, line, target.like)

    def _distance_of(self, name: str, point: tuple[float, ...]) -> float:
        """The distance to an implementation's nearest row."""
        return min(math.dist(point, self._points[place]) for place in self._at[name])

    def _least_us(self, row: MeasuredRow, target: "_Target") -> float:
        """The roofline of the work at a point, in the tiles of a row's config, and the launch."""
        tiles, padding = tiles_of(self._tiles.get(row.implementation, ()), row.config or {}, target.at)
        launch = self._launch_us[row.implementation]
        return launch + target.roof.time_us(target.flops * padding, target.moved_bytes, tiles)


class _Places:
    """The points nearest to a call that an implementation was measured at.

    Attributes:
        numbers: of the points, the nearest first; empty where none is near enough.
        distance: octaves to the nearest.
        weights: of each of them.
        weight: the sum of these.
        fitting: the nearest whose config fits the call, measured for the same dims of the model; None where none is.
    """

    __slots__ = ("distance", "fitting", "numbers", "weight", "weights")

    def __init__(self, near: Sequence[tuple[float, int]], fitting: int | None) -> None:
        self.numbers = [number for _, number in near]
        self.distance = near[0][0] if near else math.inf
        self.weights = [1.0 / (d * d + _SOFTENING) for d, _ in near]
        self.weight = sum(self.weights)
        self.fitting = fitting


class _Target:
    """What is asked for: a call, or a row whose slowness is wanted.

    Attributes:
        at: dims and options.
        roof: the roofline of the device model.
        like: it is not of the rows' kind.
        flops, moved_bytes: its work.
        least_us: its roofline.
    """

    __slots__ = ("at", "flops", "least_us", "like", "moved_bytes", "roof")

    def __init__(self, at: Mapping[str, Any], work: Work, roof: Roofline, like: bool = False) -> None:
        self.at, self.roof, self.like = at, roof, like
        self.flops, self.moved_bytes = work.flops(at), work.moved_bytes(at)
        self.least_us = roof.time_us(self.flops, self.moved_bytes)
