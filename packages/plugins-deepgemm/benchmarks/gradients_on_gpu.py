"""Gradients of grouped weights on a Hopper GPU, held to float64: `python .../benchmarks/gradients_on_gpu.py`.

As `on_gpu.py`, whose way of running things it takes: every kind of tile, groups that begin anywhere, NaN in rows of no
group. `figures.py` has the times.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from typing import NamedTuple

os.environ.setdefault("OPMUX_PLUGINS", "deepgemm")

import torch
from on_gpu import compile_kernels, on_card, run_apart, say, short
from torch import Tensor

from opmux_deepgemm.configs import Config, most_stages
from opmux_deepgemm.generation.source import Product
from opmux_deepgemm.gradient_model import configs
from opmux_deepgemm.summing import add_gradients

FAMILIES = ("gradients bf16",)


class Given(NamedTuple):
    """What a gradient is computed from; ``places`` are the rows of each group."""

    dy: Tensor
    x: Tensor
    offsets: Tensor
    sizes: Tensor | None
    places: list[slice]


class Case(NamedTuple):
    """Rows of each group, n, k, and rows of no group behind each."""

    rows: tuple[int, ...]
    n: int
    k: int
    config: Config
    spare: int = 0


def tile(block_m: int, block_n: int, consumers: int, stages: int = 0) -> Config:
    """A config with as many stages as fit."""
    fit = most_stages("large", block_m, block_n, consumers)
    return Config("large", block_m, block_n, stages or min(fit, 8), consumers)


def checked(few: bool) -> Iterator[Case]:
    """Products that are compared; of a few, small ones."""
    yield Case((5, 0, 130, 64, 1), 136, 72, tile(128, 64, 2, 2), 3)
    yield Case((100, 20), 72, 200, tile(64, 128, 1, 2))
    if few:
        return
    for config in configs(4096, 4096):
        yield Case((300, 7, 0, 129), 576, 1544, config, 13)
    yield Case((1000, 1500), 2112, 1536, tile(128, 256, 2))
    yield Case((700, 1, 3000), 264, 4096, tile(256, 192, 2), 70)


def operands(rows: tuple[int, ...], n: int, k: int, spare: int = 0, device: str = "cuda") -> Given:
    """Random operands; what belongs to no group is NaN."""
    torch.manual_seed(sum(rows) + n + k)
    sizes = torch.tensor(rows, dtype=torch.int32, device=device)
    offsets = torch.zeros(len(rows) + 1, dtype=torch.int32, device=device)
    offsets[1:] = torch.cumsum(sizes + spare, 0)
    m, places = sum(rows) + spare * len(rows), []
    dy, x = (torch.full((m, width), float("nan"), dtype=torch.bfloat16, device=device) for width in (n, k))
    for begin, size in zip(offsets.tolist(), rows, strict=False):
        places.append(slice(begin, begin + size))
        dy[places[-1]] = torch.randn(size, n, device=device).bfloat16()
        x[places[-1]] = torch.randn(size, k, device=device).bfloat16()
    return Given(dy, x, offsets, sizes if spare else None, places)


def product(n: int, k: int) -> Product:
    """What is compiled."""
    return Product("bfloat16", "float32", n, k, groups="ragged", accumulate=True)


def check(case: Case, device: str = "cuda") -> str:
    """Compare one product with float64, which `device` computes; returns what is wrong, or nothing."""
    given = operands(case.rows, case.n, case.k, case.spare, device)
    before = torch.randn(len(case.rows) + 1, case.n, case.k, device=device)
    out = on_card(before.clone())
    dy, x, offsets, sizes = (None if t is None else on_card(t) for t in given[:4])
    add_gradients(case.config, dy, x, offsets, sizes, out[:-1])
    torch.cuda.synchronize()
    out = out.to(device)
    for group, place in enumerate(given.places):
        problem = compare(out[group], before[group], given.dy[place], given.x[place])
        if problem:
            return f"group {group}: {problem}"
    return "" if torch.equal(out[-1], before[-1]) else "wrote behind the result"


def compare(found: Tensor, before: Tensor, dy: Tensor, x: Tensor) -> str:
    """Compare what was added to for one group with float64; NaN is wrong."""
    left, right = dy.double(), x.double()
    wanted, size = before.double() + left.mT @ right, left.abs().mT @ right.abs()
    bound = wanted.abs() * 2.0**-22 + size * 2.0**-20 + 1e-6
    wrong = int(((found.double() - wanted).abs() <= bound).logical_not().sum())
    return f"{wrong} of {wanted.numel()} wrong" if wrong else ""


def run_checks(family: str, few: bool = False) -> None:
    """A line for each wrong product, and a last one."""
    cases, wrong = list(checked(few)), 0
    for case in cases:
        try:
            problem = check(case, "cpu" if few else "cuda")
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


def sanitized() -> list[tuple[Product, Config]]:
    """What is launched under a sanitizer."""
    return [(product(case.n, case.k), case.config) for case in checked(few=True)]


def main() -> int:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compile", action="store_true", help="compile only; takes no GPU")
    parser.add_argument("--checks", type=float, default=15, help="seconds for the checks")
    parser.add_argument("--tiny", choices=FAMILIES, help="only a few small products, for a sanitizer")
    given = parser.parse_args()
    if given.tiny:
        run_checks(given.tiny, few=True)
        return 0
    failed = not compile_kernels([(product(case.n, case.k), case.config) for case in checked(few=False)])
    if given.compile:
        return int(failed)
    return int(not run_apart([(family, run_checks, given.checks) for family in FAMILIES], run_apart) or failed)


if __name__ == "__main__":
    sys.exit(main())
