"""Gradients of grouped weights from codes on a Hopper GPU: `python .../benchmarks/scaled_gradients_on_gpu.py`.

As `gradients_on_gpu.py`: every kind of tile is held to float64, with groups that begin anywhere and NaN in rows of no
group. With ``--times`` the product of DeepGEMM's table is timed, and what the copy of codes in rows costs.
"""

import argparse
import os
import random
import sys
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

os.environ.setdefault("OPMUX_PLUGINS", "deepgemm")

import torch
from on_gpu import FLUSHED, compile_kernels, milliseconds, on_card, run_apart, say, short
from torch import Tensor

from opmux_deepgemm.configs import Config, most_stages
from opmux_deepgemm.generation.source import Product
from opmux_deepgemm.scaled_gradient_model import configs, scored_gradients
from opmux_deepgemm.summing import add_scaled_gradients

FAMILIES = ("gradients fp8",)
TIMED = (
    (4, 8192, 4096, 7168),
    (4, 8192, 7168, 2048),
    (8, 4096, 4096, 7168),
    (16, 2048, 7168, 2048),
    (64, 128, 4096, 2048),
)
"""Groups, rows of each on average, n and k."""
LISTED = ((7168, 7040, 6912, 7296), 4096, 7168)
"""The line of DeepGEMM's table: rows of each group, n and k."""
SEED = 20261123


class Given(NamedTuple):
    """What a gradient is computed from; ``places`` are the rows of each group."""

    dy: Tensor
    x: Tensor
    dy_scale: Tensor
    x_scale: Tensor
    offsets: Tensor
    sizes: Tensor | None
    places: list[slice]


class Case(NamedTuple):
    """Rows of each group, n, k, rows of no group behind each, and whether codes of neighbouring rows are neighbours."""

    rows: tuple[int, ...]
    n: int
    k: int
    config: Config
    spare: int = 0
    across: bool = True


def tile(block_m: int, block_n: int, consumers: int, cluster: int = 1, alternate: int = 0, stages: int = 0) -> Config:
    """A config with as many stages as fit."""
    fit = most_stages("large", block_m, block_n, consumers, True)
    return Config("large", block_m, block_n, stages or min(fit, 8), consumers, cluster, 8, alternate)


def checked(few: bool) -> Iterator[Case]:
    """Products that are compared; of a few, small ones."""
    yield Case((5, 0, 130, 64, 1, 257), 136, 72, tile(128, 64, 2, stages=2), 3)
    yield Case((128, 0, 256), 72, 200, tile(64, 128, 1, 2, stages=3))
    yield Case((301, 102), 200, 136, tile(128, 96, 2, 2, 3, stages=2))
    if few:
        return
    for config in configs(4096, 4096):
        yield Case((300, 7, 0, 129), 576, 1544, config, 13)
    yield Case((1000, 1500), 2112, 1536, tile(128, 192, 2, 2, 3), across=False)
    yield Case((700, 1, 3000), 264, 4100, tile(256, 96, 2), 70)
    yield Case((1,), 1, 4, tile(64, 32, 1), 0, across=False)


