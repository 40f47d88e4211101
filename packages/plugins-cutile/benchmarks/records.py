"""Measures the rows that are shipped for a Hopper GPU: `python packages/plugins-cutile/benchmarks/records.py`.

The points are some of those at which the rows in force have times of other backends on an H200, and none of this one,
so that times of the same calls are compared. Each is measured in the heuristic's config, which is what a call gets. A
machine without the compiler takes the kernels from a bundle, and leaves out a config that the bundle lacks:

    python packages/plugins-cutile/benchmarks/records.py --record sources.pickle   # what a bundle has to have
    python packages/plugins-cutile/benchmarks/records.py --out h200.measured --limit 100
    python packages/plugins-cutile/benchmarks/records.py --spaces --out spaces.measured --limit 60
    python packages/plugins-cutile/benchmarks/records.py --again paged_attention --out again.measured

`--again` measures the shipped points of an op once more, after its kernels have changed; `opmux tune --merge` puts the
rows in the place of the shipped ones. `--spaces` takes a few points, in several configs of each space instead.
`--choice` records the calls of a run of `packages/plugins-triton/benchmarks/measure_choice.py` with the same seed.
`--dry` lists the points.
"""

import argparse
import pickle
import random
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import opmux
from opmux.arch import known_arch
from opmux.plugins import loading
from opmux.shapes import Point
from opmux.tuner import Progress
from opmux.tuner.calls import Budget, fitted
from opmux.tuner.candidates import Entrant, entrants_of, takers_of
from opmux.tuning import store
from opmux.tuning.measured import read_measured

SHIPPED = Path(__file__).parents[1] / "src" / "opmux_cutile" / "records" / "h200.measured"
BACKEND, ARCH, DEVICE = "cutile", "sm_90", "NVIDIA H200"
SEED = 1

COUNTS = {
    "linear": 110, "attention": 150, "attention_backward": 90, "linear_backward": 60, "paged_attention": 33,
    "scaled_linear": 40, "rms_norm": 8, "add_rms_norm_": 6, "layer_norm": 6, "grouped_linear": 8, "silu_and_mul": 6,
    "silu_mul": 5, "apply_rope_": 6, "quantize": 6, "rms_norm_quantize": 5, "add_rms_norm_quantize": 5,
    "silu_and_mul_quantize": 5, "write_kv_cache": 5, "attention_varlen": 5, "masked_grouped_linear": 5,
    "scaled_grouped_linear": 5, "scaled_masked_grouped_linear": 4, "grouped_linear_backward": 5,
    "grouped_weight_grad": 5,
}  # fmt: skip
"""How many points of each op."""

SPACES = {
    "linear": 3, "attention": 2, "paged_attention": 2, "scaled_linear": 1, "rms_norm": 1, "silu_and_mul": 1,
    "apply_rope_": 1, "grouped_linear": 1,
}  # fmt: skip
"""How many points have several configs of their spaces tried."""
CONFIGS_OF_A_SPACE = 4

MEMORY, FLOPS = 2.0**33, 4e12
"""What the oracle of a call may cost on the GPU: the tuner checks a larger one on a smaller call, with its kernels."""


def counterparts() -> dict[str, list[Point]]:
    """The points at which others have rows, by op: their own on `DEVICE`, and none of this backend."""
    loading.ensure_loaded()
    _, times = store.in_force()
    found: dict[str, dict[str, Point]] = {}
    measured = set()
    for op in times.values():
        for row in op.rows:
            if row.op in COUNTS and row.machine.device == DEVICE:
                point = Point(row.op, row.dtypes, row.dims, row.options)
                if row.implementation == BACKEND:
                    measured.add(point.key)
                else:
                    found.setdefault(row.op, {})[point.key] = point
    return {op: [points[key] for key in sorted(points.keys() - measured)] for op, points in found.items()}


