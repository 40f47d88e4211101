"""Grouped products on a Hopper GPU, held to float64 and timed: `python .../benchmarks/grouped_on_gpu.py`.

As `on_gpu.py`, whose way of running things it takes. Group sizes vary by 0.7 to 1.3 about their mean, by a seed that is
printed. Times are those of the op's own config from the cost model and of its runners-up.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

os.environ.setdefault("OPMUX_PLUGINS", "deepgemm")

import torch
from on_gpu import (
    CUT,
    FLUSHED,
    all_on_card,
    compile_kernels,
    large,
    lying,
    milliseconds,
    on_card,
    run_apart,
    say,
    short,
)
from torch import Tensor

from opmux_deepgemm import launching
from opmux_deepgemm.configs import Config
from opmux_deepgemm.generation.source import Product
from opmux_deepgemm.launching import Operands
from opmux_deepgemm.model import scored
from opmux_deepgemm.space import Sizes

WEIGHTS = ((6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048))
RAGGED = ((4, 8192), (8, 4096))
MASKED = ((6, 1024), (32, 192), (32, 20), (6, 20))
"""Groups, and rows of a group on average."""
SEED = 20261123
FAMILIES = ("ragged bf16", "ragged fp8", "masked bf16", "masked fp8")


class Case(NamedTuple):
    """A grouped product: the rows of its groups, and the room or padding beyond them."""

    rows: tuple[int, ...]
    n: int
    k: int
    config: Config
    out: str = "bfloat16"
    spare: int = 0
    by_columns: bool = False
    """Whether the scales of x lie with a column's neighbours next to each other."""


def checked(family: str) -> Iterator[Case]:
    """Products whose results are compared."""
    fp8 = family.endswith("fp8")
    wide = 192 if fp8 else 256
    yield Case((5, 0, 130, 64, 1), 136, 512, large(64, 64, 1))
    yield Case((300, 7, 129), 576, 1552, large(128, wide, 2), spare=13)
    yield Case((128, 256, 0), 2112, 1536, large(128, 128, 2, 2))
    yield Case((1, 700, 33, 90), 344, 528, large(128, 160, 2, 2), "float32" if fp8 else "bfloat16", spare=70)
    yield Case((0, 0, 0), 136, 512, large(64, 96, 1), spare=5)
    if fp8:
        yield Case((300, 7, 129), 576, 1552, large(128, wide, 2, 2, alternate=3), spare=13)
        yield Case((1, 700, 0, 90), 344, 528, large(128, 128, 2, alternate=2))
        yield Case((1, 700, 0, 2090), 2120, 528, Config("large", 128, 192, 3, 2, 2, 8, staged=True), spare=1)
        yield Case((130, 700, 64), 2112, 528, Config("large", 128, 256, 3, 2, 1, 8, pieces=2, staged=True))
        yield from checked_copied()
    if not fp8:
        yield Case((511, 600), 264, 1536, large(256, 192, 2, 2), spare=1)


def checked_copied() -> Iterator[Case]:
    """Products whose scales of x are copied by the copy engine: in rows those of multiples of 4 blocks of k."""
    halves = Config("large", 128, 256, 3, 2, 1, 8, pieces=2, staged=True, copied_scales=True)
    wide = Config("large", 128, 192, 4, 2, 2, 8, copied_scales=True)
    tall = Config("large", 256, 128, 3, 2, 1, 8, pieces=1, staged=True, copied_scales=True)
    for by_columns in (False, True):
        yield Case((130, 700, 64, 0, 2500), 4104, 1040, halves, "bfloat16", 1, by_columns)
        yield Case((1, 700, 0, 2091, 30), 4104, 1536, halves, by_columns=by_columns)
        yield Case((257, 0, 2001, 3, 1100), 2120, 1536, tall, by_columns=by_columns)
        yield Case(
            (300, 7, 129), 2120, 2048, replace(tall, cluster=2, share_x=True, staged=False), "float32", 2, by_columns
        )
        yield Case((300, 7, 3001), 2120, 2048, wide, "float32", 13, by_columns)
        yield Case(
            (5, 0, 130, 64, 1), 136, 512, Config("large", 64, 64, 8, 1, copied_scales=True), "bfloat16", 0, by_columns
        )
        yield Case(
            (0, 0, 0), 136, 512, Config("large", 128, 96, 4, 2, 1, 8, copied_scales=True), "bfloat16", 5, by_columns
        )


