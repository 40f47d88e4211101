"""Operands that lie otherwise, on a Hopper GPU: `python packages/plugins-deepgemm/benchmarks/groups_across_on_gpu.py`.

Products of groups of which x, w or both lie across k, gradients of weights of which dy, x or both are transposed, and
`linear` of few rows of w across k. As `grouped_on_gpu.py` and `gradients_on_gpu.py`, whose operands and comparisons it
takes: held to float64, with groups that begin at every place modulo 8, NaN in the gaps between columns, in rows of no
group and in a whole group between others. Then through the ops by name, also in captured graphs whose groups change.
With ``--times`` products are timed: as they lie, with operands that lie along, with those that are copied first, and
torch's, whose operands are copied first where groups begin in the middle of a row.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

os.environ.setdefault("OPMUX_PLUGINS", "deepgemm")

import gradients_on_gpu
import grouped_on_gpu
import torch
from gradients_on_gpu import tile
from grouped_on_gpu import WEIGHTS, operands, places, varied
from on_gpu import (
    FLUSHED,
    Across,
    all_on_card,
    compile_kernels,
    exact,
    large,
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
from opmux_deepgemm.gradient_model import configs, scored_gradients
from opmux_deepgemm.launching import Operands
from opmux_deepgemm.model import scored
from opmux_deepgemm.space import Sizes
from opmux_deepgemm.summing import add_gradients

RAGGED, MASKED, SUMS, NARROW = FAMILIES = (
    "ragged across bf16", "masked across bf16", "gradients across bf16", "narrow across bf16",
)  # fmt: skip
FORMS = ((False, True), (True, False), (True, True))
"""Whether x and w lie across k, or dy and x are transposed."""
ANYWHERE = (65, 2, 129, 1, 8, 0, 64, 1, 3)
"""Rows of groups which with one row between them begin at each place modulo 8."""
TIMED = {RAGGED: ((4, 8192), (8, 4096)), MASKED: ((6, 1024), (32, 192), (32, 20))}
"""Groups, and rows of a group on average."""
TIMED_SUMS = ((4, 8192, 4096, 7168), (8, 4096, 4096, 7168), (4, 8192, 7168, 2048))
"""The same of gradients, with n and k."""
FEW_ROWS = ((8, 200), (16, 512), (32, 136))
"""n and k of products of which w alone lies across k."""
TIMED_FEW = ((4096, 16, 7168), (64, 32, 7168))
"""m, n and k of such products that are timed."""


class Case(NamedTuple):
    """Rows of each group, n, k, and which operands lie otherwise; ``spare`` rows of no group follow each.

    Of the group ``poisoned`` all operands of the rows are NaN; -1 stands for none.
    """

    rows: tuple[int, ...]
    n: int
    k: int
    config: Config
    lie: tuple[bool, bool]
    spare: int = 0
    poisoned: int = -1


def checked(family: str, few: bool) -> Iterator[Case | Across]:
    """Products that are compared; of a few, small ones."""
    if family == NARROW:
        shapes = ((24, 136, 300), (16, 72, 1)) if few else ((n, k, m) for n, k in FEW_ROWS for m in (1, 300))
        for n, k, m in shapes:
            yield Across(m, n, k, False, True, scored(Sizes(m, n, 2 * k, False, w_across=True))[0].config)
        return
    for lie in FORMS:
        yield from _sums(lie, few) if family == SUMS else _groups(lie, few)


def _groups(lie: tuple[bool, bool], few: bool) -> Iterator[Case]:
    yield Case((5, 0, 130, 62, 1), 136, 200, large(128, 128, 2, 2, stages=2), lie, 2, 2)
    yield Case((70, 1, 100), 24, 72, large(64, 64, 1, stages=3), lie)
    if few:
        return
    yield Case(ANYWHERE, 200, 136, large(64, 64, 1), lie, 1, 4)
    yield Case((1, 0, 300, 64, 128), 576, 1544, large(64, 256, 1), lie, 7)
    yield Case((700, 129), 2112, 1536, large(128, 256, 2, 2), lie)
    yield Case((511, 513, 3), 264, 1536, large(256, 128, 2, 2), lie, 5, 1)
    yield Case((0, 0, 0), 72, 72, large(64, 64, 1), lie, 2)
    for sizes in (Sizes(3000, 1032, 2 * 1032, False, 5), Sizes(90, 576, 1152, False, 5)):
        across = sizes._replace(x_across=lie[0], w_across=lie[1])
        for one in scored(across)[:6]:
            yield Case((200, 7, 0, 1, 300), sizes.n, sizes.k_bytes // 2, one.config, lie, 2, 1)


def _sums(lie: tuple[bool, bool], few: bool) -> Iterator[Case]:
    yield Case((5, 0, 130, 62, 1), 136, 72, tile(128, 64, 2, 2), lie, 2, 2)
    yield Case((100, 21, 3), 72, 200, tile(64, 128, 1, 2), lie)
    if few:
        return
    yield Case(ANYWHERE, 200, 136, tile(64, 64, 1), lie, 1, 4)
    for config in configs(4096, 4096):
        yield Case((300, 7, 0, 129), 576, 1544, config, lie, 13, 1)
    yield Case((1000, 1500), 2112, 1536, tile(128, 256, 2), lie)
    yield Case((700, 1, 3000), 264, 4096, tile(256, 192, 2), lie, 70, 1)


def product_of(family: str, case: Case | Across) -> Product:
    """What is compiled."""
    if isinstance(case, Across):
        return case.product
    first, second = case.lie
    if family == SUMS:
        return replace(gradients_on_gpu.product(case.n, case.k), dy_turned=first, x_turned=second)
    return replace(grouped_on_gpu.product_of(along(family), case.n, case.k), x_across=first, w_across=second)


def along(family: str) -> str:
    """The family whose operands lie along k."""
    return family.replace(" across", "")


def turned(rows: Tensor) -> Tensor:
    """The same rows next to each other, in each group; columns begin at multiples of 8, with gaps of NaN between."""
    *groups, count, columns = rows.shape
    room = torch.full((*groups, columns, -(-count // 8) * 8 + 8), float("nan"), dtype=rows.dtype, device=rows.device)
    return room[..., :count].copy_(rows.mT).mT


def both(lie: tuple[bool, bool], first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Two operands as they lie."""
    return turned(first) if lie[0] else first, turned(second) if lie[1] else second