def shipped(ops: Sequence[str]) -> list[Point]:
    """The points of some ops at which rows are shipped."""
    rows = read_measured(SHIPPED).rows
    return [Point(row.op, row.dtypes, row.dims, row.options) for op in ops for row in rows if row.op == op]


def points(counts: dict[str, int]) -> list[Point]:
    """Some points of each op, drawn by a seed, the ops by turns."""
    arch, waiting = known_arch(ARCH), {}
    for op, some in counterparts().items():
        source = random.Random(f"{SEED} {op}")
        mixed = source.sample(some, len(some))
        taken = (point for point in mixed if takers_of(point, arch, (BACKEND,)))
        waiting[op] = deque(point for point, _ in zip(taken, range(counts.get(op, 0)), strict=False))
    found = []
    while any(waiting.values()):
        found += [waiting[op].popleft() for op in counts if waiting.get(op)]
    return found


def kernels_of(point: Point, most: int | None) -> Iterator[object]:
    """The kernels that measuring a point launches: of the call itself, and of the smaller one that is checked."""
    from opmux_cutile.launching import recording

    smaller = fitted(point, Budget(MEMORY, FLOPS))
    for taker in takers_of(point, known_arch(ARCH), (BACKEND,)):
        for entrant in entrants_of(taker, None, most):
            if not isinstance(entrant, Entrant):
                continue
            run = entrant.make()
            for call in {p.key: p for p in (point, smaller)}.values():
                with recording() as launches:
                    run(*call.tensors().values(), **call.all_options)
                yield from (kernel for kernel, *_ in launches)


def record(path: Path, found: Sequence[Point], most: int | None) -> None:
    """Write the sources of the kernels of some points."""
    from opmux_jit.cache.keys import source_key

    sources = {}
    for point in found:
        for kernel in kernels_of(point, most):
            source = kernel.source(ARCH)  # type: ignore[attr-defined]
            sources[source_key(source)] = source
    path.write_bytes(pickle.dumps(sources))
    sys.stdout.write(f"{len(found)} points, {len(sources)} kernels\n")


def drawn(seed: int, per_group: int, only: Sequence[str]) -> list[Point]:
    """The calls of a run of the choice."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "plugins-triton" / "benchmarks"))
    import choice_shapes

    return [point for _, point in choice_shapes.drawn(seed, per_group, False, only)]


def main() -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("records.measured"))
    parser.add_argument("--record", type=Path, help="write the sources of the kernels, and measure nothing")
    parser.add_argument("--spaces", action="store_true", help="few points, in several configs")
    parser.add_argument("--again", action="append", default=[], help="an op whose shipped points are measured again")
    parser.add_argument("--choice", type=int, help="the seed of a run of the choice whose kernels are recorded")
    parser.add_argument("--per-group", type=int, default=8, help="calls of each group of that run")
    parser.add_argument("--group", action="append", default=[], help="of that run")
    parser.add_argument("--limit", type=float, help="seconds after which no further point is begun")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--dry", action="store_true", help="list the points and measure nothing")
    given = parser.parse_args()
    most = CONFIGS_OF_A_SPACE if given.spaces else 1
    if given.again:
        found = shipped(given.again)
    elif given.choice is None:
        found = points(SPACES if given.spaces else COUNTS)
    else:
        found = drawn(given.choice, given.per_group, given.group)
    if given.dry:
        sys.stdout.write("".join(f"{p.key}\n" for p in found) + f"{len(found)} points\n")
        return 0
    if given.record:
        record(given.record, found, most)
        return 0

    def told(progress: Progress) -> None:
        sys.stdout.write(f"{progress}\n")
        sys.stdout.flush()

    tuned = opmux.tune(
        shapes=found, out=given.out, backends=(BACKEND,), limit_s=given.limit, rounds=given.rounds, most_configs=most,
        jobs=0, progress=told,
    )  # fmt: skip
    sys.stdout.write(f"{tuned}\n")
    return int(tuned.rows == 0)


if __name__ == "__main__":
    sys.exit(main())
