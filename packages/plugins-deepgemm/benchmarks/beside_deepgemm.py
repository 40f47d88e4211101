"""DeepGEMM itself beside this backend on a Hopper GPU: `python .../benchmarks/beside_deepgemm.py --to lines.txt`.

Takes an installed ``deep_gemm``, which compiles its kernels by nvcc: all lines are compiled first, in processes beside
each other. Then each line is timed as `figures.py` times its own: the sum of the kernels of a call, with 8 GB read and
written before it, medians of seven in turns. Both compute from the same codes and scales, those of x in DeepGEMM's
layout, so that neither copies any. Rows of groups are rounded up to 128, as DeepGEMM's own benchmark rounds them.

Results are compared before they are timed. A line is added to the file as JSON as soon as it is measured; ``--collect
FILE... --out FILE`` makes docs/benchmarks/data/deepgemm-itself.json of such files.
"""

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OPMUX_PLUGINS", "deepgemm")

import figures
import grouped_on_gpu
import scaled_gradients_on_gpu
import torch
from apart import Limits, measured
from figures import Line, device_times, warm
from on_gpu import compile_kernels, lying, operands, rivals, say, short
from torch import Tensor

from opmux_deepgemm import launching
from opmux_deepgemm.compat import get_mn_major_tma_aligned_tensor as aligned
from opmux_deepgemm.configs import Config
from opmux_deepgemm.generation.source import Product
from opmux_deepgemm.scaled_gradient_model import scored_gradients
from opmux_deepgemm.summing import add_scaled_gradients

PARTS = ("fp8 4096", "added", "ragged k", "contiguous", "masked", "fp8 128", "fp8 1", "bf16 4096", "bf16 128", "bf16 1")
"""The most important first."""
ROOM = 256
"""Masked groups have room for a multiple of so many rows: DeepGEMM stores whole tiles."""


class Turn(NamedTuple):
    """Both calls of a line, what they write, and what a call computes and moves."""

    ours: Callable[[], object]
    theirs: Callable[[], object]
    of_ours: Tensor
    of_theirs: Tensor
    chosen: str
    operations: int
    moved: int
    others: dict[str, Callable[[], object]]


