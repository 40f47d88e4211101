"""What a plan miss costs with 50 registered candidates, and that shapes grow no table beyond its feature keys.

A miss is the whole first call of a key: validation, resolution with a reason for every rejection, the first run and
the check of its result. The same again with 10,000 measured rows, from which times are predicted: 200 points of each of
the 50, or 5,000 points of each of two. Run: ``python packages/core/benchmarks/plan_miss.py [--json]``.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch

sys.path.insert(0, str(Path(__file__).parent))
from call_budget import implementations, opmux_hook, plain_target_rms_norm
from measured_rows import measured_rows

import opmux
from opmux.plugins.loading import temporary_plugin

LIMIT_MS = 1.0
SHAPES = 10_000
ROWS = 10_000
LAYOUTS = {"50 x 200": (50, 200), "2 x 5000": (2, 5000)}
"""What the measured rows are of: how many implementations, how many points of each."""


def miss_ms(rounds: int, x: torch.Tensor, weight: torch.Tensor) -> float:
    """The median time of a call whose plan was dropped."""
    misses = []
    opmux.rms_norm(x, weight)  # rows are indexed when the first call of their kind is planned
    for _ in range(rounds):
        opmux.rms_norm.op.drop_plans()
        started = time.perf_counter()
        opmux.rms_norm(x, weight)
        misses.append((time.perf_counter() - started) * 1e3)
    return statistics.median(misses)


def measure(rounds: int = 200) -> dict[str, float]:
    """Milliseconds of a miss, and the sizes of the tables after many shapes."""
    op = opmux.rms_norm.op
    x, weight = torch.randn(100, 2048), torch.randn(2048)  # amid the rows
    ready = torch.empty(100, 2048)
    plugin = SimpleNamespace(
        OPMUX_API_VERSION=1,
        opmux_implementations=opmux_hook(implementations("rms_norm", plain_target_rms_norm(ready))),
    )
    found: dict[str, float] = {}
    with temporary_plugin(plugin, "budget"), opmux.policy.override(prefer=["budget"]), torch.no_grad():
        found["miss_ms"] = miss_ms(rounds, x, weight)
        for name, (count, points) in LAYOUTS.items():
            with measured_rows(count, points):
                found[f"miss_ms, {name}"] = miss_ms(rounds, x, weight)

    plugin.opmux_implementations = opmux_hook(implementations("rms_norm", lambda x, weight, **_: torch.empty_like(x)))
    with temporary_plugin(plugin, "budget"), torch.no_grad():
        keys = set()
        for shape in range(SHAPES):
            rows, hidden = shape % 100, shape // 100 + 1
            shaped = torch.empty(rows, hidden), torch.empty(hidden)
            keys.add(op.state.key_of(*shaped, eps=1e-6, weight_offset=0.0))
            opmux.rms_norm(*shaped)
        tables = max(len(op.table), len(op.front[2] or ()))
    return {**found, "shapes": SHAPES, "feature_keys": len(keys), "table": tables}


def main() -> int:
    """Print the figures; 1 where a table holds more than its feature keys."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measure()
    if arguments.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            if name.startswith("miss_ms"):
                rows = name.partition(", ")[2]
                what = f"plan miss, 50 candidates{f', {rows} rows' if rows else ''}"
                print(f"{what:<40} {value:6.3f} ms  limit {LIMIT_MS} ms  {'ok' if value <= LIMIT_MS else 'over'}")
        print(f"{found['shapes']} shapes: {found['table']} plans for {found['feature_keys']} feature keys")
    return 0 if found["table"] <= found["feature_keys"] else 1


if __name__ == "__main__":
    sys.exit(main())
