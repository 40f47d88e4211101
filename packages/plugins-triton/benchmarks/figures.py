"""Runs ``opmux bench --size figures`` op by op and writes the results after each, so that none is lost.

``python benchmarks/figures.py --out bench.json [--rounds 15] [--limit 1.5] [--warm] [OP]...``. Cases that the file
already has are replaced, others stay, so that ops can be measured in several runs. With ``--warm`` nothing is timed:
torch.compile and Triton fill their caches on disk, which concurrent processes then share.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from opmux import bench
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
    for op in arguments.ops or OPS:
        started = time.perf_counter()
        try:
            report = bench.run([op], ["triton"], settings)
        except Exception as error:  # one op's failure must not stop the others
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
        write(arguments.out, report.as_dict())


def write(path: Path, report: dict[str, Any]) -> None:
    """Add a report's cases to the file's, and take the higher of both ceilings."""
    if path.exists():
        before = json.loads(path.read_text())
        new = {(c["op"], c["case"]) for c in report["cases"]}
        report["cases"] = [c for c in before["cases"] if (c["op"], c["case"]) not in new] + [*report["cases"]]
        report["ceilings"] = max(before["ceilings"], report["ceilings"], key=lambda c: c["copy_gbps"])
    path.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
