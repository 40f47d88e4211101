"""Every kernel on a Hopper GPU, held to float64 and timed: `python packages/plugins-deepgemm/benchmarks/on_gpu.py`.

Kernels are compiled first, in as many processes as there are cores. Each family then runs in a process of its own,
which is ended when its time is up: a kernel that hangs costs only its own family. Results are poisoned before each
product; what lies behind them must stay as it was. Times are medians with a cold second-level cache, beside torch's.
With ``--compile`` nothing is run, which takes no GPU. Ends with 1 if a result is wrong, or a family did not end.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NamedTuple

os.environ.setdefault("OPMUX_PLUGINS", "deepgemm")

import torch
from torch import Tensor

from opmux_deepgemm import launching, targets
from opmux_deepgemm.configs import Config, most_stages
from opmux_deepgemm.generation.source import Product
from opmux_deepgemm.launching import source
from opmux_deepgemm.model import scored
from opmux_deepgemm.operand_maps import with_scales
from opmux_deepgemm.space import Sizes
from opmux_jit import machine_code

LISTED = ((2112, 7168), (576, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))
"""n and k of the layers of a large mixture of experts."""
ADDED = ((2112, 4096, 7168), (7168, 4096, 16384), (4096, 4096, 7168))
"""m, n and k of the gradients of weights."""
SMALL_ADDED, TINY_ADDED, TINY_COPIED = (300, 344, 528), (300, 136, 400), (300, 144, 656)
EDGES_ADDED = ((1, 16, 512), (127, 336, 1040), (515, 1040, 2048), (130, 88, 6416), (1000, 2112, 1536))
CUT = 2.0**-12
"""Of the sum of magnitudes, how far a product of codes may be off. The matrix unit cuts each sum of 32 products to 14
bits of the largest, which in one of 81,600 elements of a product of 400 codes was 2**-12.9 of that sum."""
FLUSHED = 1 << 28
"""Bytes written before each timed product: five times the second-level cache."""


class Case(NamedTuple):
    """A product with the config that computes it."""

    m: int
    n: int
    k: int
    config: Config
    out: str = "bfloat16"
    bias: bool = False
    by_columns: bool = False
    """Whether the scales of x lie with a column's neighbours next to each other."""


def large(block_m: int, block_n: int, consumers: int, cluster: int = 1, stages: int = 0, alternate: int = 0) -> Config:
    """A config of the persistent kernel, with as many stages as fit."""
    fit = most_stages("large", block_m, block_n, consumers)
    return Config("large", block_m, block_n, stages or min(fit, 8), consumers, cluster, 8, alternate)