def tiny(family: str) -> Iterator[Case]:
    """A few small products, for tools that make each take seconds."""
    k = 400 if family.endswith("fp8") else 200
    yield Case((5, 0, 130), 136, k, large(64, 64, 1, stages=2), spare=3)
    yield Case((200, 20), 136, k, large(128, 96, 2, 2, stages=2))
    if family.endswith("fp8"):
        yield Case((5, 0, 130), 264, k, Config("large", 128, 256, 2, 2, 1, 8, pieces=2), spare=3)
        yield Case((200, 20), 264, k, Config("large", 64, 64, 2, 1, 2, 8, pieces=2, share_x=True))
        yield Case((700, 0, 200), 2112, k, Config("large", 128, 96, 2, 2, 2, 8, staged=True), spare=3)
        copied = Config("large", 128, 128, 2, 2, 1, 8, copied_scales=True)
        yield Case((700, 0, 1200), 2112, k, copied, spare=3, by_columns=True)
        yield Case((301, 7, 130), 1032, 512, replace(copied, cluster=2, staged=True))


def timed(family: str) -> Iterator[tuple[int, int, int, int, list[Config]]]:
    """Groups, rows, n, k and the configs that the cost model likes best."""
    bytes_of_k = 2 if family.endswith("bf16") else 1
    for groups, rows in RAGGED if family.startswith("ragged") else MASKED:
        for n, k in WEIGHTS:
            sizes = Sizes(groups * rows, n, k * bytes_of_k, bytes_of_k == 1, groups)
            best: dict[object, Config] = {}
            for one in scored(sizes):
                best.setdefault((one.config.block_m, one.config.block_n, one.config.cluster), one.config)
            configs = list(best.values())
            paired = [config for config in configs if config.cluster > 1]
            yield groups, rows, n, k, list(dict.fromkeys(configs[:4] + paired[:2]))


def product_of(family: str, n: int, k: int, out: str = "bfloat16") -> Product:
    """The product of a family."""
    layout, dtype = family.split()
    return Product("bfloat16" if dtype == "bf16" else "float8_e4m3fn", out, n, k, groups=layout)  # type: ignore[arg-type]


def of_case(family: str, case: Case) -> list[tuple[Product, Config]]:
    """The kernels of a product that is compared: one with copied scales must have the bits of one that loads them."""
    product, config = product_of(family, case.n, case.k, case.out), case.config
    kernels = [lying(product, config, 4096, case.by_columns)]
    return kernels + [(product, replace(config, copied_scales=False))] * config.copied_scales


