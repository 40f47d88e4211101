"""Kernel times of grouped products: every config worth trying, and torch's own, on the figures' shapes and seeded ones.

``python benchmarks/measure_grouped.py --out FILE.json [--limit 300] [--seed 0] [--drawn 6] [--configs 6]`` checks each
config against float64 on sizes that nothing divides, then times it with a cold cache, interleaved with torch's peers
and with calls of the op: with every backend that is installed (``OPMUX_PLUGINS``), where the file names the
implementation that ran, and with ``backend="triton"``.
Without a GPU it runs the same steps on small shapes under Triton's interpreter: the times then mean nothing.
"""

import argparse
import functools
import itertools
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

GPU = torch.cuda.is_available()
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported

import opmux  # noqa: E402
from opmux.callpath.op import OPS as DEFINED  # noqa: E402
from opmux.plugin import device_arch, parse_arch  # noqa: E402
from opmux.plugins import loading  # noqa: E402
from opmux_triton import families, repeats  # noqa: E402

OPS = {name: getattr(opmux, name) for name in (
    "grouped_linear", "scaled_grouped_linear", "masked_grouped_linear", "scaled_masked_grouped_linear",
    "grouped_linear_backward", "grouped_weight_grad",
)}  # fmt: skip
DEVICE = "cuda" if GPU else "cpu"
FLUSH_BYTES = 512 * 2**20 if GPU else 2**10
FP8 = torch.float8_e4m3fn
CALLS: dict[str, dict[str, Any]] = {"opmux": {}, "opmux triton": {"backend": "triton"}}
"""Calls of the op, by name, and what they are given beside a call's tensors and options."""
CALLERS = 3
"""Processes that call the op on whole shapes, so that what it launches is compiled: weights take up to 8 GB in each."""
WRONG = 6e-3
ROWS = 16384
"""Rows that are compared at a time: all of them in float32 may be too many."""


@dataclass(frozen=True)
class Shape:
    """So many rows in each of some groups; ``room`` for rows in the masked layout, 0 in the ragged one."""

    groups: int
    rows: int
    n: int
    k: int
    room: int = 0
    figure: bool = False


def shapes_of(op: str, seed: int, drawn: int) -> Iterator[Shape]:
    """The rows of the figures, then shapes of experts by a seed."""
    masked = "masked" in op
    figures: tuple[tuple[int, int], ...] = (
        ((6, 1024), (32, 192), (32, 20)) if masked else ((8, 4096), (32, 20), (128, 8))
    )
    if "grad" in op or "backward" in op:
        figures = ((8, 4096),)
    if not GPU:
        figures, drawn = ((2, 5),), 0
    n, k = (4096, 7168) if GPU else (24, 128)
    for groups, rows in figures:
        yield Shape(groups, rows, n, k, 4 * rows if masked else 0, figure=True)
    random_ = random.Random(f"{seed} {op}")
    for _ in range(drawn):
        groups = random_.choice((8, 16, 32, 64, 128))
        hidden, inner = random_.choice(((2048, 768), (4096, 1536), (4096, 14336), (7168, 2048), (2880, 2880)))
        n, k = random_.choice(((2 * inner, hidden), (hidden, inner))) if GPU else (48, 256)
        most = min(4096, int(2e12 / (2 * groups * n * k)))
        rows = round(math.exp(random_.uniform(0, math.log(max(2, most))))) if GPU else 5
        yield Shape(groups if GPU else 2, rows, n, k, max(128, 2 * rows) if masked else 0)


def counts_of(shape: Shape, even: bool) -> list[int]:
    """Rows of each group: all alike, or between none and twice as many."""
    if even:
        return [shape.rows] * shape.groups
    drawn = random.Random(1)
    counts = [drawn.randint(0, 2 * shape.rows) for _ in range(shape.groups)]
    return [min(count, shape.room) if shape.room else count for count in counts]


