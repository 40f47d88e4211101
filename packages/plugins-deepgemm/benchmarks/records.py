"""Measures the rows that are shipped for a Hopper GPU: `python packages/plugins-deepgemm/benchmarks/records.py`.

The shapes of DeepGEMM's table, and others about them, of every op that this backend has. Each is computed by this
backend, by Triton and by the vendor's libraries where they take it, side by side; so the rows say which one is chosen.
`--out h200.measured --limit 150` measures as many as the time allows, of each op in turn; the same command goes on
where it stopped. `--dry` lists the points and measures nothing.

The other backends ship rows of their own, so those of this one suffice: `--backends deepgemm --most-configs 2 --jobs 0`
measures the model's choice and its runner-up, and with a bundle of their kernels it compiles nothing. With
`--of FILE.measured` it measures the points of another package's rows: backends whose rows are of equal points are
predicted alike between them.
"""

import argparse
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import opmux
from opmux.plugin import known_arch, registered_ops
from opmux.shapes import Point
from opmux.tuner import Progress
from opmux.tuner.candidates import takers_of
from opmux.tuner.drawing import point_of
from opmux.tuning.measured import read_measured

BACKENDS = ("deepgemm", "triton", "vendor")
LISTED = ((2112, 7168), (576, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))
"""n and k of the layers of a large mixture of experts."""
OTHERS = ((4096, 4096), (28672, 4096), (4096, 14336), (8192, 8192), (2048, 2048))
"""n and k of other models' layers."""
ROWS = (4096, 128, 1, 512, 64, 2048, 16, 256, 1024, 8192)
GROUPED = ((6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048))
RAGGED = ((4, 8192), (8, 4096), (32, 64), (64, 256))
MASKED = ((32, 20), (6, 1024), (32, 192), (6, 20))
"""Groups, and rows of a group on average."""
SUMS = ((4, 8192, 4096, 7168), (8, 4096, 4096, 7168), (4, 8192, 7168, 2048), (32, 64, 4096, 2048))
"""Groups, rows of each on average, n and k of gradients of weights."""
ADDED = ((4096, 4096, 7168), (2112, 4096, 7168), (7168, 4096, 16384), (512, 4096, 4096))
"""m, n and k of products that are added."""
TURNS = (
    "scaled_linear", "linear", "scaled_grouped_linear", "scaled_masked_grouped_linear", "scaled_linear", "linear",
    "grouped_linear", "masked_grouped_linear", "scaled_linear_accumulate", "scaled_grouped_weight_grad",
    "grouped_weight_grad",
)  # fmt: skip
"""The order in which ops have their turns."""


def scales(rows: int, n: int, k: int, of_rows: bool = False) -> dict[str, int]:
    """The sizes of scales of 1x128 blocks of x, and of 128x128 blocks of w or, ``of_rows``, of 1x128."""
    blocks = -(-k // 128)
    return {"m_blocks": rows, "k_blocks": blocks, "w_rows": n if of_rows else -(-n // 128), "w_blocks": blocks}


def sizes(op: str) -> Iterator[dict[str, Any]]:
    """The sizes of an op's calls, those that matter most first."""
    if op in ("linear", "scaled_linear"):
        for n, k in (*LISTED, *OTHERS):
            for m in ROWS if (n, k) == LISTED[0] else ROWS[:6]:
                dense = {"n": n, "k": k}
                yield dense | ({"tokens": m} if op == "linear" else {"batch": 1, "m": m} | scales(m, n, k))
    elif op == "scaled_linear_accumulate":
        yield from ({"m": m, "n": n, "k": k} | scales(m, n, k, of_rows=True) for m, n, k in ADDED)
    elif op.endswith("weight_grad"):
        yield from ({"groups": groups, "m": groups * rows, "n": n, "k": k} for groups, rows, n, k in SUMS)
    else:
        masked = "masked" in op
        for groups, rows in MASKED if masked else RAGGED:
            for n, k in GROUPED:
                room = max(128, 2 * rows) if masked else groups * rows
                counts = {"max_m": room, "expected_m": rows} if masked else {"m": room}
                yield {"groups": groups, "n": n, "k": k} | counts | (scales(room, n, k) if "scaled" in op else {})


def point(op: str, given: dict[str, Any]) -> Point:
    """A call of an op with these sizes."""
    rounded = {"out_dtype": torch.bfloat16} if "scaled" in op and not op.endswith(("accumulate", "grad")) else {}
    made = point_of(op, given | rounded, torch.bfloat16)
    made.check()
    return made


def points() -> list[Point]:
    """The points of all ops by turns."""
    waiting = {op: deque(sizes(op)) for op in dict.fromkeys(TURNS)}
    found = []
    while any(waiting.values()):
        found += [point(op, waiting[op].popleft()) for op in TURNS if waiting[op]]
    return found


def points_of(path: Path) -> list[Point]:
    """The points of rows that this backend takes, by turns of the ops, the last turns being linear's."""
    waiting: dict[str, deque[Point]] = {}
    registered_ops()
    rows = read_measured(path).rows
    for one in {p.key: p for p in (Point(row.op, row.dtypes, row.dims, row.options) for row in rows)}.values():
        if one.op in TURNS and takers_of(one, known_arch("sm_90"), ["deepgemm"]):
            waiting.setdefault(one.op, deque()).append(one)
    found = []
    while any(waiting.values()):
        found += [left.popleft() for left in waiting.values() if left]
    return found


def main() -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("records.measured"))
    parser.add_argument("--limit", type=float, help="seconds after which no further point is begun")
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS), help="backends that are measured")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--patience", type=float, default=20, help="seconds that a step of a config may take")
    parser.add_argument("--most-configs", type=int, default=4, help="configs of each implementation to try")
    parser.add_argument("--jobs", type=int, default=8, help="processes that compile a point's configs together")
    parser.add_argument("--of", type=Path, help="measure the points of this file of rows instead")
    parser.add_argument("--but", type=Path, help="leave out the points that this file has rows of")
    parser.add_argument("--dry", action="store_true", help="list the points and measure nothing")
    given = parser.parse_args()
    found = points() if given.of is None else points_of(given.of)
    if given.but is not None:
        registered_ops()
        there = {Point(row.op, row.dtypes, row.dims, row.options).key for row in read_measured(given.but).rows}
        found = [point for point in found if point.key not in there]
    if given.dry:
        sys.stdout.write("".join(f"{p.key}\n" for p in found) + f"{len(found)} points\n")
        return 0

    def told(progress: Progress) -> None:
        sys.stdout.write(f"{progress}\n")
        sys.stdout.flush()

    tuned = opmux.tune(
        shapes=found, out=given.out, backends=given.backends, limit_s=given.limit, rounds=given.rounds,
        most_configs=given.most_configs, patience_s=given.patience, jobs=given.jobs, progress=told,
    )  # fmt: skip
    sys.stdout.write(f"{tuned}\n")
    return int(tuned.rows == 0)


if __name__ == "__main__":
    sys.exit(main())
