"""Host time of a call, compared with its least work: allocating the result and launching its kernel directly.

``python benchmarks/host_time.py [--out FILE]``. Many asynchronous calls on tiny tensors, medians of interleaved rounds.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import opmux
from opmux_triton.launch import FUSION, recording

CALLS = 400


def microseconds(run: Callable[[], Any]) -> float:
    """Host time of one call, without waiting for the device."""
    torch.cuda.synchronize()
    started = time.perf_counter_ns()
    for _ in range(CALLS):
        run()
    taken = (time.perf_counter_ns() - started) / CALLS / 1e3
    torch.cuda.synchronize()
    return taken


def direct(op: Any, tensors: tuple[Any, ...], **options: Any) -> Callable[[], Any]:
    """Allocate the results and launch the op's own kernel through Triton."""
    op(*tensors, **options)
    plan = opmux.explain(op, *tensors, **options)
    with recording(plan.arch) as recorded:
        op.bind(*tensors, **options)(*tensors)
    (made,) = recorded.launches
    kernel, grid, meta = made.kernel, made.grid, {**made.meta, **FUSION}
    arguments = made.arguments
    like = [t for t in arguments if isinstance(t, torch.Tensor) and all(t is not given for given in tensors)]

    def run() -> None:
        for tensor in like:
            torch.empty_like(tensor)
        kernel[grid](*arguments, **meta)

    return run


def main() -> None:
    """Print the ratio of each op."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 128])
    arguments = parser.parse_args()
    made = {}
    for rows in arguments.rows:
        x, weight = torch.randn(rows, 4096, device="cuda").bfloat16(), torch.ones(4096, device="cuda").bfloat16()
        q, k = (torch.randn(rows, heads, 128, device="cuda").bfloat16() for heads in (32, 8))
        cos, sin = torch.randn(2, 256, 64, device="cuda")
        made[f"rms_norm {rows}"] = (opmux.rms_norm, (x, weight))
        made[f"add_rms_norm {rows}"] = (opmux.add_rms_norm, (x, x.clone(), weight))
        made[f"silu_and_mul {rows}"] = (opmux.silu_and_mul, (torch.cat((x, x), -1),))
        made[f"silu_mul {rows}"] = (opmux.silu_mul, (x, x.clone()))
        made[f"apply_rope {rows}"] = (opmux.apply_rope, (q, k, cos, sin))
    runs: dict[str, tuple[Callable[[], Any], ...]] = {}
    for name, (op, tensors) in made.items():
        try:
            bound = op.bind(*tensors)
            runs[name] = (
                lambda op=op, tensors=tensors: op(*tensors),
                lambda bound=bound, tensors=tensors: bound(*tensors),
                direct(op, tensors),
            )
        except Exception as error:  # one op's failure must not stop the others
            print(f"{name}: {type(error).__name__}: {str(error)[:200]}")
    taken: dict[str, list[list[float]]] = {name: [[], [], []] for name in runs}
    for _ in range(arguments.rounds):
        for name, variants in runs.items():
            for place, run in enumerate(variants):
                taken[name][place].append(microseconds(run))
    result = {}
    for name, samples in taken.items():
        call, bound, least = (statistics.median(s) for s in samples)
        result[name] = {"call_us": call, "bind_us": bound, "direct_us": least, "ratio": call / least}
        print(f"{name:20} call {call:6.2f} us  bind {bound:6.2f}  direct {least:6.2f}  ratio {call / least:5.2f}")
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