def check(family: str, case: Case | Across, device: str = "cuda") -> str:
    """Compare one product with float64, which `device` computes; returns what is wrong, or nothing."""
    if isinstance(case, Across):
        return _check_one(case, device)
    return (_check_sums if family == SUMS else _check_groups)(family, case, device)


def _check_one(case: Across, device: str) -> str:
    given = case.operands(device)
    y = on_card(torch.full((case.m, case.n), float("nan"), dtype=torch.bfloat16, device=device))
    launching.multiply(case.config, all_on_card(given), y)
    torch.cuda.synchronize()
    wanted, size = exact(given)
    right = (y.to(device).double() - wanted).abs() <= wanted.abs() * 2.0**-8 + size * 2.0**-20 + 1e-30
    return "" if bool(right.all()) else f"{int((~right).sum())} of {right.numel()} wrong"


def _check_groups(family: str, case: Case, device: str) -> str:
    rows, n, k, config, lie, spare, poisoned = case
    given, every = operands(along(family), rows, n, k, spare, device), places(along(family), rows, spare)
    if poisoned >= 0:
        given.x.view(-1, k)[every[poisoned]] = float("nan")
    y = on_card(torch.full((*given.x.shape[:-1], n), 7.0, dtype=torch.bfloat16, device=device))
    x, w = both(lie, given.x, given.w)
    launching.multiply(config, all_on_card(given._replace(x=x, w=w)), y)
    torch.cuda.synchronize()
    found, of_x = y.to(device).flatten(0, -2), given.x.flatten(0, -2)
    untouched = torch.ones(len(found), dtype=torch.bool, device=device)
    for group, place in enumerate(every):
        untouched[place] = False
        if group == poisoned:
            problem = "" if bool(found[place].isnan().all()) else "not all NaN"
        else:
            problem = grouped_on_gpu.compare(found[place], of_x[place], given, group, place, "bfloat16")
        if problem:
            return f"group {group}: {problem}"
    return "" if bool((found[untouched] == 7.0).all()) else "wrote rows of no group"


def _check_sums(_: str, case: Case, device: str) -> str:
    given = gradients_on_gpu.operands(case.rows, case.n, case.k, case.spare, device)
    if case.poisoned >= 0:
        given.dy[given.places[case.poisoned]] = given.x[given.places[case.poisoned]] = float("nan")
    before = torch.randn(len(case.rows) + 1, case.n, case.k, device=device)
    out = on_card(before.clone())
    dy, x = map(on_card, both(case.lie, given.dy, given.x))
    offsets, sizes = (None if t is None else on_card(t) for t in (given.offsets, given.sizes))
    assert offsets is not None
    add_gradients(case.config, dy, x, offsets, sizes, out[:-1])
    torch.cuda.synchronize()
    out = out.to(device)
    for group, place in enumerate(given.places):
        if group == case.poisoned:
            problem = "" if bool(out[group].isnan().all()) else "not all NaN"
        else:
            problem = gradients_on_gpu.compare(out[group], before[group], given.dy[place], given.x[place])
        if problem:
            return f"group {group}: {problem}"
    return "" if torch.equal(out[-1], before[-1]) else "wrote behind the result"