def operands(
    family: str, rows: tuple[int, ...], n: int, k: int, spare: int = 0, device: str = "cuda", by_columns: bool = False
) -> Operands:
    """Random operands; what belongs to no group is NaN."""
    layout, dtype = family.split()
    groups, blocks, fp8 = len(rows), -(-k // 128), dtype == "fp8"
    torch.manual_seed(SEED + sum(rows) + n + k)
    kind = torch.float8_e4m3fn if fp8 else torch.bfloat16
    room = (sum(rows) + spare * groups,) if layout == "ragged" else (groups, max(rows) + spare)
    x = torch.full((*room, k), float("nan"), dtype=torch.bfloat16, device=device)
    w = torch.empty(groups, n, k, dtype=kind, device=device)
    for group in range(groups):
        w[group] = torch.randn(n, k, device=device).to(kind)
    sizes = torch.tensor(rows, dtype=torch.int32, device=device)
    offsets = torch.zeros(groups + 1, dtype=torch.int32, device=device)
    offsets[1:] = torch.cumsum(sizes + spare, 0)
    for place in places(family, rows, spare):
        x.view(-1, k)[place] = torch.randn(place.stop - place.start, k, device=device).bfloat16()
    x_scale = torch.rand(*room, blocks, device=device) + 0.5 if fp8 else None
    w_scale = torch.rand(groups, -(-n // 128), blocks, device=device) + 0.5 if fp8 else None
    if x_scale is not None and by_columns:
        *matrices, m, _ = x_scale.shape
        x_scale = x_scale.new_zeros(*matrices, blocks, -(-m // 4) * 4)[..., :m].copy_(x_scale.mT).mT
    if layout == "masked":
        return Operands(x.to(kind), w, None, x_scale, w_scale, sizes=sizes)
    return Operands(x.to(kind), w, None, x_scale, w_scale, offsets, sizes if spare else None)


def places(family: str, rows: tuple[int, ...], spare: int) -> list[slice]:
    """Where each group's rows lie in the matrix of all of them."""
    found, begin = [], 0
    for size in rows:
        found.append(slice(begin, begin + size))
        begin += (size if family.startswith("ragged") else max(rows)) + spare
    return found


def check(family: str, case: Case, device: str = "cuda") -> str:
    """Compare one product with float64, which `device` computes; returns what is wrong, or nothing."""
    rows, n, k, config, out, spare, by_columns = case
    given = operands(family, rows, n, k, spare, device, by_columns)
    dtype = torch.bfloat16 if out == "bfloat16" else torch.float32
    found = on_card(torch.full((*given.x.shape[:-1], n), 7.0, dtype=dtype, device=device))
    launching.multiply(config, all_on_card(given), found)
    torch.cuda.synchronize()
    if config.copied_scales and device == "cuda":
        loaded = torch.full_like(found, 7.0)
        launching.multiply(replace(config, copied_scales=False), given, loaded)
        if not torch.equal(loaded, found):
            return f"{int((loaded != found).sum())} of {loaded.numel()} other bits than with scales that are loaded"
    flat, x = found.to(device).view(-1, n), given.x.view(-1, k)
    untouched = torch.ones(len(flat), dtype=torch.bool, device=device)
    for group, place in enumerate(places(family, rows, spare)):
        problem = compare(flat[place], x[place], given, group, place, out)
        if problem:
            return f"group {group}: {problem}"
        untouched[place] = False
    return "" if bool((flat[untouched] == 7.0).all()) else "wrote rows of no group"


def compare(found: Tensor, x: Tensor, given: Operands, group: int, place: slice, out: str) -> str:
    """Compare the rows of a group."""
    left, right, k, n = x.double(), given.w[group].double(), x.shape[1], found.shape[1]
    if given.x_scale is not None and given.w_scale is not None:
        x_scale = given.x_scale.flatten(0, -2)[place].double()
        left = left * x_scale.repeat_interleave(128, 1)[:, :k]
        of_rows = given.w_scale[group].double().repeat_interleave(128, 0)[:n]
        right = right * of_rows.repeat_interleave(128, 1)[:, :k]
    wanted, size = left @ right.t(), left.abs() @ right.abs().t()
    rounding = 2.0**-8 if out == "bfloat16" else 2.0**-22
    bound = wanted.abs() * rounding + size * (CUT if given.x_scale is not None else 2.0**-20) + 1e-30
    wrong = ((found.double() - wanted).abs() > bound) | found.isnan()
    return f"{int(wrong.sum())} of {wrong.numel()} wrong" if bool(wrong.any()) else ""


def run_checks(family: str, few: bool = False) -> None:
    """A line for each wrong product, and a last one."""
    cases, wrong = list(tiny(family) if few else checked(family)), 0
    for case in cases:
        try:
            problem = check(family, case, "cpu" if few else "cuda")
        except Exception as error:
            problem = f"{type(error).__name__}: {str(error)[:300]}"
        if problem:
            wrong += 1
            say(f"WRONG {family} {case.rows} {case.n} {case.k} {short(case.config)} {case.out}: {problem}")
        if "CUDA error" in problem or "Accelerator" in problem:
            break
    say(f"{family}: {len(cases) - wrong} of {len(cases)} right")
    if wrong:
        raise SystemExit(1)


def varied(groups: int, rows: int) -> tuple[int, ...]:
    """Rows of groups that vary by 0.7 to 1.3 about their mean."""
    draw = torch.Generator().manual_seed(SEED + groups * rows)
    return tuple(int(rows * (0.7 + 0.6 * float(share))) for share in torch.rand(groups, generator=draw))


def run_times(family: str) -> None:
    """A line for each product: TFLOPS of many rows, GB/s of few."""
    flush = torch.empty(FLUSHED, dtype=torch.uint8, device="cuda")
    say(f"{family}: group sizes by seed {SEED}")
    for groups, rows, n, k, configs in timed(family):
        sizes = varied(groups, rows)
        given = operands(family, sizes, n, k)
        y = given.x.new_empty((*given.x.shape[:-1], n), dtype=torch.bfloat16)
        moved = (sum(sizes) + groups * n) * k * given.x.element_size() + 2 * sum(sizes) * n
        calls = {short(config): partial(launching.multiply, config, given, y) for config in configs}
        if family == "ragged bf16":
            ends = torch.cumsum(torch.tensor(sizes), 0).int().cuda()
            calls = {"torch": partial(torch._grouped_mm, given.x, given.w.mT, offs=ends), **calls}
        parts = []
        for name, call in calls.items():
            try:
                spent = milliseconds(call, flush)
            except Exception as error:
                parts.append(f"{name} {type(error).__name__}: {str(error).splitlines()[0][:60]}")
                continue
            speed = 2 * sum(sizes) * n * k / spent / 1e9 if rows >= 128 else moved / spent / 1e6
            parts.append(f"{name} {speed:.0f}")
        say(f"{family} {groups}x{rows} {n} {k} {'TF' if rows >= 128 else 'GB/s'}: {' | '.join(parts)}")
        del given, y


def run_calls(_: str) -> None:
    """Ops in a captured graph: other counts of the same tensors give other rows, with nothing read on the host."""
    import opmux

    x, w = torch.randn(4, 96, 512, device="cuda").bfloat16(), torch.randn(4, 576, 512, device="cuda").bfloat16()
    counts = torch.tensor([96, 0, 40, 1], dtype=torch.int32, device="cuda")
    call = partial(opmux.masked_grouped_linear, x, w, counts, expected_m=32, backend="deepgemm")
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = call()
    for rows in ([96, 0, 40, 1], [3, 70, 96, 0]):
        counts.copy_(torch.tensor(rows, dtype=torch.int32))
        graph.replay()
        torch.cuda.synchronize()
        for group, count in enumerate(rows):
            wanted = x[group, :count] @ w[group].t()
            torch.testing.assert_close(y[group, :count], wanted, rtol=2e-2, atol=2e-1)
    say("calls: right")


def sanitized() -> list[tuple[Product, Config]]:
    """What is launched under a sanitizer."""
    return [of_case(family, case)[0] for family in FAMILIES for case in tiny(family)]


def main() -> int:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compile", action="store_true", help="compile only; takes no GPU")
    parser.add_argument("--checks", type=float, default=20, help="seconds for the checks of a family")
    parser.add_argument("--times", type=float, default=15, help="seconds for the times of a family")
    parser.add_argument("--no-times", action="store_true", help="check results only")
    parser.add_argument("--tiny", choices=FAMILIES, help="only a few small products of a family, for a sanitizer")
    given = parser.parse_args()
    if given.tiny:
        run_checks(given.tiny, few=True)
        return 0
    began = time.perf_counter()
    kernels = dict.fromkeys(sanitized())
    for family in FAMILIES:
        for case in checked(family):
            kernels.update(dict.fromkeys(of_case(family, case)))
        for groups, m, n, k, configs in () if given.no_times else timed(family):
            kernels.update(dict.fromkeys(lying(product_of(family, n, k), config, groups * m) for config in configs))
    failed = not compile_kernels(list(kernels))
    say(f"# compiled after {time.perf_counter() - began:.1f} s")
    if given.compile:
        return int(failed)
    steps = [(family, run_checks, given.checks) for family in FAMILIES]
    steps += [("calls", run_calls, given.checks)]
    if not given.no_times:
        steps += [(family, run_times, given.times) for family in FAMILIES]
    return int(not run_apart(steps, run_times) or failed)


if __name__ == "__main__":
    sys.exit(main())