def arguments(op: str, shape: Shape, even: bool, seed: int = 0) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Tensors and options of a call."""
    generator = torch.Generator(DEVICE).manual_seed(seed)

    def drawn(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, generator=generator, device=DEVICE, dtype=torch.bfloat16)

    counts = counts_of(shape, even)
    index = counts if shape.room else [0, *itertools.accumulate(counts)]
    groups = torch.tensor(index, dtype=torch.int32, device=DEVICE)
    lead = (shape.groups, shape.room) if shape.room else (sum(counts),)
    x, w = drawn(*lead, shape.k), drawn(shape.groups, shape.n, shape.k)
    options: dict[str, Any] = {"expected_m": shape.rows} if shape.room else {}
    if op.startswith("scaled"):
        scales = [torch.rand(*lead, -(-shape.k // 128), generator=generator, device=DEVICE) + 0.5]
        blocks = (shape.groups, -(-shape.n // 128), -(-shape.k // 128))
        scales.append(torch.rand(blocks, generator=generator, device=DEVICE) + 0.5)
        more: tuple[Any, ...] = () if shape.room else (None,)
        return (x.to(FP8), w.to(FP8), groups, *scales, *more), {**options, "out_dtype": torch.bfloat16}
    if op == "grouped_linear_backward":
        return (drawn(*lead, shape.n), x, w, groups, None), {"output_mask": (True, True)}
    if op == "grouped_weight_grad":
        out = torch.zeros(w.shape, device=DEVICE)
        return (out, drawn(*lead, shape.n), x, groups, None), {}
    return (x, w, groups) if shape.room else (x, w, groups, None), options


def features_of(op: str, shape: Shape) -> dict[str, Any]:
    """What config functions read of a call."""
    dim, size = ("expected_m", shape.rows) if shape.room else ("m", shape.groups * shape.rows)
    rows, shift = shape.groups * shape.rows, max((size - 1).bit_length() - 4, 0)
    named = {"groups": shape.groups, "n": shape.n, "k": shape.k, "bucket(m)": (rows - 1).bit_length()}
    named[f"bucket({dim})"] = (size - 1).bit_length()
    named[f"bucket({dim}, 8)"] = (size - 1 >> shift) + 1 << shift  # as Bucket(dim, per_octave=8)
    return named


def resolved(path: str) -> Any:
    """What a record's string names."""
    module, _, name = path.partition(":")
    return getattr(__import__(module, fromlist=[name]), name)