def run_checks(family: str, few: bool = False) -> None:
    """A line for each wrong product, and a last one."""
    cases, wrong, device = list(checked(family, few)), 0, "cpu" if few else "cuda"
    for case in cases:
        try:
            problem = check(family, case, device)
        except Exception as error:
            problem = f"{type(error).__name__}: {str(error)[:300]}"
        if problem:
            wrong += 1
            say(f"WRONG {product_of(family, case)} {short(case.config)} {getattr(case, 'rows', case[0])}: {problem}")
        if "CUDA error" in problem or "Accelerator" in problem:
            break
    say(f"{family}: {len(cases) - wrong} of {len(cases)} right")
    if wrong:
        raise SystemExit(1)


def run_calls(_: str) -> None:
    """The ops by name, in captured graphs: other groups of the same tensors, with nothing read on the host."""
    import opmux

    rooms = torch.randn(4, 512, 96, device="cuda").bfloat16()
    w, n = torch.randn(4, 512, 200, device="cuda").bfloat16(), 200
    counts = torch.tensor([96, 0, 40, 1], dtype=torch.int32, device="cuda")
    offsets = torch.tensor([0, 96, 96, 137, 200], dtype=torch.int32, device="cuda")
    dy, rows = (torch.randn(width, 208, device="cuda").bfloat16()[:, :200].T for width in (n, 512))
    out = torch.zeros(4, n, 512, device="cuda")

    def call(backend: str) -> tuple[Tensor, Tensor, Tensor]:
        masked = opmux.masked_grouped_linear(rooms.mT, w.mT, counts, expected_m=32, backend=backend)
        ragged = opmux.grouped_linear(rows, w.mT, offsets, backend=backend)
        sums = out.zero_()
        opmux.grouped_weight_grad(sums, dy, rows, offsets, backend=backend)
        return masked, ragged, sums

    call("deepgemm:across")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = call("deepgemm:across")
    for sizes, begins in (([96, 0, 40, 1], [0, 96, 96, 137, 200]), ([3, 70, 96, 0], [0, 2, 67, 68, 195])):
        counts.copy_(torch.tensor(sizes, dtype=torch.int32))
        offsets.copy_(torch.tensor(begins, dtype=torch.int32))
        graph.replay()
        torch.cuda.synchronize()
        found = [one.clone() for one in made]
        wanted = call("reference")
        for group, count in enumerate(sizes):
            close(found[0][group, :count], wanted[0][group, :count])
        close(found[1][begins[0] : begins[-1]], wanted[1][begins[0] : begins[-1]])
        close(found[2], wanted[2])
    say("calls: right")


def close(found: Tensor, wanted: Tensor) -> None:
    """Fail where two results differ by more than roundings."""
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-1)


def timed(family: str) -> Iterator[tuple[Case, Config]]:
    """Products as they lie with the cost model's choice, and its choice where they lie along."""
    if family == SUMS:
        for groups, rows, n, k in TIMED_SUMS:
            config = scored_gradients(groups * rows, n, k, groups)[0].config
            for lie in FORMS:
                yield Case(varied(groups, rows), n, k, config, lie), config
    for groups, rows in TIMED.get(family, ()):
        for n, k in WEIGHTS:
            sizes = Sizes(groups * rows, n, 2 * k, False, groups)
            for lie in FORMS:
                choice = scored(sizes._replace(x_across=lie[0], w_across=lie[1]))[0].config
                yield Case(varied(groups, rows), n, k, choice, lie), scored(sizes)[0].config


def timed_few() -> Iterator[tuple[Across, Config]]:
    """The same of few rows of w."""
    for m, n, k in TIMED_FEW:
        sizes = Sizes(m, n, 2 * k, False)
        across = scored(sizes._replace(w_across=True))[0].config
        yield Across(m, n, k, False, True, across), scored(sizes)[0].config


def run_times(family: str) -> None:
    """A line for each product, in TFLOPS."""
    flush = torch.empty(FLUSHED, dtype=torch.uint8, device="cuda")
    if family == NARROW:
        for one, other in timed_few():
            given = one.operands()
            x, w, y = given.x, given.w, given.x.new_empty(one.m, one.n)
            flops, plain = 2 * one.m * one.n * one.k, Operands(x, w.contiguous())
            ways = {
                f"across {short(one.config)}": partial(launching.multiply, one.config, given, y),
                f"along {short(other)}": partial(launching.multiply, other, plain, y),
                "copied": partial(copied, other, given, y),
                "torch": partial(torch.nn.functional.linear, x, w),
            }
            say(f"{family} {one.m} {one.n} {one.k} TF: {speeds(ways, flops, flush)}")
        return
    for case, other in timed(family):
        ways = ways_of(family, case, other)
        names = ("dy", "x") if family == SUMS else ("x", "w")
        lie = " and ".join(name for name, yes in zip(names, case.lie, strict=True) if yes)
        count = len(case.rows)
        flops = 2 * sum(case.rows) * case.n * case.k
        said = speeds(ways, flops, flush)
        say(f"{family} {lie}: {count}x{sum(case.rows) // count} {case.n} {case.k} TF: {said}")
        del ways


