"""``opmux bench --size figures`` op by op, the results so far being written after each, so that none is lost.

``python benchmarks/figures.py --out FOLDER [--rounds 15] [--limit 1.5] [--warm] [OP]...``. With ``--warm`` nothing is
timed: torch.compile and Triton fill their caches on disk, so that processes side by side can share that work.
"""

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path

import torch

from opmux import bench
from opmux.bench.plot import svg
from opmux.bench.shapes import FIGURES

BACKWARD = ("rms_norm_backward", "add_rms_norm_backward", "layer_norm_backward", "add_layer_norm_backward")
OPS = (*FIGURES, *BACKWARD, "silu_mul_backward", "silu_and_mul_backward", "apply_rope_backward")


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("ops", nargs="*")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--limit", type=float, default=1.5)
    parser.add_argument("--warm", action="store_true")
    arguments = parser.parse_args()
    rounds, limit = (1, 0.0) if arguments.warm else (arguments.rounds, arguments.limit)
    settings = bench.Settings.for_device(
        torch.device("cuda"), size="figures", compiled=True, rounds=rounds, limit_s=limit
    )
    whole = None
    for op in arguments.ops or OPS:
        started = time.perf_counter()
        try:
            report = bench.run([op], ["triton"], settings)
        except Exception as error:  # one op's failure must not cost the others
            print(f"{op}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            continue
        finally:
            torch.cuda.empty_cache()
        print(f"{op}: {len(report.cases)} cases, {time.perf_counter() - started:.1f} s", flush=True)
        if arguments.warm:
            continue
        for case in report.cases:
            best = min((c.median_us for c in case.contenders if c.kind == "peer"), default=float("nan"))
            for c in case.contenders:
                print(f"  {case.case:40} {c.name:22} {c.median_us:9.1f} us {best / c.median_us:5.2f} {c.fraction:5.2f}")
            for left in case.left:
                print(f"  {case.case:40} {left.name} {left.status}: {' '.join(left.reason.split())[:160]}")
        sys.stdout.flush()
        if whole is None:
            whole = report
        else:
            best_copy = max(whole.ceilings, report.ceilings, key=lambda c: c.copy_gbps)
            whole = dataclasses.replace(whole, cases=(*whole.cases, *report.cases), ceilings=best_copy)
        arguments.out.joinpath("bench.json").write_text(json.dumps(whole.as_dict(), indent=1))
        arguments.out.joinpath("h200.svg").write_text(svg(whole))


if __name__ == "__main__":
    main()
