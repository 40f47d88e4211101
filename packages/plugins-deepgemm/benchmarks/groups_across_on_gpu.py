"""Products of groups whose weights lie across k on a Hopper GPU: `python .../benchmarks/groups_across_on_gpu.py`.

As `grouped_on_gpu.py`, whose operands and comparison it takes: the weights of the groups are turned, with NaN in the
gaps between their columns. Narrow w of `linear` across k are compared too. With ``--times`` products are timed, beside
the same with weights along k, with weights that are copied first, and torch's.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

os.environ.setdefault("OPMUX_PLUGINS", "deepgemm")

import grouped_on_gpu
import torch
from grouped_on_gpu import Case, compare, operands, places, varied
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
from opmux_deepgemm.launching import Operands
from opmux_deepgemm.model import scored
from opmux_deepgemm.space import Sizes

FAMILIES = ("ragged across bf16", "masked across bf16")
TIMED = (("ragged", 4, 8192), ("ragged", 8, 4096), ("masked", 6, 1024), ("masked", 32, 192), ("masked", 32, 20))
NARROW = ((8, 200), (16, 512), (32, 136))
"""n and k of products of which w alone lies across k."""


def checked(family: str, few: bool) -> Iterator[Case]:
    """Products that are compared; of a few, small ones."""
    yield Case((5, 0, 130, 64, 1), 136, 200, large(128, 128, 2, 2, stages=2), spare=3)
    yield Case((70, 1, 100), 24, 72, large(64, 64, 1, stages=3))
    if few:
        return
    yield Case((1, 0, 300, 64, 128), 576, 1544, large(64, 256, 1), spare=7)
    yield Case((700, 129), 2112, 1536, large(128, 256, 2, 2))
    yield Case((511, 513, 3), 264, 1536, large(256, 128, 2, 2), spare=5)
    yield Case((0, 0, 0), 72, 72, large(64, 64, 1))
    for sizes in (Sizes(3000, 1032, 2 * 1032, False, 5, w_across=True), Sizes(90, 576, 1152, False, 5, w_across=True)):
        for one in scored(sizes)[:10]:
            yield Case((200, 7, 0, 1, 300), sizes.n, sizes.k_bytes // 2, one.config, spare=2)


def product_of(family: str, n: int, k: int) -> Product:
    """What is compiled."""
    return replace(grouped_on_gpu.product_of(along(family), n, k), w_across=True)


def along(family: str) -> str:
    """The family of which the weights lie along k."""
    return family.replace(" across", "")


def turned(w: Tensor) -> Tensor:
    """Weights across k, with gaps of NaN between their columns."""
    groups, n, k = w.shape
    room = torch.full((groups, k, n + 8), float("nan"), dtype=w.dtype, device=w.device)
    return room[:, :, :n].copy_(w.mT).mT


def check(family: str, case: Case, device: str = "cuda") -> str:
    """Compare one product with float64, which `device` computes; returns what is wrong, or nothing."""
    rows, n, k, config, out, spare = case
    given = operands(along(family), rows, n, k, spare, device)
    y = on_card(torch.full((*given.x.shape[:-1], n), 7.0, dtype=torch.bfloat16, device=device))
    launching.multiply(config, all_on_card(given._replace(w=turned(given.w))), y)
    torch.cuda.synchronize()
    found, x = y.to(device).flatten(0, -2), given.x.flatten(0, -2)
    untouched = torch.ones(len(found), dtype=torch.bool, device=device)
    for group, place in enumerate(places(along(family), rows, spare)):
        problem = compare(found[place], x[place], given, group, place, out)
        if problem:
            return f"group {group}: {problem}"
        untouched[place] = False
    return "" if bool((found[untouched] == 7.0).all()) else "wrote rows of no group"


def narrow() -> Iterator[Across]:
    """Products of narrow w across k, by the cost model's choice."""
    for (n, k), m in ((shape, m) for shape in NARROW for m in (1, 300)):
        yield Across(m, n, k, False, True, scored(Sizes(m, n, 2 * k, False, w_across=True))[0].config)


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
            say(f"WRONG {family} {case.rows} {case.n} {case.k} {short(case.config)}: {problem}")
        if "CUDA error" in problem or "Accelerator" in problem:
            break
    say(f"{family}: {len(cases) - wrong} of {len(cases)} right")
    if wrong:
        raise SystemExit(1)


