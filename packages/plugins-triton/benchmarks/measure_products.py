"""Kernel times of products on sm_90, of every legal choice of the cost model, or of its own choice alone.

``python benchmarks/measure_products.py --seed N --out FILE.json [--per-band 40] [--chosen] [--seconds 120]`` draws
shapes: m log-uniform within each band, n and k from the widths of real models. It compiles and checks what these
shapes need in several processes, each on sizes that divide nothing, then times it against cuBLASLt, interleaved, with a
cold cache. ``fit_products.py`` reads the result.
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
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from opmux.plugin import parse_arch
from opmux_triton import repeats
from opmux_triton.gemm import heuristics, hopper_heuristics, hopper_model, hopper_targets, targets
from opmux_triton.gemm.configs import HopperConfig, LinearConfig
from opmux_triton.gemm.hopper_products import product
from opmux_triton.gemm.operands import matrix_of, rows_of

BANDS = ((17, 64), (65, 128), (129, 256), (257, 512), (513, 2048), (2049, 16384))
WIDTHS = (
    768, 896, 1024, 1536, 2048, 2304, 2560, 3072, 3584, 4096, 4608, 5120, 6144, 7168, 8192, 9216, 10240, 11008, 12288,
    13824, 14336, 16384, 18944, 22016, 28672,
)  # fmt: skip
"""Hidden sizes, their multiples in projections, and intermediate sizes of published models."""
FORMS = {"linear": (False, False), "grad_x": (False, True), "grad_w": (True, True)}
"""Whether the rows of either operand run along k."""
ODD = (333, 1016, 2120)
"""A product that no tile divides."""
MOST_FLOPS = 4e12
FLUSH_BYTES = 512 * 2**20
TIMES_BEST = 1.3
"""Choices that take longer than this by the first rounds get no further ones."""

SM_90 = parse_arch("sm_90")


class Shape(NamedTuple):
    """The product of (m, k) by (k, n)."""

    form: str
    m: int
    n: int
    k: int


class Contender(NamedTuple):
    """What is timed: a config of a target."""

    name: str
    config: HopperConfig | LinearConfig


def shapes_of(seed: int, per_band: int, backward: int, most_flops: float) -> list[Shape]:
    """``per_band`` shapes for each band of m, and ``backward`` for each product of the gradient."""
    drawn = random.Random(seed)
    found = [Shape("linear", *_sizes(drawn, band, most_flops)) for band in BANDS for _ in range(per_band)]
    for number in range(backward):
        tokens, n, k = _sizes(drawn, BANDS[1 + number % (len(BANDS) - 1)], most_flops)
        found += [Shape("grad_x", tokens, k, n), Shape("grad_w", n, k, tokens)]
    return found


def _sizes(drawn: random.Random, band: tuple[int, int], most_flops: float) -> tuple[int, int, int]:
    while True:
        m = round(math.exp(drawn.uniform(math.log(band[0]), math.log(band[1]))))
        n, k = drawn.choice(WIDTHS), drawn.choice(WIDTHS)
        if 2 * m * n * k <= most_flops:
            return m, n, k


def named(choice: hopper_model.Choice) -> str:
    """A choice in one word, as ``fit_products.py`` reads it."""
    tile = choice.tile
    turns = "a" if tile.alternate else ""
    swap = " swap" if choice.swap else ""
    return f"{tile.block_m}x{tile.block_n}x{tile.block_k}{turns} {choice.cut}{swap}"


OF_GRADIENTS = (
    *((64, n) for n in (64, 128)), *((128, n) for n in (64, 96, 128, 160, 192, 256)),
    *((192, n) for n in (128, 160, 192)), *((256, n) for n in (64, 96, 128, 160)),
)  # fmt: skip
"""Tiles that the products of gradients are measured with: enough to see whether the constants hold for them."""


def contenders(shape: Shape, given: argparse.Namespace) -> Iterator[Contender]:
    """The model's choice, or every legal one; the portable kernels where asked for."""
    _, m, n, k = shape
    otherwise = hopper_heuristics.portable(1 << (m - 1).bit_length(), n, k)

    def configured(choice: hopper_model.Choice, size: int) -> HopperConfig:
        return hopper_model.config(choice, size, otherwise)

    if given.chosen:
        choice = hopper_model.best(stepped(m), n, k)
        yield Contender(f"model: {named(choice)}", configured(choice, stepped(m)))
    if not given.chosen or random.Random(f"{given.seed} {shape}").random() < given.more:
        ranked = sorted(hopper_model.choices(m, n, k), key=lambda one: one.time)
        for choice in ranked[: given.ranks]:
            if not given.chosen and shape.form != "linear" and choice.tile[:2] not in OF_GRADIENTS:
                continue
            config = configured(choice, m)
            yield Contender(named(choice), config)
            if choice.cut == "none" and m <= given.spin and not choice.tile.alternate:
                yield Contender(f"{named(choice)} spin", replace(config, spin=True))
    if shape.form == "linear" and given.portable and m <= 128:
        features = {"n": n, "k": k, "bucket(tokens)": (m - 1).bit_length()}
        yield Contender("portable", heuristics.linear(SM_90, features))