def _behind(config: Any, chosen: Any, rows: int) -> tuple[int, int, int]:
    """How far behind others a config is tried."""
    height, width = (getattr(config, name, 1) for name in ("block_m", "block_n"))
    changed = sum(value != asdict(chosen).get(name) for name, value in asdict(config).items())
    return -(-rows // height) * height, -height * width, changed


def contenders(op: str, shape: Shape, most: int) -> Iterator[tuple[str, Any, Any]]:
    """(name, target, config): the heuristic of each implementation first, then others of its space.

    Of these, tiles come first that compute few rows in vain, then large ones, then those most like the heuristic's.
    """
    arch = device_arch("cuda", 0) if GPU else parse_arch("cpu")
    features = features_of(op, shape)
    for record in families.records():
        if record.op != op or record.name == "float32" or (record.name and not GPU):
            continue
        assert isinstance(record.target, str)
        target = resolved(record.target)
        chosen = resolved(str(record.config))(arch, features)
        others = [c for c in resolved(str(record.space))(arch, features) if c != chosen]
        random.Random(str(shape)).shuffle(others)
        others.sort(key=lambda config: _behind(config, chosen, shape.rows))
        for number, config in enumerate([chosen, *others[:most]]):
            yield f"{record.name or 'portable'} {'chosen' if number == 0 else number}", target, config


def peers(op: str, shape: Shape, tensors: tuple[Any, ...]) -> dict[str, Callable[[], Any]]:
    """What torch has for the same work; its 8-bit product takes scales of rows, not of blocks."""
    if not GPU:
        return {}
    total = sum(counts_of(shape, True))
    ends = torch.arange(1, shape.groups + 1, device=DEVICE, dtype=torch.int32) * shape.rows
    if op == "grouped_linear_backward":
        grad, x, w, *_ = tensors
        return {"torch": lambda: (torch._grouped_mm(grad, w, offs=ends), torch._grouped_mm(grad.T, x, offs=ends))}
    if op == "grouped_weight_grad":
        _, dy, x, *_ = tensors
        return {"torch": lambda: torch._grouped_mm(dy.T, x, offs=ends)}
    x, w = tensors[0].flatten(0, -2)[:total], tensors[1]
    if op.startswith("scaled"):
        a, b = torch.ones(total, device=DEVICE), torch.ones(shape.groups, shape.n, device=DEVICE)
        return {
            "torch rows": lambda: torch._scaled_grouped_mm(x, w.mT, a, b, offs=ends, out_dtype=torch.bfloat16),
            "torch rows fast": lambda: torch._scaled_grouped_mm(
                x, w.mT, a, b, offs=ends, out_dtype=torch.bfloat16, use_fast_accum=True
            ),
        }
    return {"torch": lambda: torch._grouped_mm(x, w.mT, offs=ends)}


def wrong(op: str, target: Any, config: Any, shape: Shape) -> str:
    """What is wrong with a config on uneven groups; empty where nothing is."""
    try:
        for n, k in ((320, 640),) if GPU else ((shape.n, shape.k),):
            one = Shape(shape.groups, 20 if GPU else 5, n, k, 60 if shape.room else 0)
            tensors, options = arguments(op, one, even=False)
            exact = OPS[op].reference
            doubles = [t.double() if isinstance(t, torch.Tensor) and t.dtype == torch.bfloat16 else t for t in tensors]
            if op == "grouped_weight_grad":
                expected = [tensors[0].double().clone()]
                exact(expected[0], *doubles[1:])
                target(*tensors, **options, config=config)
                found = [tensors[0]]
            else:
                precise = {**options, "out_dtype": torch.float64} if "out_dtype" in options else options
                expected, found = exact(*doubles, **precise), target(*tensors, **options, config=config)
                expected, found = ([r] if isinstance(r, torch.Tensor) else [*r] for r in (expected, found))
            if shape.room:
                counts = counts_of(one, even=False)
                expected, found = ([torch.cat([r[0][g, :c] for g, c in enumerate(counts)])] for r in (expected, found))
            for right, got in zip(expected, found, strict=True):
                error = float((got.double() - right.double()).norm() / right.double().norm())
                if not error < WRONG:
                    return f"differs by {error:.3g} at {asdict(one)}"
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return ""


def results(op: str, shape: Shape, tensors: tuple[Any, ...], call: Callable[[], Any]) -> list[torch.Tensor]:
    """What a call computes, of the rows that groups have."""
    if op == "grouped_weight_grad":
        tensors[0].zero_()
        call()
        return [tensors[0].clone()]
    found = call()
    every = [found] if isinstance(found, torch.Tensor) else [*found]
    return [result[:, : shape.rows] for result in every] if shape.room else every


def called(op: str, shape: Shape) -> str:
    """Call the op, so that what it launches is compiled; returns what went wrong."""
    try:
        tensors, options = arguments(op, shape, even=True)
        for more in CALLS.values():
            OPS[op](*tensors, **options, **more)
        torch.cuda.synchronize()
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    finally:
        tensors = ()
        torch.cuda.empty_cache()
    return ""


def checked(todo: list[tuple[str, Shape]], most: int, seconds: float) -> dict[tuple[str, Shape, str], str]:
    """What is wrong with each config, and with calls of the op, by its own name.

    Several processes find it, which leave what they compiled to this one.
    """
    found: dict[tuple[str, Shape, str], str] = {}
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(14, os.cpu_count() or 2), mp_context=context)
    few = ProcessPoolExecutor(CALLERS, mp_context=context)
    running = {few.submit(called, op, shape): (op, shape, next(iter(CALLS))) for op, shape in todo}
    running |= {
        pool.submit(wrong, op, target, config, shape): (op, shape, name)
        for op, shape in todo
        for name, target, config in contenders(op, shape, most if shape.figure else 0)
    }
    try:
        for done in as_completed(running, timeout=seconds):
            found[running[done]] = done.result()
        for each in (pool, few):
            each.shutdown()
    except (TimeoutError, BrokenProcessPool) as error:
        print(f"checks ended early: {error!r}", flush=True)
        for each in (pool, few):
            for process in list((each._processes or {}).values()):
                process.kill()
            each.shutdown(wait=False, cancel_futures=True)
    return found


