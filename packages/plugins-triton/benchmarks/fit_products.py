"""Fit the cost model of products on sm_90 to what ``measure_products.py`` measured.

``python benchmarks/fit_products.py FILE.json...`` prints the table of `opmux_triton.gemm.hopper_tiles`, and for shapes
that the fit did not see (it is repeated without each fifth of them) how much slower the model's choice was than the
best one measured, and its speed over cuBLASLt's. Needs SciPy.
"""

import argparse
import json
import math
import random
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from opmux_triton.gemm import hopper_model
from opmux_triton.gemm.hopper_tiles import TILES, Cost, Tile

BANDS = ((17, 64), (65, 128), (129, 256), (257, 512), (513, 2048), (2049, 16384))
BEGIN = (4.0, 0.2, 0.1, 1.0, 2.0, 0.3, 1.1)
"""Where the search for the constants of a tile begins, in the order of `Cost`."""
CARE = 3
"""How much more the choices count that are nearly the best of their shape."""
FOLDS = 5
_NAME = re.compile(r"(?:model: )?(\d+)x(\d+)x(\d+)(a?) (none|rest|all)( swap)?$")


class Point(NamedTuple):
    """One measured time, in microseconds, of a tile on the product ``row`` of the data, and the least one there."""

    row: int
    tile: Tile
    work: hopper_model.Work
    time: float
    least: float


def points_of(rows: Sequence[dict[str, Any]]) -> list[Point]:
    """Every time of a legal choice."""
    by_size = {(t.block_m, t.block_n, t.block_k, t.alternate): t for t in TILES}
    found = []
    for number, row in enumerate(rows):
        least = min(time for name, (time, _rounds) in row["times"].items() if _NAME.match(name))
        for name, (time, _rounds) in row["times"].items():
            read = _NAME.match(name)
            if read is None:
                continue
            tile = by_size.get((int(read[1]), int(read[2]), int(read[3]), bool(read[4])))
            if tile is None:
                continue
            cut: Any = read[5]
            swap = bool(read[6])
            sizes = (row["n"], row["m"]) if swap else (row["m"], row["n"])
            work = hopper_model.work_of(tile, cut, *sizes, row["k"])
            found.append(Point(number, tile, work, time, least))
    return found


def fitted(points: Iterable[Point]) -> dict[Tile, tuple[Cost, float]]:
    """The constants of each tile, and the root mean square of the relative errors."""
    of_tile: dict[Tile, list[Point]] = defaultdict(list)
    for point in points:
        of_tile[point.tile].append(point)
    return {tile: _fit(some) for tile, some in of_tile.items()}


def _fit(points: Sequence[Point]) -> tuple[Cost, float]:
    w = np.array([[p.work.blocks, p.work.busy_blocks, p.work.rounds, p.work.shares > 0, p.work.shares] for p in points])
    megabytes = np.array([p.work.megabytes for p in points])
    times = np.log([p.time for p in points])
    weights = np.array([(p.least / p.time) ** CARE for p in points])

    def errors(logs: Any) -> Any:
        start, *factors, memory = np.exp(logs)
        compute = w[:, :3] @ np.array(factors[:3])
        moved = memory * megabytes * 1e6 / hopper_model.BANDWIDTH
        return np.log(start + (compute**4 + moved**4) ** 0.25 + w[:, 3:] @ np.array(factors[3:])) - times

    found = least_squares(lambda logs: weights * errors(logs), np.log(BEGIN), loss="soft_l1", f_scale=0.05, max_nfev=80)
    rms = float(np.sqrt(np.average(errors(found.x) ** 2, weights=weights)))
    # Raised by the scatter: of many tiles, the one with the least predicted time is often one that is predicted badly.
    return Cost(*(round(float(value) * (1 + rms), 3) for value in np.exp(found.x))), rms


def judged(points: Iterable[Point], rows: Sequence[dict[str, Any]], costs: dict[Tile, Any]) -> dict[int, Any]:
    """Of each row: (choice over the best one, cuBLASLt over the choice, cuBLASLt over the best one)."""
    of_row: dict[int, list[Point]] = defaultdict(list)
    for point in points:
        if point.tile in costs:
            of_row[point.row].append(point)
    found = {}
    for row, some in of_row.items():
        chosen = min(some, key=lambda p: hopper_model.predict(p.tile._replace(cost=costs[p.tile][0]), p.work))
        least, peer = min(p.time for p in some), rows[row]["times"]["cublaslt"][0]
        found[row] = (chosen.time / least, peer / chosen.time, peer / least)
    return found


def table(rows: Sequence[dict[str, Any]], found: dict[int, Any]) -> str:
    """Geometric means and extremes by band."""
    lines = []
    groups = [("linear", *band) for band in BANDS] + [(form, 0, 1 << 30) for form in ("grad_x", "grad_w")]
    for form, low, high in groups:
        some = [found[i] for i in found if rows[i]["form"] == form and low <= rows[i]["m"] <= high]
        if some:
            regret, ratio, best = (math.exp(np.mean(np.log([one[i] for one in some]))) for i in range(3))
            worst, least = max(one[0] for one in some), min(one[1] for one in some)
            lines.append(
                f"{form:7} m {low:5} to {high:10}: {len(some):3} shapes, regret {regret:.3f} worst {worst:.2f}, "
                f"speed over cuBLASLt {ratio:.3f} worst {least:.2f}, of the best choice {best:.3f}"
            )
    return "\n".join(lines)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", type=Path, nargs="+")
    given = parser.parse_args()
    rows = [row for file in given.files for row in json.loads(file.read_text())["rows"]]
    points = points_of(rows)
    order = list(range(len(rows)))
    random.Random(0).shuffle(order)
    unseen: dict[int, Any] = {}
    for fold in range(FOLDS):
        out = set(order[fold::FOLDS])
        costs = fitted(p for p in points if p.row not in out)
        unseen |= judged((p for p in points if p.row in out), rows, costs)
    say = sys.stdout.write
    say(f"Not seen by the fit:\n{table(rows, unseen)}\n")
    costs = fitted(points)
    say(f"All:\n{table(rows, judged(points, rows, costs))}\n\n")
    for tile in TILES:
        if tile in costs:
            cost, rms = costs[tile]
            say(f"    Tile({', '.join(map(repr, tile[:5]))}, Cost{tuple(cost)}),  # {rms:.3f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
