"""Kernel times of scaled products on sm_90: the op as it is called, tiles of the Gluon kernel, and `torch._scaled_mm`.

``python benchmarks/measure_scaled.py --out FILE.json [--limit 240] [--seed 0] [--drawn 40] [--ranks 8]``. The shapes
of the figures come first, then drawn ones. What they need is compiled and checked in several processes, on sizes that
divide nothing; then each shape's contenders are compared with the reference, and timed in interleaved rounds with a
cold cache. Two of them are calls of the op: with every backend that is installed (``OPMUX_PLUGINS``), where the file
names the implementation that ran, and with ``backend="triton"``. ``--dry`` runs without a GPU: nothing is launched, and
times are 0.
"""

import argparse
import json
import math
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from measure_products import SM_90, WIDTHS, Timer, stepped
from torch import Tensor

import opmux
from opmux.callpath.op import OPS
from opmux.plugin import takers
from opmux.plugins import loading
from opmux_triton import repeats
from opmux_triton.launch import recording
from opmux_triton.scaled_gemm import heuristics, hopper_heuristics, hopper_targets, targets
from opmux_triton.scaled_gemm.configs import ScaledConfig
from opmux_triton.scaled_gemm.hopper_configs import HopperScaledConfig

FIGURES = (
    *(("square", m, n, k) for m in (4096, 128, 64, 16, 1) for n, k in ((7168, 16384), (24576, 1536), (4096, 7168))),
    ("token", 8192, 8192, 8192),
    *(("token", m, n, k) for m in (4096, 128, 64, 16, 1) for n, k in ((7168, 16384), (24576, 1536), (4096, 7168))),
)
ODD = ((333, 1032, 2192), (72, 1544, 4112), (1032, 8200, 144))
"""Products that no tile divides."""
MOST_FLOPS = 2e12
FP8 = torch.float8_e4m3fn
CALLS: dict[str, dict[str, Any]] = {"opmux": {}, "opmux triton": {"backend": "triton"}}
"""Calls of the op, by name, and what they are given beside the tensors."""
WRONG = 4e-3
"""Part of the results' norm that a difference from the reference may have: bfloat16 alone gives 1.7e-3."""


class Shape(NamedTuple):
    """A product, and which blocks have scales: ``token`` with channels, or ``square``: 1x128 with 128x128."""

    blocks: str
    m: int
    n: int
    k: int


class Contender(NamedTuple):
    """What is timed: a target and its config."""

    name: str
    target: str
    config: HopperScaledConfig | ScaledConfig


def shapes_of(seed: int, count: int) -> list[Shape]:
    """The figures' shapes, and drawn ones, m evenly by logarithm."""
    drawn, found = random.Random(seed), [Shape(*figure) for figure in FIGURES]
    while len(found) < len(FIGURES) + count:
        m = round(math.exp(drawn.uniform(0, math.log(16384))))
        n, k = drawn.choice(WIDTHS), drawn.choice(WIDTHS)
        if 2 * m * n * k <= MOST_FLOPS:
            found.append(Shape(drawn.choice(("token", "square")), m, n, k))
    return found


def contenders(shape: Shape, ranks: int) -> Iterator[Contender]:
    """The tiles by predicted time, the model's choice first; the portable kernel."""
    blocks, m, n, k = shape
    size = stepped(m)
    product = hopper_heuristics.Sizes(size, n, k, blocks == "square" and k > 128, blocks == "token")
    for choice in sorted(hopper_heuristics.choices(product))[:ranks]:
        tile = choice.tile
        name = f"{tile.block_m}x{tile.block_n} {choice.cut}{' swap' if choice.swap else ''}"
        config = hopper_heuristics.config(choice, product)
        yield Contender(name, "hopper", config)
        if blocks == "token":
            yield Contender(f"{name} fast", "fast", config)
    features = {"bucket(m)": (m - 1).bit_length(), "bucket(batch)": 0, "n": n, "k": k}
    yield Contender("portable", "portable", heuristics.scaled_linear(SM_90, features))


def target_of(contender: Contender) -> Callable[..., Any]:
    """What is called."""
    return {
        "hopper": hopper_targets.scaled_linear,
        "fast": hopper_targets.fast_scaled_linear,
        "portable": targets.scaled_linear,
    }[contender.target]