def unlike(
    op: str, shape: Shape, tensors: tuple[Any, ...], call: Callable[[], Any], right: Callable[[], Any] | None
) -> str:
    """How a call's results differ from a checked config's, on the whole shape; empty where they agree."""
    try:
        found = results(op, shape, tensors, call)
        expected = found if right is None else results(op, shape, tensors, right)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    for got, other in zip(found, expected, strict=True):
        squares = torch.zeros(2, dtype=torch.float64, device=DEVICE)
        for one, two in zip(*(t.flatten(0, -2).split(ROWS) for t in (got, other)), strict=True):
            squares += torch.stack([(one.float() - two.float()).square().sum(), two.float().square().sum()])
        error = float((squares[0] / squares[1]).sqrt())
        if not error < WRONG:
            return f"differs by {error:.3g}"
    return ""


def ran_by(op: str, tensors: tuple[Any, ...], options: dict[str, Any], **more: Any) -> str:
    """The name of what a call of the op runs, after it has run."""
    why = opmux.explain(OPS[op], *tensors, **options, **more)
    assert why.chosen is not None
    return why.chosen.name


def backends(op: str) -> list[str]:
    """The backends that the op is chosen from, beside the reference."""
    loading.ensure_loaded()
    return sorted({record.backend for record in DEFINED[op].implementations} - {"reference"})


class Clock:
    """Microseconds of calls on a cold cache."""

    def __init__(self) -> None:
        self._buffer = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=DEVICE)

    def round(self, calls: list[Callable[[], Any]]) -> list[float]:
        """The time of each call, one after the other."""
        if not GPU:
            taken = []
            for call in calls:
                began = time.perf_counter()
                call()
                taken.append(1e6 * (time.perf_counter() - began))
            return taken
        events = []
        for call in calls:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._buffer.zero_()
            start.record()
            call()
            end.record()
            events.append((start, end))
        torch.cuda.synchronize()
        return [1e3 * start.elapsed_time(end) for start, end in events]


def work_of(op: str, shape: Shape) -> tuple[float, float]:
    """(operations, bytes) of a call."""
    rows, size = shape.groups * shape.rows, 1 if op.startswith("scaled") else 2
    flops = 2.0 * rows * shape.n * shape.k
    weights = shape.groups * shape.n * shape.k
    moved = size * (weights + rows * shape.k) + 2 * rows * shape.n
    if op == "grouped_linear_backward":
        return 2 * flops, 2 * (2 * weights + 2 * rows * shape.k + rows * shape.n)
    if op == "grouped_weight_grad":
        return flops, 8 * weights + 2 * rows * (shape.k + shape.n)
    return flops, moved


def copy_speed(clock: Clock) -> float:
    """Terabytes a second that a large copy reads and writes."""
    source = torch.ones(2**30 if GPU else 2**12, dtype=torch.int8, device=DEVICE)
    to = torch.empty_like(source)
    taken = min(clock.round([lambda: to.copy_(source)] * 9))
    return 2 * source.numel() / taken / 1e6