def ways_of(family: str, case: Case, other: Config) -> dict[str, Callable[[], object]]:
    """The ways to compute a product."""
    if family == SUMS:
        plain = gradients_on_gpu.operands(case.rows, case.n, case.k)
        dy, x = both(case.lie, plain.dy, plain.x)
        out, ends = torch.zeros(len(case.rows), case.n, case.k, device="cuda"), plain.offsets[1:].contiguous()
        behind = plain.offsets, None, out
        return {
            f"across {short(case.config)}": partial(add_gradients, case.config, dy, x, *behind),
            "along": partial(add_gradients, other, plain.dy, plain.x, *behind),
            "copied": lambda: add_gradients(other, dy.contiguous(), x.contiguous(), *behind),
            "torch, not added": partial(torch._grouped_mm, plain.dy.mT, plain.x, offs=ends),
        }
    given = operands(along(family), case.rows, case.n, case.k)
    x, w = both(case.lie, given.x, given.w)
    y, lying = given.x.new_empty((*given.x.shape[:-1], case.n)), given._replace(x=x, w=w)
    ways: dict[str, Callable[[], object]] = {
        f"across {short(case.config)}": partial(launching.multiply, case.config, lying, y),
        f"along {short(other)}": partial(launching.multiply, other, given, y),
        "copied": partial(copied, other, lying, y),
    }
    if given.offsets is not None:
        ends = given.offsets[1:].contiguous()
        ways["torch"] = lambda: torch._grouped_mm(x.contiguous(), w.mT, offs=ends)
    return ways


def copied(config: Config, given: Operands, y: Tensor) -> None:
    """The product with operands that are copied first where they lie across k."""
    launching.multiply(config, given._replace(x=given.x.contiguous(), w=given.w.contiguous()), y)


def speeds(ways: dict[str, Callable[[], object]], flops: int, flush: Tensor) -> str:
    """The speed of each way."""
    parts = []
    for name, call in ways.items():
        try:
            parts.append(f"{name} {flops / milliseconds(call, flush) / 1e9:.0f}")
        except Exception as error:
            parts.append(f"{name} {type(error).__name__}: {str(error).splitlines()[0][:60]}")
    return " | ".join(parts)


def sanitized() -> list[tuple[Product, Config]]:
    """What is launched under a sanitizer."""
    return [(product_of(family, one), one.config) for family in FAMILIES for one in checked(family, few=True)]


def kernels(times: bool) -> list[tuple[Product, Config]]:
    """Everything that is launched."""
    found: dict[tuple[Product, Config], None] = {}
    for family in FAMILIES:
        for one in checked(family, few=False):
            found[product_of(family, one), one.config] = None
        for case, other in timed(family) if times else ():
            found[product_of(family, case), case.config] = None
            found[product_of(family, case._replace(lie=(False, False))), other] = None
    for across, other in timed_few() if times else ():
        found[across.product, across.config] = None
        found[replace(across.product, w_across=False), other] = None
    return list(found)


def main() -> int:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compile", action="store_true", help="compile only; takes no GPU")
    parser.add_argument("--only", nargs="+", default=FAMILIES, choices=FAMILIES)
    parser.add_argument("--checks", type=float, default=20, help="seconds for the checks of a family; 0 for none")
    parser.add_argument("--times", type=float, default=0, help="seconds for the times of a family; 0 for none")
    parser.add_argument("--tiny", choices=FAMILIES, help="only a few small products, for a sanitizer")
    given = parser.parse_args()
    if given.tiny:
        run_checks(given.tiny, few=True)
        return 0
    failed = not compile_kernels(kernels(bool(given.times)))
    if given.compile:
        return int(failed)
    steps: list[tuple[str, Callable[[str], None], float]] = []
    if given.checks:
        steps = [(family, run_checks, given.checks) for family in given.only] + [("calls", run_calls, given.checks)]
    if given.times:
        steps += [(family, run_times, given.times) for family in given.only]
    return int(not run_apart(steps, run_times) or failed)


if __name__ == "__main__":
    sys.exit(main())