def operands(case: Case, device: str = "cuda") -> Given:
    """Random operands; what belongs to no group is NaN, scales of blocks without rows of one too."""
    rows, n, k, spare = case.rows, case.n, case.k, case.spare
    torch.manual_seed(sum(rows) + n + k)
    sizes = torch.tensor(rows, dtype=torch.int32, device=device)
    offsets = torch.zeros(len(rows) + 1, dtype=torch.int32, device=device)
    offsets[1:] = torch.cumsum(sizes + spare, 0)
    m = sum(rows) + spare * len(rows)
    places = [slice(begin, begin + size) for begin, size in zip(offsets.tolist(), rows, strict=False)]
    used = torch.zeros(-(-m // 128) * 128, dtype=torch.bool, device=device)
    for place in places:
        used[place] = True
    made = []
    for width in (n, k):
        room = torch.randn(width, -(-m // 16) * 16, device=device).to(torch.float8_e4m3fn)
        room.view(torch.uint8)[:, :m][:, ~used[:m]] = 0x7F
        scale = torch.rand(-(-m // 128), width, device=device) + 0.5
        scale[~used.view(-1, 128).any(1)] = float("nan")
        made.append((room[:, :m].T if case.across else room[:, :m].T.contiguous(), scale))
    (dy, dy_scale), (x, x_scale) = made
    return Given(dy, x, dy_scale, x_scale.T.contiguous().T, offsets, sizes if spare else None, places)


def product(n: int, k: int) -> Product:
    """What is compiled."""
    return Product("float8_e4m3fn", "float32", n, k, groups="ragged", accumulate=True)


def real(codes: Tensor, scale: Tensor) -> Tensor:
    """What codes stand for."""
    return codes.double() * scale.double().repeat_interleave(128, 0)[: len(codes)]


def check(case: Case, device: str = "cuda") -> str:
    """Compare one product with float64, which `device` computes; returns what is wrong, or nothing."""
    given = operands(case, device)
    before = torch.randn(len(case.rows) + 1, case.n, case.k, device=device)
    out = on_card(before.clone())
    tensors = [None if t is None else on_card(t) for t in given[:6]]
    add_scaled_gradients(case.config, *tensors, out[:-1])  # type: ignore[arg-type]
    torch.cuda.synchronize()
    out = out.to(device)
    whole = real(given.dy, given.dy_scale), real(given.x, given.x_scale)
    for group, place in enumerate(given.places):
        dy, x = (values[place] for values in whole)
        wanted, size = before[group].double() + dy.mT @ x, dy.abs().mT @ x.abs()
        # The matrix unit keeps about 14 bits of the largest term of a sum of codes, and cuts the others there.
        bound = wanted.abs() * 2.0**-22 + size * 2.0**-12 + 1e-6
        wrong = int(((out[group].double() - wanted).abs() <= bound).logical_not().sum())
        if wrong:
            return f"group {group}: {wrong} of {wanted.numel()} wrong"
    return "" if torch.equal(out[-1], before[-1]) else "wrote behind the result"


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


def timed() -> Iterator[tuple[tuple[int, ...], int, int, list[Config]]]:
    """Rows of each group, n, k and the configs that the cost model likes best, of different kinds."""
    draw = random.Random(SEED)
    listed = [LISTED]
    for groups, rows, n, k in TIMED:
        listed.append((tuple(-(-int(rows * draw.uniform(0.7, 1.3)) // 128) * 128 for _ in range(groups)), n, k))
    for sizes, n, k in listed:
        best: dict[object, Config] = {}
        for one in scored_gradients(sum(sizes), n, k, len(sizes)):
            c = one.config
            best.setdefault((c.block_m, c.block_n, c.cluster, c.alternate), c)
        yield sizes, n, k, list(best.values())[:8]


def run_times(family: str) -> None:
    """A line for each product, in TFLOPS."""
    flush = torch.empty(FLUSHED, dtype=torch.uint8, device="cuda")
    for rows, n, k, found in timed():
        given = operands(Case(rows, n, k, found[0]))
        out, parts = torch.zeros(len(rows), n, k, device="cuda"), []
        tensors = given[:6]
        ways = {short(c): partial(add_scaled_gradients, c, *tensors, out) for c in found}
        plain = (given.dy.contiguous(), given.x.contiguous(), *tensors[2:])
        ways["copied"] = partial(add_scaled_gradients, found[0], *plain, out)
        for name, call in ways.items():
            spent = milliseconds(call, flush)
            parts.append(f"{name} {2 * sum(rows) * n * k / spent / 1e9:.0f}")
        say(f"{family} {len(rows)}x{sum(rows) // len(rows)} {n} {k} TF: {' | '.join(parts)}")
        del given, out, tensors, plain, ways


def sanitized() -> list[tuple[Product, Config]]:
    """What is launched under a sanitizer."""
    return [(product(case.n, case.k), case.config) for case in checked(few=True)]


def main() -> int:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compile", action="store_true", help="compile only; takes no GPU")
    parser.add_argument("--checks", type=float, default=20, help="seconds for the checks")
    parser.add_argument("--times", type=float, default=0, help="seconds for the times; 0 for none")
    parser.add_argument("--tiny", choices=FAMILIES, help="only a few small products, for a sanitizer")
    given = parser.parse_args()
    if given.tiny:
        run_checks(given.tiny, few=True)
        return 0
    kernels = {(product(case.n, case.k), case.config): None for case in checked(few=False)}
    for _, n, k, found in timed() if given.times else ():
        kernels.update(dict.fromkeys((product(n, k), config) for config in found))
    failed = not compile_kernels(list(kernels))
    if given.compile:
        return int(failed)
    steps = [(family, run_checks, given.checks) for family in FAMILIES]
    if given.times:
        steps += [(family, run_times, given.times) for family in FAMILIES]
    return int(not run_apart(steps, run_times) or failed)


if __name__ == "__main__":
    sys.exit(main())