def lines(part: str) -> list[Line]:
    """The lines of a part."""
    if part == "ragged k":
        rows, n, k = scaled_gradients_on_gpu.LISTED
        return [Line(part, sum(rows) // len(rows), n, k, len(rows))]
    return figures.lines(part)


def rounded(line: Line) -> tuple[int, ...]:
    """Rows of the groups of a line: multiples of 128 where they lie one after the other."""
    rows = grouped_on_gpu.varied(line.groups, line.m)
    return rows if line.part == "masked" else tuple(-(-size // 128) * 128 for size in rows)


def kernel(line: Line) -> tuple[Product, Config]:
    """What this backend compiles for a line: the model's choice."""
    if line.part == "ragged k":
        return scaled_gradients_on_gpu.product(line.n, line.k), _of_ragged(line)
    return lying(line.product, line.configs()[0], -(-line.m // 4) * 4 * max(line.groups, 1), by_columns=True)


def _of_ragged(line: Line) -> Config:
    return scored_gradients(line.groups * line.m, line.n, line.k, line.groups)[0].config


def turn(line: Line) -> Turn:
    """The calls of a line, on the GPU."""
    if line.part == "ragged k":
        return _ragged(line)
    return _grouped(line) if line.groups else _dense(line)


def _dense(line: Line) -> Turn:
    import deep_gemm

    given, config, added = operands(line.dtype, line.m, line.n, line.k), kernel(line)[1], line.part == "added"
    dtype = torch.float32 if added else torch.bfloat16
    of_ours, of_theirs = (torch.zeros(line.m, line.n, dtype=dtype, device="cuda") for _ in range(2))
    moved = (given.x.numel() + given.w.numel()) * given.x.element_size() + of_ours.numel() * of_ours.element_size()
    others = dict(rivals(line.dtype, given))
    if line.dtype == "bf16":
        theirs = partial(deep_gemm.bf16_gemm_nt, given.x, given.w, of_theirs)
    else:
        assert given.x_scale is not None
        given = given._replace(x_scale=aligned(given.x_scale))
        more: dict[str, Any] = {}
        if added:
            moved += 4 * of_ours.numel()
            others.pop("blocks")
            w_scale = torch.rand(-(-line.k // 128), line.n, device="cuda").t() + 0.5
            given = given._replace(w_scale=aligned(w_scale))
            more = {"c": of_theirs, "recipe": (1, 1, 128)}
        theirs = partial(
            deep_gemm.fp8_gemm_nt, (given.x, given.x_scale), (given.w, given.w_scale), of_theirs, **more,
            disable_ue8m0_cast=True,
        )  # fmt: skip
    ours = partial(launching.multiply, config, given, of_ours, accumulate=added)
    return Turn(ours, theirs, of_ours, of_theirs, short(config), 2 * line.m * line.n * line.k, moved, others)


def _grouped(line: Line) -> Turn:
    import deep_gemm

    rows, config, masked = rounded(line), kernel(line)[1], line.part == "masked"
    room = -(-max(rows) // ROOM) * ROOM if masked else 0
    given = grouped_on_gpu.operands(line.family, rows, line.n, line.k, spare=room - max(rows) if masked else 0)
    assert given.x_scale is not None
    given = given._replace(x_scale=aligned(given.x_scale))
    shape = *given.x.shape[:-1], line.n
    of_ours, of_theirs = (torch.zeros(shape, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    left, right = (given.x, given.x_scale), (given.w, given.w_scale)
    if masked:
        theirs = partial(
            deep_gemm.m_grouped_fp8_gemm_nt_masked, left, right, of_theirs, given.sizes, line.m,
            disable_ue8m0_cast=True,
        )  # fmt: skip
    else:
        groups = torch.arange(line.groups, dtype=torch.int32, device="cuda")
        indices = groups.repeat_interleave(torch.tensor(rows, device="cuda"))
        theirs = partial(
            deep_gemm.m_grouped_fp8_gemm_nt_contiguous, left, right, of_theirs, indices, disable_ue8m0_cast=True
        )
    ours = partial(launching.multiply, config, given, of_ours)
    moved = (sum(rows) + line.groups * line.n) * line.k + 2 * sum(rows) * line.n
    return Turn(ours, theirs, of_ours, of_theirs, short(config), 2 * sum(rows) * line.n * line.k, moved, {})


def _ragged(line: Line) -> Turn:
    import deep_gemm

    rows, n, k = scaled_gradients_on_gpu.LISTED
    config = _of_ragged(line)
    given = scaled_gradients_on_gpu.operands(scaled_gradients_on_gpu.Case(rows, n, k, config))
    of_ours, of_theirs = (torch.zeros(len(rows), n, k, device="cuda") for _ in range(2))
    flat = [
        (torch.cat([part.T.reshape(-1) for part in codes.split(list(rows))]), scale.T)
        for codes, scale in ((given.dy, given.dy_scale), (given.x, given.x_scale))
    ]
    counts = torch.tensor(rows, dtype=torch.int32, device="cuda")
    theirs = partial(deep_gemm.k_grouped_fp8_gemm_nt_contiguous, *flat, of_theirs, list(rows), counts, of_theirs)
    ours = partial(
        add_scaled_gradients, config, given.dy, given.x, given.dy_scale, given.x_scale, given.offsets, given.sizes,
        of_ours,
    )  # fmt: skip
    moved = sum(rows) * (n + k) + 8 * of_ours.numel()
    return Turn(ours, theirs, of_ours, of_theirs, short(config), 2 * sum(rows) * n * k, moved, {})


def apart(line: Line, made: Turn) -> float:
    """How far the two results are from each other, of their norm, in the rows that belong to a group."""
    ours, theirs = made.of_ours, made.of_theirs
    if line.part == "masked":
        kept = [slice(size) for size in rounded(line)]
        ours, theirs = (torch.cat([one[g, place] for g, place in enumerate(kept)]) for one in (ours, theirs))
    return float((ours.float() - theirs.float()).norm() / theirs.float().norm())


def measure(line: Line) -> dict[str, Any]:
    """A line with the microseconds of each."""
    made = turn(line)
    made.ours()
    made.theirs()
    torch.cuda.synchronize()
    off = apart(line, made)
    if not off < 0.01:
        raise RuntimeError(f"the results are {off:.3g} of their norm from each other")
    calls = {"opmux": made.ours, "deepgemm": made.theirs}
    for name, call in made.others.items():
        try:
            call()
            torch.cuda.synchronize()
            calls[name] = call
        except RuntimeError as error:
            if "CUBLAS" not in str(error):  # cuBLAS does not multiply one row with scales of blocks
                raise
    times = device_times(list(calls.values()))
    spent = dict(zip(calls, times, strict=True))
    return {
        **line._asdict(), "operations": made.operations, "bytes": made.moved, "chosen": made.chosen, "apart": off,
        "microseconds": spent,
    }  # fmt: skip


def summary(line: dict[str, Any]) -> str:
    """A line for those who watch."""
    spent = line["microseconds"]
    speeds = ", ".join(f"{name} {line['operations'] / time / 1e6:.0f}" for name, time in spent.items())
    groups = f"{line['groups']} x " if line["groups"] else ""
    share = spent["deepgemm"] / spent["opmux"]
    return f"{line['part']}: {groups}{line['m']} {line['n']} {line['k']} TFLOPS: {speeds}; {share:.3f} of DeepGEMM's"


def compile_theirs(part_of: list[Line]) -> None:
    """Call DeepGEMM once for each line, so that its cache has the kernels."""
    for line in part_of:
        try:
            turn(line).theirs()
            torch.cuda.synchronize()
        except Exception as error:
            say(f"# {line}: {type(error).__name__}: {str(error)[:300]}")


def compile_all(wanted: list[Line], processes: int) -> None:
    """Compile both sides' kernels, DeepGEMM's in processes beside each other."""
    spawn = multiprocessing.get_context("spawn")
    running = [spawn.Process(target=compile_theirs, args=(wanted[i::processes],)) for i in range(processes)]
    for one in running:
        one.start()
    compile_kernels(list({kernel(line): None for line in wanted}))
    for one in running:
        one.join()


def collected(paths: list[Path]) -> Iterator[dict[str, Any]]:
    """What the files hold, without remarks."""
    for path in paths:
        for text in path.read_text(encoding="utf-8").splitlines():
            if text.startswith("{"):
                yield json.loads(text)


def main() -> int:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--to", type=Path, default=Path("beside-deepgemm.txt"), help="the file that lines are added to")
    parser.add_argument("--processes", type=int, default=12, help="that compile DeepGEMM's kernels")
    parser.add_argument("--total", type=float, default=math.inf, help="seconds after which no line is begun")
    parser.add_argument("--collect", nargs="+", type=Path, help="files that lines were added to")
    parser.add_argument("--out", type=Path, help="the file that --collect writes")
    given = parser.parse_args()
    if given.collect:
        found = list(collected(given.collect))
        about = next(one for one in found if "device" in one)
        measured_lines = [one for one in found if "microseconds" in one]
        given.out.write_text(json.dumps(about | {"lines": measured_lines}, indent=1) + "\n", encoding="utf-8")
        return 0
    began, wanted = time.monotonic(), [line for part in given.parts for line in lines(part)]
    compile_all(wanted, given.processes)
    say(f"# compiled after {time.monotonic() - began:.0f} s")
    say_device = (
        "import torch, deep_gemm; p = torch.cuda.get_device_properties(0); print(f'{p.name}|{deep_gemm.__version__}')"
    )
    name = os.popen(f'{sys.executable} -c "{say_device}"').read().strip().splitlines()[-1]
    device, version = name.split("|")
    about = {
        "device": device, "deepgemm": version, "torch": torch.__version__, "cuda": torch.version.cuda,
        "date": time.strftime("%Y-%m-%d"), "rounds": figures.ROUNDS, "groups_seed": grouped_on_gpu.SEED,
    }  # fmt: skip
    with given.to.open("a", encoding="utf-8") as file:
        file.write(json.dumps(about) + "\n")
    good = True
    for outcome in measured(wanted, warm, measure, Limits(60, 40, began + given.total)):
        if outcome.problem:
            good = False
            say(f"# FAILED {outcome.item}: {outcome.problem}")
            continue
        with given.to.open("a", encoding="utf-8") as file:
            file.write(json.dumps(outcome.found) + "\n")
        say(f"{summary(outcome.found)} ({time.monotonic() - began:.0f} s)")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