def run_narrow(_: str) -> None:
    """The same of narrow products."""
    for case in narrow():
        given = case.operands()
        y = torch.full((case.m, case.n), float("nan"), dtype=torch.bfloat16, device="cuda")
        launching.multiply(case.config, given, y)
        wanted, size = exact(given)
        if bool(((y.double() - wanted).abs() > wanted.abs() * 2.0**-8 + size * 2.0**-20 + 1e-30).any()) or bool(
            y.isnan().any()
        ):
            say(f"WRONG narrow {case.m} {case.n} {case.k} {short(case.config)}")
            raise SystemExit(1)
    say(f"narrow: {len(list(narrow()))} right")


def timed() -> Iterator[tuple[str, tuple[int, ...], int, int, Config, Config]]:
    """Layout, rows of each group, n and k, with the choice for weights across k and along it."""
    for layout, groups, rows in TIMED:
        for n, k in grouped_on_gpu.WEIGHTS:
            sizes = Sizes(groups * rows, n, 2 * k, False, groups, w_across=True)
            yield (
                layout,
                varied(groups, rows),
                n,
                k,
                scored(sizes)[0].config,
                scored(sizes._replace(w_across=False))[0].config,
            )


def run_times(family: str) -> None:
    """A line for each product, in TFLOPS."""
    flush = torch.empty(FLUSHED, dtype=torch.uint8, device="cuda")
    for layout, rows, n, k, config, other in timed():
        if layout != family.split(maxsplit=1)[0]:
            continue
        given = operands(along(family), rows, n, k)
        w, y = given.w.mT.contiguous().mT, given.x.new_empty((*given.x.shape[:-1], n))
        turned_w = given._replace(w=w)
        ways: dict[str, Callable[[], object]] = {
            f"across {short(config)}": partial(launching.multiply, config, turned_w, y),
            f"along {short(other)}": partial(launching.multiply, other, given, y),
            "copied": partial(copied, other, turned_w, y),
        }
        if given.offsets is not None:
            ways["torch"] = partial(torch._grouped_mm, given.x, w.mT, offs=given.offsets[1:])
        parts = [f"{name} {2 * sum(rows) * n * k / milliseconds(call, flush) / 1e9:.0f}" for name, call in ways.items()]
        say(f"{family} {len(rows)}x{sum(rows) // len(rows)} {n} {k} TF: {' | '.join(parts)}")
        del given, turned_w, w, y, ways


def copied(config: Config, given: Operands, y: Tensor) -> None:
    """The product with weights that are copied first."""
    launching.multiply(config, given._replace(w=given.w.contiguous()), y)


def sanitized() -> list[tuple[Product, Config]]:
    """What is launched under a sanitizer."""
    return [(product_of(family, c.n, c.k), c.config) for family in FAMILIES for c in checked(family, few=True)]


def kernels(times: bool) -> list[tuple[Product, Config]]:
    """Everything that is launched."""
    found = {(product_of(family, c.n, c.k), c.config): None for family in FAMILIES for c in checked(family, few=False)}
    found.update({(case.product, case.config): None for case in narrow()})
    for layout, _, n, k, config, other in timed() if times else ():
        found[product_of(f"{layout} across bf16", n, k), config] = None
        found[grouped_on_gpu.product_of(f"{layout} bf16", n, k), other] = None
    return list(found)


def main() -> int:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compile", action="store_true", help="compile only; takes no GPU")
    parser.add_argument("--checks", type=float, default=20, help="seconds for the checks of a family")
    parser.add_argument("--times", type=float, default=0, help="seconds for the times of a family; 0 for none")
    parser.add_argument("--tiny", choices=FAMILIES, help="only a few small products, for a sanitizer")
    given = parser.parse_args()
    if given.tiny:
        run_checks(given.tiny, few=True)
        return 0
    failed = not compile_kernels(kernels(bool(given.times)))
    if given.compile:
        return int(failed)
    steps = [(family, run_checks, given.checks) for family in FAMILIES] + [("narrow", run_narrow, given.checks)]
    if given.times:
        steps += [(family, run_times, given.times) for family in FAMILIES]
    return int(not run_apart(steps, run_times) or failed)


if __name__ == "__main__":
    sys.exit(main())
