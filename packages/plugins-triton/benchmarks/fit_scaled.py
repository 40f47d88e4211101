"""Fit the cost model of scaled products on sm_90 to what ``measure_scaled.py`` measured.

``python benchmarks/fit_scaled.py FILE.json...`` prints the constants of `opmux_triton.scaled_gemm.hopper_heuristics`,
and how much slower the model's choice was than the fastest tile measured: by the constants that are there now, by the
fitted ones, and by ones that were fitted without each sixth of the products. Needs SciPy.

A product has times of few tiles, so tiles share all constants but that of a block: each constant is what it is now
times a factor, and the factors are held near 1.
"""

import argparse
import json
import math
import random
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from opmux_triton.gemm.hopper_model import Work, predict
from opmux_triton.scaled_gemm import hopper_heuristics
from opmux_triton.scaled_gemm.hopper_heuristics import TILES, Extra, Sizes

FOLDS = 6
CARE = 3
"""How much more the choices count that are nearly the fastest of their product."""
HOLD = 1.5
"""How much a factor counts that is not 1, beside an error of as much in one time."""
_SHARED = ("load", "round", "start", "cut", "sum", "memory")
_NAME = re.compile(r"(\d+)x(\d+) (none|rest|all)( swap)?$")

Row = tuple[Any, ...]


class Point(NamedTuple):
    """One measured time, in microseconds, of a tile on a product; the least one of the same run; what it asks for."""

    run: int
    row: Row
    tile: int
    work_of: Callable[[Extra], Work]
    time: float
    least: float


def points_of(rows: Sequence[dict[str, Any]], run: int) -> list[Point]:
    """Every time of a choice that the model may make; ``run`` is told apart from others."""
    number = {(tile.block_m, tile.block_n): i for i, tile in enumerate(TILES)}
    found = []
    for row in rows:
        blockwise = row["blocks"] == "square"
        product = Sizes(row["m"], row["n"], row["k"], blockwise, not blockwise)
        times = {match.groups(): time for name, time in row["times"].items() if (match := _NAME.match(name))}
        for (block_m, block_n, cut, swap), time in times.items():
            tile = number[int(block_m), int(block_n)]

            def work(
                extra: Extra, product: Sizes = product, tile: int = tile, cut: Any = cut, swap: bool = bool(swap)
            ) -> Work:
                return hopper_heuristics.work(product, TILES[tile], cut, swap, extra)

            key = row["blocks"], row["m"], row["n"], row["k"]
            found.append(Point(run, key, tile, work, time, min(times.values())))
    return found


def times_of(points: Iterable[Point], logs: Any) -> list[float]:
    """Predicted times, by the logarithms of the factors: of each tile's block, of `_SHARED`, of `Extra`."""
    factors = np.exp(logs)
    blocks, shared, more = factors[: len(TILES)], factors[len(TILES) : -3], factors[-3:]
    extra = Extra(*(one * factor for one, factor in zip(hopper_heuristics.EXTRA, more, strict=True)))
    costs = []
    for tile, block in zip(TILES, blocks, strict=True):
        scaled = {name: getattr(tile.cost, name) * one for name, one in zip(_SHARED, shared, strict=True)}
        costs.append(tile._replace(cost=tile.cost._replace(block=tile.cost.block * block, **scaled)))
    return [predict(costs[point.tile], point.work_of(extra)) for point in points]


def fitted(points: Sequence[Point]) -> Any:
    """The logarithms of the factors."""
    weights = np.array([(p.least / p.time) ** CARE for p in points])
    wanted = np.log([p.time for p in points])

    def errors(logs: Any) -> Any:
        return np.concatenate([weights * (np.log(times_of(points, logs)) - wanted), HOLD * logs])

    start = np.zeros(len(TILES) + len(_SHARED) + 3)
    return least_squares(errors, start, loss="soft_l1", f_scale=0.05, max_nfev=200).x


def judged(points: Sequence[Point], logs: Any) -> dict[Row, float]:
    """Of each product and run: the time of the model's choice over the least one."""
    of_row: dict[Row, list[tuple[float, Point]]] = defaultdict(list)
    for point, time in zip(points, times_of(points, logs), strict=True):
        of_row[*point.row, point.run].append((time, point))
    return {row: min(some, key=lambda one: one[0])[1].time / some[0][1].least for row, some in of_row.items()}


def _said(found: dict[Row, float]) -> str:
    """The geometric mean by blocks, and the largest."""
    text = []
    for blocks in ("square", "token"):
        some = [value for row, value in found.items() if row[0] == blocks]
        if some:
            text.append(f"{blocks} {math.exp(sum(map(math.log, some)) / len(some)):.4f}")
    return f"{', '.join(text)}, worst {max(found.values()):.3f}"


def main() -> int:
    """Print the constants and what they cost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", type=Path, nargs="+")
    given = parser.parse_args()
    points = [p for i, file in enumerate(given.files) for p in points_of(json.loads(file.read_text())["rows"], i)]
    rows = sorted({point.row for point in points})
    random.Random(0).shuffle(rows)
    unseen: dict[Row, float] = {}
    for fold in range(FOLDS):
        out = set(rows[fold::FOLDS])
        logs = fitted([p for p in points if p.row not in out])
        unseen |= judged([p for p in points if p.row in out], logs)
    logs = fitted(points)
    say = sys.stdout.write
    say(f"{len(points)} times of {len(rows)} products\nnow: {_said(judged(points, 0 * logs))}\n")
    say(f"fitted: {_said(judged(points, logs))}\nnot seen by the fit: {_said(unseen)}\n\n")
    factors = np.exp(logs)
    shared = dict(zip(_SHARED, factors[len(TILES) : -3], strict=True))
    for tile, block in zip(TILES, factors, strict=False):
        constants = {**shared, "block": block}
        cost = tuple(round(float(getattr(tile.cost, name) * constants[name]), 4) for name in tile.cost._fields)
        say(f"    Tile({', '.join(map(repr, tile[:5]))}, Cost{cost}),\n")
    extra = zip(hopper_heuristics.EXTRA, factors[-3:], strict=True)
    say(f"EXTRA = Extra({', '.join(f'{one * factor:.3f}' for one, factor in extra)})\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