def small(block_m: int, block_n: int, cluster: int, stages: int = 0) -> Config:
    """A config of the kernel for few rows."""
    fit = most_stages("small", block_m, block_n, block_n // 64)
    return Config("small", block_m, block_n, stages or min(fit, 12), block_n // 64, cluster)


def checked(family: str) -> Iterator[Case]:
    """Products whose results are compared: edges of every dim, every kind of tile."""
    kind, dtype = family.split()
    step = 64 if dtype == "bf16" else 128
    if kind == "large":
        yield Case(128, 128, step, large(128, 128, 2))
        yield Case(128, 256, 4 * step, large(128, 128, 2, stages=2))
        yield Case(64, 64, 512, large(64, 64, 1))
        yield Case(1, 72, 512, large(64, 64, 1))
        yield Case(300, 344, 520 if dtype == "bf16" else 528, large(128, 160, 2), bias=True)
        yield Case(4096, 576, 7168, large(128, 128, 2), "float32")
        yield Case(1000, 2112, 1536, large(128, 192, 2, 2), by_columns=True)
        yield Case(333, 576, 7168, large(128, 128, 2, 2), "float32", bias=True)
        yield Case(129, 4104, 512, large(64, 256 if dtype == "bf16" else 192, 1, 2))
        if dtype == "fp8":
            for m, config in ((1000, (128, 256, 3, 2, 1, 8, 0, 2)), (4095, (256, 128, 3, 2, 2, 4, 0, 1, True))):
                yield Case(m, 2120, 1536, Config("large", *config[:9], staged=True))
            yield from checked_copied()
            for cluster in (1, 2):
                yield Case(1000, 2112, 1536, large(128, 192, 2, cluster, alternate=3))
                yield Case(300, 344, 528, large(128, 160, 2, cluster, stages=2, alternate=4), bias=True)
                yield Case(4096, 576, 7168, large(256, 96, 2, cluster, alternate=3), "float32")
        if dtype == "bf16":
            yield Case(1000, 2112, 1536, large(128, 256, 2))
            yield Case(1000, 2112, 1536, large(128, 256, 2, 2))
            yield Case(511, 2112, 1536, large(256, 192, 2, 2))
            yield Case(511, 264, 1536, large(256, 128, 2), "float32")
    else:
        yield Case(8, 128, step, small(8, 64, 1))
        yield Case(1, 200, 512, small(8, 64, 2))
        yield Case(1, 2112, 7168, small(8, 64, 4))
        yield Case(3, 576, 7168, small(8, 64, 8), bias=True, by_columns=True)
        yield Case(17, 2112, 512, small(24, 128, 2), "float32")
        yield Case(64, 7168, 2048, small(64, 128, 1))
        yield Case(100, 264, 1040, small(128, 64, 8), bias=True)
        yield Case(150, 2112, 1536, small(56, 64, 4), bias=True)
        yield Case(128, 576, 7168, small(64, 128, 8), "float32")


def checked_copied() -> Iterator[Case]:
    """Products whose scales of x the copy engine brings, in rows and in columns, or threads where they do not fit.

    Those of 12 and 56 blocks of k can be copied in rows, those of 5 and 11 in columns of multiples of 4 rows.
    """
    halves = Config("large", 128, 256, 3, 2, 1, 8, pieces=2, staged=True, copied_scales=True)
    whole = Config("large", 128, 160, 5, 2, 1, 8, copied_scales=True)
    low = Config("large", 64, 96, 8, 1, 1, 8, copied_scales=True)
    tall = Config("large", 256, 128, 3, 2, 1, 8, pieces=1, staged=True, copied_scales=True)
    for by_columns in (False, True):
        yield Case(1000, 5128, 1536, halves, "bfloat16", True, by_columns)
        yield Case(4092, 2120, 640, tall, by_columns=by_columns)
        yield Case(4095, 2120, 1536, tall, by_columns=by_columns)
        yield Case(2048, 4096, 7168, replace(halves, cluster=2), by_columns=by_columns)
        yield Case(2052, 4096, 128, replace(tall, cluster=2, share_x=True), by_columns=by_columns)
        wide = Config("large", 128, 192, 4, 2, 1, 4, staged=True, copied_scales=True)
        yield Case(1500, 4104, 1408, wide, by_columns=by_columns)
        yield Case(1500, 4104, 512, replace(wide, cluster=2), by_columns=by_columns)
        yield Case(1500, 4104, 1536, replace(halves, staged=False), "float32", True, by_columns)
        for cluster in (1, 2):
            yield Case(700, 5000, 1040, replace(whole, cluster=cluster), by_columns=by_columns)
            yield Case(3000, 1032, 2048, replace(low, cluster=cluster), by_columns=by_columns)
        yield Case(1, 72, 2048, replace(low, block_n=64), bias=True, by_columns=by_columns)
        yield Case(129, 576, 7168, replace(whole, block_n=32, stages=8), "float32", by_columns=by_columns)


def tiny(family: str) -> Iterator[Case]:
    """A few small products, for tools that make each take seconds: every branch of a kernel, no more."""
    kind, dtype = family.split()
    k = 200 if dtype == "bf16" else 400
    if kind == "large":
        yield Case(300, 136, k, large(128, 64, 2, stages=2), bias=True)
        yield Case(300, 136, k, large(64, 96, 1, 2, stages=3), "float32")
        if dtype == "fp8":
            yield Case(300, 136, k, large(128, 96, 2, 2, stages=2, alternate=4))
            yield Case(300, 136, k, Config("large", 128, 128, 2, 2, 2, 8, pieces=2))
            yield Case(300, 264, k, Config("large", 64, 64, 3, 1, 4, 8, pieces=2, share_x=True))
            yield Case(300, 264, k, Config("large", 128, 256, 2, 2, 1, 8, pieces=2), by_columns=True)
            yield Case(600, 136, k, Config("large", 256, 128, 2, 2, 2, 8, pieces=1), "float32")
            yield Case(300, 136, k, Config("large", 64, 96, 2, 1, 4, 8))
            yield Case(300, 264, k, Config("large", 256, 128, 2, 2, 2, 8, pieces=1, share_x=True, staged=True))
            yield Case(1300, 2112, k, Config("large", 128, 128, 2, 2, 1, 8, pieces=2, staged=True), bias=True)
            yield Case(
                1300, 2112, k, Config("large", 128, 128, 2, 2, 1, 8, copied_scales=True), bias=True, by_columns=True
            )
            rows = Config("large", 128, 256, 2, 2, 2, 8, pieces=2, staged=True, copied_scales=True)
            yield Case(2100, 2112, 1024, rows)
    else:
        yield Case(9, 136, k, small(16, 64, 2, stages=2), bias=True)
        yield Case(3, 136, k, small(8, 128, 1, stages=3), "float32")
        yield Case(40, 136, k, small(16, 64, 2, stages=2))
        yield Case(40, 136, 3 * k, small(24, 64, 1, stages=2))  # more blocks of k than one thread loads scales of


def tiny_added() -> list[Config]:
    """Configs of `TINY_ADDED`, likewise."""
    return [
        large(128, 64, 2, stages=2),
        large(64, 96, 1, 2, stages=3),
        large(128, 96, 2, 2, stages=2, alternate=4),
        Config("large", 128, 64, 2, 2, 2, 8, pieces=2),
        Config("large", 128, 256, 2, 2, 1, 8, pieces=2),
    ]


def tiny_copied() -> list[Config]:
    """Configs of `TINY_COPIED`, whose scales the copy engine brings where they lie so."""
    return [
        Config("large", 128, 64, 2, 2, 1, 8, copied_scales=True),
        Config("large", 64, 96, 3, 1, 1, 8, copied_scales=True),
        Config("large", 128, 192, 3, 2, 1, 8, copied_scales=True),
        Config("large", 256, 96, 2, 2, 1, 8, copied_scales=True),
        Config("large", 128, 256, 2, 2, 1, 8, pieces=2, copied_scales=True),
    ]


def timed(family: str) -> Iterator[tuple[int, int, int, list[Config]]]:
    """Products that are timed, each with the configs that the cost model likes best, of different kinds."""
    kind, dtype = family.split()
    for m in (4096, 128) if kind == "large" else (1, 16, 64, 128):
        for n, k in LISTED if m in (4096, 128, 1) else LISTED[::3]:
            found = [one.config for one in scored(Sizes(m, n, k * (2 if dtype == "bf16" else 1), dtype == "fp8"))]
            found = [config for config in found if config.kernel == kind]
            best: dict[object, Config] = {}
            for config in found:  # the best of each kind
                best.setdefault((config.block_m, config.block_n, config.cluster), config)
            alone = [config for config in best.values() if kind == "small" or config.cluster == 1]
            paired = [config for config in best.values() if config not in alone]
            yield m, n, k, alone[:4] + paired[:4] if kind == "large" else alone[:6]


def product_of(family: str, n: int, k: int, out: str = "bfloat16", bias: bool = False) -> Product:
    """The product of a family."""
    return Product("bfloat16" if family.endswith("bf16") else "float8_e4m3fn", out, n, k, bias)


def lying(product: Product, config: Config, m: int, by_columns: bool = False) -> tuple[Product, Config]:
    """The kernel for operands of m rows whose scales lie so, as the launch finds it."""
    if not product.scaled or product.gradient:
        return product, config
    if product.accumulate:
        lie = "columns" if by_columns else "rows", "columns"
        x_scale, w_scale = (
            scales_of(rows, product.k, one, "meta") for rows, one in zip((m, product.n), lie, strict=True)
        )
        return with_scales(product, config, x_scale, w_scale), config
    blocks, matrices = -(-product.k // 128), (1,) * (product.groups == "masked")
    shape = (*matrices, blocks, m) if by_columns else (*matrices, m, blocks)
    x_scale = torch.empty(shape, device="meta")
    w_scale = torch.empty((*(1,) * bool(product.groups), -(-product.n // 128), blocks), device="meta")
    return with_scales(product, config, x_scale.mT if by_columns else x_scale, w_scale), config


def of_case(family: str, case: Case) -> list[tuple[Product, Config]]:
    """The kernels of a product that is compared: one with copied scales must have the bits of one that loads them."""
    product = product_of(family, case.n, case.k, case.out, case.bias)
    kernels = [lying(product, case.config, case.m, case.by_columns)]
    return kernels + [(product, replace(case.config, copied_scales=False))] * case.config.copied_scales


Operands = launching.Operands


def operands(
    family: str, m: int, n: int, k: int, bias: bool = False, by_columns: bool = False, device: str = "cuda"
) -> Operands:
    """Random operands."""
    torch.manual_seed(m + n + k)
    x, w = torch.randn(m, k, device=device), torch.randn(n, k, device=device)
    shift = torch.randn(n, device=device).bfloat16() if bias else None
    if family.endswith("bf16"):
        return Operands(x.bfloat16(), w.bfloat16(), shift)
    blocks = -(-k // 128)
    x_scale = torch.rand(blocks, m, device=device).t() + 0.5
    x_scale = x_scale if by_columns else x_scale.contiguous()
    w_scale = torch.rand(-(-n // 128), blocks, device=device) + 0.5
    return Operands(x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn), shift, x_scale, w_scale)


def on_card(tensor: Tensor) -> Tensor:
    """The tensor on the GPU, in the same strides; no kernel is launched, which a sanitizer would make slow."""
    if tensor.is_cuda:
        return tensor
    whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    return whole.cuda().as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def all_on_card(given: Operands) -> Operands:
    """The operands on the GPU."""
    return Operands(*(None if tensor is None else on_card(tensor) for tensor in given))  # type: ignore[arg-type]


def exact(given: Operands) -> tuple[Tensor, Tensor]:
    """The product in float64, and that of the absolute values."""
    x, w = given.x.double(), given.w.double()
    if given.x_scale is not None and given.w_scale is not None:
        k, n = x.shape[1], len(w)
        x = x * given.x_scale.double().repeat_interleave(128, 1)[:, :k]
        w = w * given.w_scale.double().repeat_interleave(128, 1)[:, :k].repeat_interleave(128, 0)[:n]
    y, size = x @ w.t(), x.abs() @ w.abs().t()
    return (y, size) if given.bias is None else (y + given.bias.double(), size)


def check(family: str, case: Case, device: str = "cuda") -> str:
    """Compare one product with float64, which `device` computes; returns what is wrong, or nothing."""
    m, n, k, config, out, bias, by_columns = case
    given = operands(family, m, n, k, bias, by_columns, device)
    dtype = torch.bfloat16 if out == "bfloat16" else torch.float32
    room = torch.full((m + 300, n), float("nan"), dtype=dtype, device=device)
    room[m:] = 7.0
    room = on_card(room)
    launching.multiply(config, all_on_card(given), room[:m])
    torch.cuda.synchronize()
    if config.copied_scales and device == "cuda":
        loaded = torch.empty_like(room[:m])
        launching.multiply(replace(config, copied_scales=False), given, loaded)
        if not torch.equal(loaded, room[:m]):
            return f"{int((loaded != room[:m]).sum())} of {loaded.numel()} other bits than with scales that are loaded"
    room = room.to(device)
    found, (wanted, size) = room[:m].double(), exact(given)
    rounding = 2.0**-8 if out == "bfloat16" else 2.0**-22
    bound = wanted.abs() * rounding + size * (CUT if family.endswith("fp8") else 2.0**-20) + 1e-30
    wrong = ((found - wanted).abs() > bound) | found.isnan()
    if not bool((room[m:] == 7.0).all()):
        return "wrote behind the result"
    if not bool(wrong.any()):
        return ""
    rows, columns = wrong.nonzero(as_tuple=True)
    first = (int(rows[0]), int(columns[0]))
    box = [f"{int(side.min())}-{int(side.max())}" for side in (rows, columns)]
    return (
        f"{int(wrong.sum())} of {wrong.numel()} wrong, {int(found.isnan().sum())} NaN; rows {box[0]}, "
        f"columns {box[1]}; first {first}: {float(found[first]):.4g}, expected {float(wanted[first]):.4g}"
    )


def milliseconds(call: Callable[[], object], flush: Tensor, rounds: int = 12) -> float:
    """The median time of a call on the GPU, its operands not in the second-level cache."""
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(rounds)]
    call()
    for start, end in pairs:
        flush.zero_()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return sorted(start.elapsed_time(end) for start, end in pairs)[rounds // 2]


def rivals(family: str, given: Operands) -> dict[str, Callable[[], object]]:
    """The same product by torch."""
    x, w, x_scale, w_scale = given.x, given.w, given.x_scale, given.w_scale
    if x_scale is None or w_scale is None:
        return {"cublas": lambda: torch.nn.functional.linear(x, w)}
    one = torch.ones((), device="cuda")
    columns = x_scale.t().contiguous().t()
    rows, blocks = w_scale.shape
    padded = w_scale.new_zeros(rows, -(-blocks // 4) * 4)[:, :blocks].copy_(w_scale)
    bf16 = torch.bfloat16
    return {
        "fast": lambda: torch._scaled_mm(x, w.t(), one, one, out_dtype=bf16, use_fast_accum=True),
        "blocks": lambda: torch._scaled_mm(x, w.t(), columns, padded.t(), out_dtype=bf16),
    }


def short(config: Config) -> str:
    """A config in few letters."""
    c = config
    turns = f"a{c.alternate}" if c.alternate else ""
    turns += f"p{c.pieces}" if c.pieces else ""
    turns += "r" * c.staged + "q" * c.copied_scales
    return f"{c.kernel[0]}{c.block_m}x{c.block_n}s{c.stages}w{c.consumers}c{c.cluster}{'x' * c.share_x}{turns}"


def compare(family: str, m: int, n: int, k: int, configs: list[Config], flush: Tensor) -> str:
    """One line: the speeds of torch and of the configs."""
    given = operands(family, m, n, k)
    y = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
    read = (given.x.numel() + given.w.numel()) * given.x.element_size() + 2 * y.numel()
    parts = []
    ways = rivals(family, given)
    ways |= {short(c): partial(launching.multiply, c, given, y) for c in configs}
    for name, call in ways.items():
        try:
            spent = milliseconds(call, flush)
        except Exception as error:  # torch's block scaling is not in every build
            parts.append(f"{name} {type(error).__name__}: {str(error).splitlines()[0][:60]}")
            continue
        speed = 2 * m * n * k / spent / 1e9 if m >= 128 else read / spent / 1e6
        parts.append(f"{name} {speed:.0f}")
    return f"{family} {m} {n} {k} {'TF' if m >= 128 else 'GB/s'}: {' | '.join(parts)}"


def run_checks(family: str, few: bool = False) -> None:
    """A line for each wrong product, and a last one."""
    wrong = 0
    cases = list(tiny(family) if few else checked(family))
    for case in cases:
        try:
            problem = check(family, case, "cpu" if few else "cuda")
        except Exception as error:
            problem = f"{type(error).__name__}: {str(error)[:300]}"
        if problem:
            wrong += 1
            say(
                f"WRONG {family} {case.m} {case.n} {case.k} {short(case.config)} {case.out} bias={case.bias}: {problem}"
            )
        if "CUDA error" in problem or "Accelerator" in problem:
            break
    say(f"{family}: {len(cases) - wrong} of {len(cases)} right")
    if wrong:
        raise SystemExit(1)


def run_times(family: str) -> None:
    """A line for each product."""
    flush = torch.empty(FLUSHED, dtype=torch.uint8, device="cuda")
    for m, n, k, configs in timed(family):
        say(compare(family, m, n, k, configs, flush))


def scales_of(rows: int, k: int, lie: str, device: str = "cuda", aligned: bool = False) -> Tensor:
    """Scales of each row, with those of a row or of a block of k next to each other; in multiples of four, or not."""
    shape = (rows, -(-k // 128)) if lie == "rows" else (-(-k // 128), rows)
    room = torch.empty(shape[0], -(-shape[1] // 4) * 4 if aligned else shape[1], device=device)[:, : shape[1]]
    if device != "meta":
        room.copy_(torch.rand(shape, device=device) + 0.5)
    return room if lie == "rows" else room.t()


def added_operands(m: int, n: int, k: int, device: str = "cuda", lie: tuple[str, str] | None = None) -> Operands:
    """Operands with scales of each row of both, which lie so where the copy engine can bring them."""
    given = operands("large fp8", m, n, k, device=device)
    of_x, of_w = lie or ("rows", "columns")
    w_scale = scales_of(n, k, of_w, device, bool(lie))
    return given._replace(x_scale=scales_of(m, k, of_x, device, True) if lie else given.x_scale, w_scale=w_scale)


LIE = (None, ("rows", "columns"), ("columns", "columns"), ("columns", "rows"))
"""How the scales of x and of w lie; the first ones need not be copied."""


def check_added(
    m: int, n: int, k: int, configs: list[Config], device: str = "cuda", lies: Sequence[tuple[str, str] | None] = LIE
) -> None:
    """Compare products that are added to float32 with float64; ends the process if one is wrong."""
    for lie in lies:
        taken = [config for config in configs if lie is None or config.copied_scales]
        if taken:
            _check_added(m, n, k, taken, device, lie)


def of_added(
    m: int, n: int, k: int, configs: list[Config], lies: Sequence[tuple[str, str] | None] = LIE
) -> Iterator[tuple[Product, Config]]:
    """The kernels that `check_added` launches."""
    plain = Product("float8_e4m3fn", "float32", n, k, accumulate=True)
    for lie in lies:
        scales = [scales_of(rows, k, one, "meta", True) for rows, one in zip((m, n), lie or (), strict=False)]
        for config in configs:
            if lie is None:
                yield lying(plain, config, m)
            elif config.copied_scales:
                yield with_scales(plain, config, *scales), config


def _check_added(m: int, n: int, k: int, configs: list[Config], device: str, lie: tuple[str, str] | None) -> None:
    given, before = added_operands(m, n, k, device, lie), torch.randn(m, n, device=device)
    x = given.x.double() * given.x_scale.double().repeat_interleave(128, 1)[:, :k]
    w = given.w.double() * given.w_scale.double().repeat_interleave(128, 1)[:, :k]
    wanted, bound = before.double() + x @ w.t(), before.abs() * 2.0**-22 + x.abs() @ w.abs().t() * CUT
    for config in configs:
        y = on_card(before.clone())
        launching.multiply(config, all_on_card(given), y, accumulate=True)
        if not bool(((y.to(device).double() - wanted).abs() <= bound).all()):
            say(f"WRONG added {m} {n} {k} {short(config)} {lie}")
            raise SystemExit(1)
    say(f"added: {m} {n} {k}, {len(configs)} configs right")


def small_added() -> list[Config]:
    """Configs of `SMALL_ADDED`: every one that is scored."""
    return [one.config for one in scored(Sizes(*SMALL_ADDED, True, added=True))]


def run_added(_: str, no_times: bool = False) -> None:
    """Products with scales of each row of both operands, added to float32: one is compared, the others are timed."""
    check_added(*SMALL_ADDED, small_added())
    for shape in EDGES_ADDED:
        check_added(*shape, tiny_copied(), lies=LIE[1:])
    flush = torch.empty(FLUSHED, dtype=torch.uint8, device="cuda")
    for m, n, k in () if no_times else ADDED:
        given, y = added_operands(m, n, k), torch.zeros(m, n, device="cuda")
        best: dict[object, Config] = {}
        for _, config in scored(Sizes(m, n, k, True, added=True)):
            best.setdefault((config.block_m, config.block_n, config.cluster), config)
        parts = [f"fast {2 * m * n * k / milliseconds(rivals('fp8', given)['fast'], flush) / 1e9:.0f}"]
        for config in list(best.values())[:8]:
            spent = milliseconds(partial(launching.multiply, config, given, y, accumulate=True), flush)
            parts.append(f"{short(config)} {2 * m * n * k / spent / 1e9:.0f}")
        say(f"added fp8 {m} {n} {k} TF: {' | '.join(parts)}")


class Across(NamedTuple):
    """A product in bfloat16 of which x, w or both lie across k."""

    m: int
    n: int
    k: int
    x_across: bool
    w_across: bool
    config: Config

    @property
    def product(self) -> Product:
        """What is compiled."""
        return Product("bfloat16", "bfloat16", self.n, self.k, x_across=self.x_across, w_across=self.w_across)

    def operands(self, device: str = "cuda") -> Operands:
        """Random operands, with gaps between the columns of those that lie across k."""
        given = operands("bf16", self.m, self.n, self.k, device=device)

        def turned(matrix: Tensor) -> Tensor:
            rows, columns = matrix.shape
            room = torch.full((columns, -(-rows // 8) * 8 + 8), float("nan"), dtype=matrix.dtype, device=device)
            return room[:, :rows].copy_(matrix.t()).t()

        x, w = (turned(t) if lies else t for t, lies in ((given.x, self.x_across), (given.w, self.w_across)))
        return Operands(x, w)


def across(few: bool) -> Iterator[Across]:
    """Products of which an operand lies across k; a few small ones for a sanitizer."""
    yield Across(300, 136, 200, True, True, large(128, 128, 2, 2, stages=2))
    yield Across(300, 136, 200, False, True, large(64, 64, 1, stages=3))
    if few:
        return
    yield Across(1, 72, 200, True, True, large(64, 64, 1))
    for x_across, w_across in ((False, True), (True, False), (True, True)):
        yield Across(1000, 2112, 1536, x_across, w_across, large(128, 256, 2, 2))
        yield Across(511, 264, 1544, x_across, w_across, large(256, 128, 2))


def run_across(_: str, few: bool = False) -> None:
    """Compare them with float64, and time three products of each kind beside torch's."""
    device = "cpu" if few else "cuda"
    for case in across(few):
        given = case.operands(device)
        y = on_card(torch.full((case.m, case.n), float("nan"), dtype=torch.bfloat16, device=device))
        launching.multiply(case.config, all_on_card(given), y)
        wanted, size = exact(given)
        off = (y.to(device).double() - wanted).abs()
        bad = ~(off <= wanted.abs() * 2.0**-8 + size * 2.0**-20 + 1e-30)  # NaN counts
        if bool(bad.any()):
            say(f"WRONG {case}: {int(bad.sum())} of {bad.numel()}")
            raise SystemExit(1)
    say("across: right")
    if few:
        return
    flush = torch.empty(FLUSHED, dtype=torch.uint8, device="cuda")
    for case in timed_across():
        given, y = case.operands(), torch.empty(case.m, case.n, dtype=torch.bfloat16, device="cuda")
        ways = rivals("bf16", given) | {short(case.config): partial(launching.multiply, case.config, given, y)}
        speeds = [
            f"{name} {2 * case.m * case.n * case.k / milliseconds(call, flush) / 1e9:.0f}"
            for name, call in ways.items()
        ]
        which = "x" * case.x_across + "w" * case.w_across
        say(f"across {which} {case.m} {case.n} {case.k} TF: {' | '.join(speeds)}")


def timed_across() -> Iterator[Across]:
    """Products that are timed, by the cost model's choice."""
    for n, k in ((2112, 7168), (4096, 7168), (7168, 2048)):
        for lie in ((False, True), (True, False), (True, True)):
            sizes = Sizes(4096, n, 2 * k, False, 0, False, *lie)
            yield Across(4096, n, k, *lie, scored(sizes)[0].config)


def run_calls(_: str) -> None:
    """The op itself: bits that repeat, a captured graph, the host time of a call."""
    import opmux

    x, w = torch.randn(2, 77, 512, device="cuda").bfloat16(), torch.randn(576, 512, device="cuda").bfloat16()
    y = opmux.linear(x, w, backend="deepgemm")
    torch.testing.assert_close(y, torch.nn.functional.linear(x, w), rtol=2e-2, atol=2e-1)
    assert torch.equal(y, opmux.linear(x, w, backend="deepgemm")), "other bits"
    row = x[0, :1]
    opmux.linear(row, w, backend="deepgemm")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        z, one = opmux.linear(x, w, backend="deepgemm"), opmux.linear(row, w, backend="deepgemm")
    z.zero_()
    one.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(z, y), "a captured call gives other bits"
    torch.testing.assert_close(one, torch.nn.functional.linear(row, w), rtol=2e-2, atol=2e-1)
    given = torch.empty(1, len(w), dtype=torch.bfloat16, device="cuda")
    opmux.policy.prefer("deepgemm")  # a call that names its backend is checked in full each time
    for name, call in {
        "opmux.linear, the backend named": lambda: opmux.linear(row, w, backend="deepgemm"),
        "opmux.linear, the backend preferred": lambda: opmux.linear(row, w),
        "opmux.linear, the backend preferred, into a given result": lambda: opmux.linear(row, w, out=given),
        "opmux.linear.bind": partial(opmux.linear.bind(row, w), row, w),
        "the target, into a given result": partial(targets.linear, row, w, None, config=last_config(row, w), out=given),
        "torch": lambda: torch.nn.functional.linear(row, w),
        "torch.empty_like": lambda: torch.empty_like(row),
        "the launch alone, kept": kept_launch(row, w),
        "the launch alone, its arguments packed each time": packed_launch(row, w),
    }.items():
        best = float("inf")
        for _ in range(5):
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(300):
                call()
            best = min(best, (time.perf_counter() - started) / 300 * 1e6)
        say(f"host time of {name}: {best:.2f} us")
    say("calls: right")


def kept_launch(row: Tensor, w: Tensor) -> Callable[[], object]:
    """The native launch that a call like the ones before makes."""
    kept = next(one for alike in launching._kept.values() for one in alike if one.same(row, w))
    return partial(kept.launch, row, w, row.new_empty(len(row), len(w)))


def last_config(row: Tensor, w: Tensor) -> Config:
    """The config of the launch that is kept for a call."""
    return next(one.config for alike in launching._kept.values() for one in alike if one.same(row, w))


def packed_launch(row: Tensor, w: Tensor) -> Callable[[], object]:
    """The same launch with arguments that are ready: little more than ``cuLaunchKernelEx``."""
    y, config = row.new_empty(len(row), len(w)), last_config(row, w)
    product, grid, arguments = launching._prepared(config, launching._ready(Operands(row, w)), y)
    values, index = [launching._value(argument, (row, w, y)) for argument in arguments], row.get_device()
    return partial(launching.kernel_of(product, config).on(index), *grid, launching.current_stream(index), *values)


def say(line: str) -> None:
    """Print at once: the process may be ended."""
    print(line, flush=True)


def sanitized() -> list[tuple[Product, Config]]:
    """What is launched under a sanitizer."""
    found = [*of_added(*TINY_ADDED, tiny_added()), *of_added(*TINY_COPIED, tiny_copied(), LIE[1:])]
    for family in FAMILIES:
        found += [kernel for case in tiny(family) for kernel in of_case(family, case)[:1]]
    return found + [(case.product, case.config) for case in across(few=True)]


def kernels(no_times: bool = False) -> list[tuple[Product, Config]]:
    """Everything that is launched."""
    found: dict[tuple[Product, Config], None] = {}
    found.update(dict.fromkeys(of_added(*SMALL_ADDED, small_added())))
    for shape in EDGES_ADDED:
        found.update(dict.fromkeys(of_added(*shape, tiny_copied(), LIE[1:])))
    for m, n, k in () if no_times else ADDED:
        best = [one.config for one in scored(Sizes(m, n, k, True, added=True))[:16]]
        found.update(dict.fromkeys(of_added(m, n, k, best, LIE[:1])))
    found.update(dict.fromkeys(sanitized()))
    for case in (*across(few=False), *(() if no_times else timed_across())):
        found[case.product, case.config] = None
    for family in FAMILIES:
        for case in checked(family):
            found.update(dict.fromkeys(of_case(family, case)))
        for m, n, k, configs in () if no_times else timed(family):
            found.update(dict.fromkeys(lying(product_of(family, n, k), config, m) for config in configs))
    return list(found)


def build(kernel: tuple[Product, Config]) -> str:
    """Compile one kernel; returns what went wrong, or nothing."""
    try:
        machine_code(source(*kernel))
    except Exception as error:
        return f"{kernel}: {error}"
    return ""


def compile_kernels(wanted: list[tuple[Product, Config]]) -> bool:
    """Compile kernels in as many processes as there are cores; says what does not compile, and whether all do."""
    started = time.perf_counter()
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=multiprocessing.get_context("fork")) as pool:
        problems = [problem for problem in pool.map(build, wanted, chunksize=4) if problem]
    say(f"compiled {len(wanted)} kernels in {time.perf_counter() - started:.1f} s")
    for problem in problems:
        say(problem)
    return not problems


def run_apart(steps: list[tuple[str, Callable[[str], None], float]], times: Callable[[str], None]) -> bool:
    """Run each step in a process of its own until its time is up; says whether all succeeded.

    Args:
        steps: families, what is run of them, and seconds.
        times: the step that is left out for a family of which another one failed.
    """
    fork = multiprocessing.get_context("fork")  # nothing has touched the GPU yet
    wrong = set()
    for family, step, seconds in steps:
        if step is times and family in wrong:
            say(f"{family}: not timed")
            continue
        process = fork.Process(target=step, args=(family,))
        began = time.perf_counter()
        process.start()
        process.join(seconds)
        if process.is_alive():
            process.kill()
            process.join(10)
            say(f"HUNG {family} {getattr(step, '__name__', 'step')}: ended after {seconds:.0f} s")
        if process.exitcode != 0:
            wrong.add(family)
        say(f"# {family} {getattr(step, '__name__', 'step')} {time.perf_counter() - began:.1f} s")
    return not wrong


FAMILIES = ("large bf16", "large fp8", "small bf16", "small fp8")
SANITIZED = ("large fp8", "added fp8", "large bf16", "across bf16", "small fp8", "small bf16")
"""What a sanitizer runs, the most important first."""


def main() -> int:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compile", action="store_true", help="compile only; takes no GPU")
    parser.add_argument("--only", nargs="+", default=FAMILIES, choices=FAMILIES)
    parser.add_argument("--checks", type=float, default=15, help="seconds for the checks of a family")
    parser.add_argument("--times", type=float, default=12, help="seconds for the times of a family")
    parser.add_argument("--no-times", action="store_true", help="check results only")
    parser.add_argument("--tiny", choices=SANITIZED, help="only a few small products of a family, for a sanitizer")
    given = parser.parse_args()
    if given.tiny == "added fp8":
        check_added(*TINY_ADDED, tiny_added(), "cpu")
        check_added(*TINY_COPIED, tiny_copied(), "cpu", LIE[1:])
        return 0
    if given.tiny == "across bf16":
        run_across(given.tiny, few=True)
        return 0
    if given.tiny:
        run_checks(given.tiny, few=True)
        return 0
    failed = not compile_kernels(kernels(given.no_times))
    if given.compile:
        return int(failed)
    steps = [(family, run_checks, given.checks) for family in given.only]
    added = partial(run_added, no_times=given.no_times)
    steps += [("calls", run_calls, given.checks), ("large fp8", added, 2 * given.checks)]
    steps += [("across bf16", partial(run_across, few=given.no_times), 2 * given.checks)]
    if not given.no_times:
        steps += [(family, run_times, given.times) for family in given.only]
    return int(not run_apart(steps, run_times) or failed)


if __name__ == "__main__":
    sys.exit(main())