def made(shape: Shape, device: str, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes and scales."""
    blocks, m, n, k = shape
    generator = torch.Generator(device).manual_seed(seed)
    x, w = (torch.randn(r, k, device=device, generator=generator, dtype=torch.bfloat16).to(FP8) for r in (m, n))
    columns = 1 if blocks == "token" else -(-k // 128)
    rows = n if blocks == "token" else -(-n // 128)
    x_scale, w_scale = (torch.rand(r, columns, device=device, generator=generator) + 0.5 for r in (m, rows))
    return x, w, x_scale, w_scale


def peers(given: tuple[Tensor, Tensor, Tensor, Tensor], shape: Shape) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """`torch._scaled_mm`, with scales laid out as it takes them; that costs it no time here."""
    x, w, x_scale, w_scale = given
    if shape.blocks == "token":
        for fast in (False, True):
            options = {"out_dtype": torch.bfloat16, "use_fast_accum": fast}
            yield (
                f"_scaled_mm{' fast' if fast else ''}",
                lambda o=options: torch._scaled_mm(x, w.t(), x_scale, w_scale.t(), **o),
            )
        return
    rows, columns = w_scale.shape
    padded = w_scale.new_zeros(rows, -(-columns // 4) * 4)[:, :columns].copy_(w_scale)
    turned = x_scale.t().contiguous().t()
    yield "_scaled_mm", lambda: torch._scaled_mm(x, w.t(), turned, padded.t(), out_dtype=torch.bfloat16)


def backends(op: str) -> list[str]:
    """The backends that the op is chosen from, beside the reference."""
    loading.ensure_loaded()
    return sorted({record.backend for record in OPS[op].implementations} - {"reference"})


def implementation(arguments: tuple[Tensor, ...], dry: bool, **more: Any) -> str:
    """The name of what a call runs, after it has run: a failure before would have changed it."""
    options = {"out_dtype": torch.bfloat16, **more}
    if dry:
        return next(iter(takers(opmux.scaled_linear, *arguments, arch="sm_90", **options))).implementation.full_name
    why = opmux.explain(opmux.scaled_linear, *arguments, **options)
    assert why.chosen is not None
    return why.chosen.name


def called(shape: Shape) -> tuple[str, str, str]:
    """Call the op, so that what it launches is compiled; a name for it, the blocks, and what went wrong."""
    name = f"opmux {shape.m}x{shape.n}x{shape.k}"
    try:
        arguments = made(shape, "cuda")
        for more in CALLS.values():
            opmux.scaled_linear(*arguments, out_dtype=torch.bfloat16, **more)
        torch.cuda.synchronize()
    except Exception as error:
        return name, shape.blocks, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    del arguments
    torch.cuda.empty_cache()
    return name, shape.blocks, ""


def difference(found: Tensor, expected: Tensor) -> float:
    """The norm of the difference over the norm of what was expected."""
    return float((found.float() - expected).norm() / expected.norm())


def checked(job: tuple[Contender, str]) -> tuple[str, str, str]:
    """Compile what a config launches and compare its results, with partial sums in memory full of garbage."""
    contender, blocks = job
    try:
        return contender.name, blocks, _complaint(contender, blocks)
    except Exception as error:
        return contender.name, blocks, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _complaint(contender: Contender, blocks: str) -> str:
    run = target_of(contender)
    for sizes in ODD:
        given = made(Shape(blocks, *sizes), "cuda")
        bias = torch.randn(sizes[1], device="cuda")
        expected = opmux.scaled_linear.reference(*given, bias, out_dtype=torch.float32)
        first = None
        for out_dtype in (torch.bfloat16, torch.bfloat16, torch.float32):
            for size in (16 << 20, *[32 << 10] * 8):  # what results and partial sums are then taken from
                torch.full((size,), math.nan, device="cuda")
            got = run(*given, bias, out_dtype=out_dtype, config=contender.config)
            apart = difference(got, expected)
            if not apart < WRONG:
                return f"differs by {apart:.2e} at {sizes} in {out_dtype}"
            if first is not None and out_dtype == first.dtype and not torch.equal(first, got):
                return f"differs from call to call at {sizes}"
            first = got
    return ""


def built(shapes: list[Shape], given: argparse.Namespace) -> dict[tuple[str, str], str]:
    """What is wrong with the contenders and with calls of the op, by name and blocks; nothing where they are right."""
    jobs = {(one.name, s.blocks): (one, s.blocks) for s in shapes for one in contenders(s, given.ranks)}
    found = dict.fromkeys(jobs, "did not finish")
    workers = min(14, max(2, (os.cpu_count() or 2) - 2))
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    running = [pool.submit(checked, job) for job in jobs.values()] + [pool.submit(called, shape) for shape in shapes]
    try:
        for done in as_completed(running, timeout=given.limit / 2):
            name, blocks, said = done.result()
            if said:
                found[name, blocks] = said
                print("WRONG", blocks, name, said, flush=True)
            else:
                found.pop((name, blocks), None)
        pool.shutdown()
    except (TimeoutError, BrokenProcessPool) as error:
        print(f"checks ended early: {error!r}", flush=True)
        for process in list((pool._processes or {}).values()):
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)
    print(f"{len(jobs)} configs checked, {len(found)} wrong or late", flush=True)
    return found


def timed(shape: Shape, given: argparse.Namespace, wrong: dict[tuple[str, str], str], timer: Timer | None) -> Any:
    """Medians by name, and what could not run."""
    arguments = made(shape, "cpu" if timer is None else "cuda")
    calls: dict[str, Callable[[], Any]] = {}
    for one in contenders(shape, given.ranks):
        if (one.name, shape.blocks) not in wrong:
            run = target_of(one)
            calls[one.name] = lambda run=run, one=one: run(
                *arguments, None, out_dtype=torch.bfloat16, config=one.config
            )
    chosen, failed, apart = next(iter(calls), ""), {}, {}
    for name, more in CALLS.items() if timer is not None else ():
        calls[name] = lambda more=more: opmux.scaled_linear(*arguments, out_dtype=torch.bfloat16, **more)
    calls |= dict(peers(arguments, shape))
    expected = None
    if timer is not None and shape.m * shape.n * shape.k < MOST_FLOPS / 2:
        expected = opmux.scaled_linear.reference(*arguments, None, out_dtype=torch.float32)
    for name, call in list(calls.items()):
        try:
            found = call()
            if expected is not None:
                apart[name] = difference(found, expected)
                if not apart[name] < WRONG and not name.startswith("_") and "fast" not in name:
                    raise ValueError(f"differs by {apart[name]:.2e}")
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            del calls[name]
    expected = None
    ran = {name: implementation(arguments, timer is None, **more) for name, more in CALLS.items() if name not in failed}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    if timer is None:
        return {"chosen": chosen, "ran": ran, "times": dict.fromkeys(samples, 0.0), "failed": failed, "apart": apart}
    drawn, names = random.Random(0), list(calls)
    repeats.forget()
    timer.round([*calls.values()])
    timer.round([*calls.values()])
    for number in range(given.rounds):
        drawn.shuffle(names)
        for name, took in zip(names, timer.round([calls[n] for n in names], 2 if number < 2 else 1), strict=True):
            samples[name].append(took)
    times = {name: round(statistics.median(taken), 3) for name, taken in samples.items()}
    return {"chosen": chosen, "ran": ran, "times": times, "failed": failed, "apart": apart}


def line_of(shape: Shape, row: Any) -> str:
    """A line: the call of the op, the Gluon kernel's own config, the best of ours, the portable kernel, the peer."""
    times = row["times"]
    others = ("portable", *CALLS)
    ours = {n: t for n, t in times.items() if not n.startswith("_") and "fast" not in n and n not in others}
    best = min(ours, key=lambda name: ours[name], default="-")
    peer = times.get("_scaled_mm", math.nan)
    chosen = times.get(row["chosen"], math.nan)
    fast = min((t for n, t in times.items() if n.endswith(" fast") and not n.startswith("_")), default=math.nan)
    called = times.get("opmux", math.nan)
    ratios = ", ".join(f"{peer / t:.2f}" if t else "nan" for t in (called, times.get("opmux triton", math.nan), chosen))
    by_op = " ".join(f"{row['ran'].get(name, '-')} {times.get(name, math.nan):.1f}" for name in CALLS)
    return (
        f"{shape.blocks} {shape.m} {shape.n} {shape.k}: called {by_op}, config {row['chosen']} {chosen:.1f}, "
        f"best {best} {ours.get(best, math.nan):.1f}, portable {times.get('portable', math.nan):.1f}, fast {fast:.1f}, "
        f"_scaled_mm {peer:.1f}, its fast {times.get('_scaled_mm fast', math.nan):.1f}, ratios {ratios}"
    )


def main() -> int:
    """Measure; the exit status is 1 where a config was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--drawn", type=int, default=40, help="shapes beside the figures'")
    parser.add_argument("--ranks", type=int, default=8, help="tiles of a shape, the first by predicted time")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--limit", type=float, default=240, help="seconds, of checks and times together")
    parser.add_argument("--dry", action="store_true", help="launch nothing")
    given = parser.parse_args()
    began = time.perf_counter()
    shapes = shapes_of(given.seed, given.drawn)
    wrong: dict[tuple[str, str], str] = {} if given.dry else built(shapes, given)
    print(f"built in {time.perf_counter() - began:.0f} s", flush=True)
    timer, rows = None if given.dry else Timer(), []
    data = {
        "device": "none" if given.dry else torch.cuda.get_device_name(), "torch": torch.__version__,
        "seed": given.seed, "backends": backends("scaled_linear"),
        "wrong": [[*key, said] for key, said in wrong.items()],
    }  # fmt: skip
    for shape in shapes:
        if given.dry and shape.m * shape.n * shape.k > 1 << 32:
            continue
        with recording("sm_90") if given.dry else nullcontext():
            row = timed(shape, given, wrong, timer)
        rows.append({**shape._asdict(), "figure": shape in FIGURES, **row})
        given.out.write_text(json.dumps({**data, "rows": rows}) + "\n")
        print(line_of(shape, row), flush=True)
        if time.perf_counter() - began > given.limit:
            break
    failures = {f"{name}: {said}" for row in rows for name, said in row["failed"].items()}
    for failure in sorted(failures)[:20]:
        print("FAILED", failure, flush=True)
    print(f"{len(rows)} of {len(shapes)} shapes in {time.perf_counter() - began:.0f} s", flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