def stepped(m: int) -> int:
    """A size as the feature ``Bucket("tokens", per_octave=8)`` shows it."""
    shift = max((m - 1).bit_length() - 4, 0)
    return ((m - 1 >> shift) + 1) << shift


def operands(shape: Shape, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Both operands as they are stored, and the result."""
    turned_a, turned_b = FORMS[shape.form]
    _, m, n, k = shape
    a = values[: m * k].view((k, m) if turned_a else (m, k))
    b = values[-n * k :].view((k, n) if turned_b else (n, k))
    return a, b, torch.empty(m, n, dtype=values.dtype, device=values.device)


def call_of(contender: Contender, shape: Shape, a: Tensor, b: Tensor, out: Tensor) -> Callable[[], Any]:
    """A call that launches what a config says."""
    config = contender.config
    if shape.form == "linear":
        target: Any = hopper_targets if isinstance(config, HopperConfig) else targets
        return lambda: target.linear(a, b, None, config=config)
    turned_a, turned_b = FORMS[shape.form]
    _, m, n, k = shape
    first = matrix_of(a, True) if turned_a else rows_of(a, False)
    second = matrix_of(b, turned_b)
    return lambda: product(first, second, None, out, (m, n, k), config)


def peer_of(shape: Shape, a: Tensor, b: Tensor) -> Callable[[], Any]:
    """What torch runs for the product, by cuBLASLt."""
    turned_a, turned_b = FORMS[shape.form]
    left, right = a.t() if turned_a else a, b.t() if turned_b else b
    return lambda: linear(left, right)


def checked(job: tuple[str, str, HopperConfig | LinearConfig]) -> tuple[str, str, str]:
    """Compile what a config launches and compare its results, with partial sums in memory full of garbage."""
    form, name, config = job
    try:
        return form, name, _complaint(form, Contender(name, config))
    except Exception as error:
        return form, name, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _complaint(form: str, contender: Contender) -> str:
    generator = torch.Generator("cuda").manual_seed(0)
    for sizes in (ODD, (72, 1544, 4104), (1032, 8200, 136)):
        shape = Shape(form, *sizes) if form != "grad_w" else Shape(form, 8 * -(-sizes[0] // 8), *sizes[1:])
        values = torch.randn(64 << 20, device="cuda", generator=generator).to(torch.bfloat16)
        a, b, out = operands(shape, values)
        turned_a, turned_b = FORMS[form]
        expected = (a.t() if turned_a else a).double() @ (b if turned_b else b.t()).double()
        call = call_of(contender, shape, a, b, out)
        first = None
        for _ in range(12):
            for size in (16 << 20, *[32 << 10] * 8):  # what scratch memory is then taken from
                torch.randint(-(2**63), 2**63 - 1, (size,), device="cuda", generator=generator)
            out.fill_(math.nan)
            got = call()
            got = (out if got is None else got).clone()
            difference = float((got.double() - expected).norm() / expected.norm())
            if not difference < 4e-3:
                return f"differs by {difference} at {sizes}"
            if first is not None and not torch.equal(first, got):
                return f"differs from call to call at {sizes}"
            first = got
    return ""


def built(shapes: list[Shape], given: argparse.Namespace, workers: int) -> dict[tuple[str, str], str]:
    """What is wrong with the contenders of the shapes, by form and name; nothing where they are right."""
    jobs: dict[str, tuple[str, str, Any]] = {}
    for shape in shapes:
        for one in contenders(shape, given):
            config = one.config
            if isinstance(config, HopperConfig):  # the portable kernels' part is not used here
                config = replace(config, otherwise=hopper_heuristics.portable(128, 4096, 4096))
            jobs.setdefault(f"{shape.form} {config}", (shape.form, one.name, config))
    found = {(form, name): "did not finish" for form, name, _ in jobs.values()}
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    running = [pool.submit(checked, job) for job in jobs.values()]
    try:
        for done in as_completed(running, timeout=given.check_seconds):
            form, name, said = done.result()
            if said:
                found[form, name] = said
            else:
                found.pop((form, name), None)
        pool.shutdown()
    except (TimeoutError, BrokenProcessPool) as error:
        print(f"checks ended early: {error!r}", flush=True)
        for process in list((pool._processes or {}).values()):
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)
    print(f"{len(jobs)} configs checked, {len(found)} wrong", flush=True)
    for (form, name), said in found.items():
        print("WRONG", form, name, said, flush=True)
    return found


class Timer:
    """Events around a call on a cold cache, as `opmux.bench.clocks.CudaClock`, with one wait for a round of calls."""

    def __init__(self) -> None:
        self._buffer = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")

    def round(self, calls: list[Callable[[], Any]], flushes: int = 1) -> list[float]:
        """Microseconds of each call; flushes that are many keep the device from waiting for the host."""
        events = []
        for call in calls:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            for _ in range(flushes):
                self._buffer.zero_()
            start.record()
            call()
            end.record()
            events.append((start, end))
        torch.cuda.synchronize()
        return [1e3 * start.elapsed_time(end) for start, end in events]


def timed(
    shape: Shape, given: argparse.Namespace, wrong: dict[tuple[str, str], str], values: Tensor, timer: Timer
) -> Any:
    """Medians and the number of rounds by name."""
    a, b, out = operands(shape, values)
    calls = {
        one.name: call_of(one, shape, a, b, out)
        for one in contenders(shape, given)
        if (shape.form, one.name) not in wrong
    }
    calls["cublaslt"] = peer_of(shape, a, b)
    names = list(calls)
    drawn = random.Random(0)
    repeats.forget()
    timer.round([*calls.values()])  # loads modules, keeps launches
    timer.round([*calls.values()])
    torch.cuda.synchronize()
    samples: dict[str, list[float]] = {name: [] for name in names}
    for number in range(given.rounds):
        if number == 3 and not given.chosen:
            medians = {name: statistics.median(samples[name]) for name in names}
            least = min(medians.values())
            names = [n for n in names if n in ("cublaslt", "portable") or medians[n] <= TIMES_BEST * least]
        drawn.shuffle(names)
        for name, took in zip(names, timer.round([calls[name] for name in names], 2 if number < 3 else 1), strict=True):
            samples[name].append(took)
    return {name: (round(statistics.median(taken), 3), len(taken)) for name, taken in samples.items()}


def main() -> int:
    """Measure; the exit status is 1 where a config was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--per-band", type=int, default=40)
    parser.add_argument("--backward", type=int, default=10, help="shapes of each product of the gradient")
    parser.add_argument("--chosen", action="store_true", help="only the model's choice")
    parser.add_argument("--portable", action="store_true", help="the portable kernels too")
    parser.add_argument("--more", type=float, default=0.0, help="with --chosen: a share of shapes with all choices")
    parser.add_argument("--ranks", type=int, default=400, help="of all choices so many, by predicted time")
    parser.add_argument("--spin", type=int, default=0, help="up to this m also with programs that begin elsewhere in k")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=200, help="stop timing then; shapes come in random order")
    parser.add_argument("--check-seconds", type=float, default=120)
    parser.add_argument("--most-flops", type=float, default=MOST_FLOPS)
    given = parser.parse_args()
    shapes = shapes_of(given.seed, given.per_band, given.backward, given.most_flops)
    random.Random(given.seed).shuffle(shapes)
    torch.backends.cuda.preferred_blas_library("cublaslt")
    began = time.perf_counter()
    wrong = built(shapes, given, min(14, os.cpu_count() or 2))
    print(f"built in {time.perf_counter() - began:.0f} s", flush=True)
    most = max(s.m * s.k + s.n * s.k for s in shapes)
    values = torch.randn(most, device="cuda", dtype=torch.bfloat16)
    timer, rows = Timer(), []
    wrongs = [[*key, said] for key, said in wrong.items()]
    data = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "seed": given.seed, "wrong": wrongs}
    began = time.perf_counter()
    for number, shape in enumerate(shapes, 1):
        rows.append({**shape._asdict(), "times": timed(shape, given, wrong, values, timer)})
        late = time.perf_counter() - began > given.seconds
        if late or number % 32 == 0 or number == len(shapes):
            given.out.write_text(json.dumps({**data, "rows": rows}) + "\n")
        if late:
            break
    print(f"{len(rows)} of {len(shapes)} shapes in {time.perf_counter() - began:.0f} s", flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