def main() -> int:
    """Check and measure; the exit status is 1 where a config was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--drawn", type=int, default=6, help="seeded shapes of each op")
    parser.add_argument("--configs", type=int, default=6, help="configs beside each heuristic's")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds")
    parser.add_argument("--op", action="append", choices=[*OPS], help="only these")
    given = parser.parse_args()
    began, clock, rows, faults = time.perf_counter(), Clock(), [], []
    data: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if GPU else "cpu", "torch": torch.__version__, "seed": given.seed,
        "copy_tbps": copy_speed(clock), "backends": backends("grouped_linear"),
    }  # fmt: skip
    print(f"{data['device']}, torch {data['torch']}, copy {data['copy_tbps']:.2f} TB/s", flush=True)
    jobs = [(op, s) for op in given.op or OPS for s in shapes_of(op, given.seed, given.drawn)]
    todo = sorted(jobs, key=lambda one: not one[1].figure)
    said_of = checked(todo, given.configs, 0.6 * given.limit) if GPU else {}
    print(f"{len(said_of)} configs checked in {time.perf_counter() - began:.0f} s", flush=True)
    for op, shape in todo:
        if time.perf_counter() - began > given.limit and rows:
            print(f"stopped after {len(rows)} of {len(todo)} shapes", flush=True)
            break
        found, most = {}, given.configs if GPU else 1
        tensors, options = arguments(op, shape, even=True)
        calls: dict[str, Callable[[], Any]] = {}
        for name, target, config in contenders(op, shape, most if shape.figure else 0):
            said = said_of.get((op, shape, name)) if GPU else wrong(op, target, config, shape)
            if said is None or "out of resource" in said:
                continue
            if said:
                faults.append({"op": op, "name": name, "config": asdict(config), "said": said})
                print(f"WRONG {op} {name}: {said}", flush=True)
                continue
            found[name] = {"config": asdict(config)}
            calls[name] = functools.partial(target, *tensors, **options, config=config)
        first = next(iter(calls.values()), None)
        for name, more in CALLS.items():
            call = functools.partial(OPS[op], *tensors, **options, **more)
            said = unlike(op, shape, tensors, call, first)
            if said:
                faults.append({"op": op, "name": name, "shape": asdict(shape), "said": said})
                print(f"WRONG {op} {name} {shape}: {said}", flush=True)
            else:
                calls[name] = call
        ran = {name: ran_by(op, tensors, options, **more) for name, more in CALLS.items() if name in calls}
        for name, call in peers(op, shape, tensors).items():
            try:
                call()
                calls[name] = call
            except Exception as error:
                print(f"no {name} for {op} {shape}: {' '.join(str(error).split())[:160]}", flush=True)
        repeats.forget()
        names = list(calls)
        for _ in range(2 if GPU else 0):
            clock.round([calls[name] for name in names])
        samples: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(given.rounds if GPU else 1):
            random.shuffle(names)
            for name, took in zip(names, clock.round([calls[name] for name in names]), strict=True):
                samples[name].append(took)
        times = {name: round(statistics.median(taken), 2) for name, taken in samples.items()}
        rows.append({"op": op, **asdict(shape), "times": times, "ran": ran, "configs": found})
        given.out.write_text(json.dumps({**data, "wrong": faults, "rows": rows}) + "\n")
        if times:
            print(line_of(op, shape, times, data["copy_tbps"]) + f" | {ran}", flush=True)
    given.out.write_text(json.dumps({**data, "wrong": faults, "rows": rows}) + "\n")
    print(f"{len(rows)} shapes in {time.perf_counter() - began:.0f} s, {len(faults)} wrong", flush=True)
    return int(bool(faults))


def line_of(op: str, shape: Shape, times: dict[str, float], copy: float) -> str:
    """One shape in a line: what the heuristics choose, the best of all configs, torch, and the rates of the best."""
    flops, moved = work_of(op, shape)
    ours = {name: t for name, t in times.items() if not name.startswith(("torch", "opmux"))}
    theirs = {name: t for name, t in times.items() if name.startswith("torch")}
    chosen = " ".join(f"{name.partition(' ')[0]} {t}" for name, t in ours.items() if name.endswith("chosen"))
    best = min(ours, key=lambda name: ours[name], default="")
    said = f"{op} {shape.groups}x{shape.rows} n{shape.n} k{shape.k}: {chosen} us"
    if best:
        rate = moved / ours[best] / 1e6
        said += f" | best {ours[best]} ({best}) {flops / ours[best] / 1e6:.0f} TFLOPS {rate:.2f} TB/s {rate / copy:.2f}"
    said += " | " + " ".join(f"{name} {t}" for name, t in times.items() if name in CALLS)
    if theirs:
        said += " | " + " ".join(f"{name} {t}" for name, t in theirs.items())
        if best:
            said += f" x{min(theirs.values()) / ours[best]:.2f}"
    return said


if __name__ == "__main__":
    sys.exit(main())
