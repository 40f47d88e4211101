"""Configs of the kernels for 8-bit codes and of grouped gradients on sm_90, and two faults, in one run.

``python benchmarks/tune_codes.py [--seed N] [--limit SECONDS] [--part NAME] [--dry]``. Several processes compile what
will be timed, and meanwhile paged attention on fp8 caches of uneven head sizes runs under compute-sanitizer and the
captured training step under pytest; then one process times every config in interleaved rounds with a cold cache, beside
a copy of as many bytes, or beside torch. With ``--seed`` the shapes are drawn and only the chosen configs are timed.
Each figure is printed as it is found; what fails is printed by name. ``--dry`` lists the configs, without a GPU.
"""

import argparse
import math
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import measure_paged
import measure_scaled
import torch
from faults import children
from torch import Tensor

import opmux
from opmux.bench.clocks import Timed, clock_for, interleave
from opmux.bench.data import Data
from opmux.plugin import parse_arch
from opmux_triton import repeats
from opmux_triton.grouped_gemm import heuristics
from opmux_triton.grouped_gemm import targets as groups
from opmux_triton.paged import configs as paged_configs
from opmux_triton.paged import targets as paged
from opmux_triton.quantization import configs as codes
from opmux_triton.quantization import fused_targets as fused
from opmux_triton.quantization import targets as quantization
from opmux_triton.scaled_gemm import hopper_heuristics, hopper_targets

HERE = Path(__file__).resolve().parent
SM_90 = parse_arch("sm_90")
FP8 = torch.float8_e4m3fn
WORKERS = 13
UNITS = 132
BLOCKS = {"1x128": (1, 128), "row": (1, -1), "tensor": (-1, -1), "128x128": (128, 128)}
Call = Callable[[Any], Any]


class Made(NamedTuple):
    """A work's call by config, what it is compared with, the bytes it moves, and how far its result is off."""

    call: Call
    peers: dict[str, Call]
    moved: float
    apart: Callable[[Any], float]


@dataclass(frozen=True)
class Work:
    """What is timed: ``shape`` is of the part's own form; ``configs`` by name, the chosen one first."""

    part: str
    title: str
    shape: Any
    configs: dict[str, Any]


def _changed(base: Any, changes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    found = {"chosen": base}
    for name, change in changes.items():
        try:
            config = replace(base, **change)
        except ValueError:
            continue
        if config not in found.values():
            found[name] = config
    return found


# Quantisation: a shape is (op, form of the blocks, rows, columns, dtype of the codes).

_AHEAD = (
    (1, 3, 32), (1, 4, 16), (2, 2, 16), (2, 3, 16), (3, 2, 16), (2, 3, 8), (2, 4, 8), (3, 3, 8), (4, 2, 8), (4, 3, 4),
)  # fmt: skip
NORMS = {f"p{p} s{s} w{w}": {"programs": p, "stages": s, "num_warps": w} for p, s, w in _AHEAD} | {
    "w8": {"num_warps": 8},
    "w4": {"num_warps": 4},
}
ROWS = {f"w{w}": {"num_warps": w} for w in (4, 8, 16, 32)}
PASSES = {f"n{n} w{w}": {"block": n, "num_warps": w} for n, w in ((1024, 8), (2048, 4), (2048, 8), (4096, 8))}
MATRIX = {
    f"parts {p}" + (f" w{w}" if w else ""): {"parts": p, **({"num_warps": w} if w else {})}
    for p, w in ((256, 0), (1024, 0), (512, 4), (512, 16), (1024, 4))
}


def _quantisation(shapes: list[tuple[str, str, int, int, torch.dtype]], most: bool) -> Iterator[Work]:
    for op, form, rows, columns, dtype in shapes:
        block, bucket = BLOCKS[form], (rows - 1).bit_length()
        features = {"k": columns, "hidden": columns, "n": columns // 2, "bucket(m)": bucket, "block": block}
        heuristic, changes = {
            "quantize": (codes.quantize_config, {"row": ROWS | PASSES, "tensor": MATRIX}.get(form, ROWS)),
            "rms_norm_quantize": (codes.norm_quantize_config, NORMS),
            "silu_and_mul_quantize": (codes.gate_quantize_config, ROWS),
        }[op]
        base: Any = heuristic(SM_90, features)
        title = f"{op} {form} {rows} x {columns}{' int8' if dtype == torch.int8 else ''}"
        yield Work("quantise", title, (op, form, rows, columns, dtype), _changed(base, changes if most else {}))


def _quantised(work: Work) -> Made:
    op, form, rows, columns, dtype = work.shape
    data = Data.seeded(torch.device("cuda"), torch.bfloat16)
    x, weight = data.normal(rows, columns), data.normal(columns)
    options = {"dtype": dtype, "block": BLOCKS[form], "scale_major": "k"}
    target: Any = {"quantize": quantization.quantize}.get(op) or getattr(fused, op)
    given: tuple[Tensor, ...] = (x,)
    if op == "rms_norm_quantize":
        given, options = (x, weight), {**options, "eps": 1e-6, "weight_offset": 0.0}
    width = columns // 2 if op.startswith("silu") else columns
    moved = x.numel() * 2 * (1 + (form == "tensor")) + rows * width

    some = (x[:64], *given[1:])
    right = getattr(opmux, op)(*some, **options, backend="reference")[0].float()

    def apart(config: Any) -> float:
        found = target(*given, **options, config=config)[0][:64].float()
        return 0.0 if form == "tensor" else float((found != right).float().mean())

    return Made(lambda config: target(*given, **options, config=config), {"copy": _copy(moved)}, moved, apart)


# Paged decode on fp8 caches: a shape is measure_paged's.

SHARES = (  # keys of a block against the heuristic's, warps, stages, programs
    (1, 4, 4, 3), (1, 4, 3, 3), (1, 4, 3, 4), (2, 4, 3, 2), (2, 4, 2, 2), (2, 4, 3, 3), (1, 8, 4, 2), (2, 8, 3, 2),
    (2, 8, 3, 1), (4, 8, 3, 1), (1, 2, 4, 4), (1, 4, 6, 2), (4, 4, 2, 1),
)  # fmt: skip
WHOLE = ((64, 4, 4), (64, 4, 3), (64, 4, 2), (128, 4, 3), (128, 4, 2), (128, 8, 3), (256, 8, 2), (64, 2, 4), (32, 4, 4))
"""For sequences that are not cut: keys of a block, warps, stages."""


def _paged(shapes: list[measure_paged.Drawn], most: bool) -> Iterator[Work]:
    for shape in shapes:
        features = {
            "page_size": shape.page_size, "head_dim": shape.head_dim, "value_dim": shape.head_dim,
            "bucket(batch)": (len(shape.lengths) - 1).bit_length(),
        }  # fmt: skip
        base = paged_configs.codes_config(SM_90, features)
        assert base.shares is not None
        found = {"chosen": base}
        if len(shape.lengths) * shape.kv_heads > base.shares.most * UNITS:  # whole sequences
            for block, warps, stages in WHOLE if most else ():
                path = replace(base.decode, block_n=block, num_warps=warps, num_stages=stages)
                if path != base.decode:
                    found[f"whole n{block} w{warps} s{stages}"] = replace(base, decode=path)
            yield Work("paged", shape.title, shape, found)
            continue
        for times, warps, stages, programs in SHARES if most else ():
            block = base.shares.block_n * times
            shares = replace(base.shares, block_n=block, num_warps=warps, num_stages=stages, programs=programs)
            if shares != base.shares:
                found[f"n{block} w{warps} s{stages} p{programs}"] = replace(base, shares=shares)
        yield Work("paged", shape.title, shape, found)


def _decoded(work: Work) -> Made:
    tensors, bounds = measure_paged.tensors_of(work.shape, Data.seeded(torch.device("cuda"), torch.bfloat16))
    options = {"scale": None, "softcap": 0.0, "window": (-1, -1), "causal": True, **bounds}

    def call(config: Any) -> Tensor:
        return paged.paged_attention_codes(*tensors, **options, config=config)

    @cache
    def right() -> Tensor:
        wide = [t.float() if t is not None and t.dtype == torch.bfloat16 else t for t in tensors]
        return opmux.paged_attention(*wide, **bounds, backend="reference")

    def apart(config: Any) -> float:
        return float(((call(config).float() - right()).norm(dim=-1) / right().norm(dim=-1)).max())

    return Made(call, {"copy": _copy(work.shape.kv_bytes)}, work.shape.kv_bytes, apart)


# Gradients of grouped products: a shape is (op, groups, rows of each, n, k).

_TILES = (
    (128, 128, 64, 8, 3, True), (128, 128, 64, 4, 3, False), (128, 256, 64, 8, 3, False),
    (128, 256, 64, 8, 4, False), (256, 128, 64, 8, 3, False), (64, 256, 64, 4, 4, False), (64, 128, 32, 4, 3, True),
    (64, 128, 32, 4, 3, False), (64, 128, 16, 4, 2, True), (64, 64, 32, 4, 2, True), (32, 256, 16, 4, 2, True),
    (32, 128, 16, 4, 2, True), (64, 128, 16, 8, 2, True),
)  # fmt: skip
SUMS = {
    f"{m}x{n}x{k} w{w} s{s}{' early' if e else ''}": {
        "block_m": m, "block_n": n, "block_k": k, "num_warps": w, "num_stages": s, "early": e
    }
    for m, n, k, w, s, e in _TILES
}  # fmt: skip
INPUTS = {
    f"{m}x{n}x{k} w{w} s{s}": {"block_m": m, "block_n": n, "block_k": k, "num_warps": w, "num_stages": s}
    for m, n, k, w, s in ((128, 256, 64, 8, 3), (128, 256, 64, 8, 4), (128, 128, 64, 4, 4), (64, 256, 64, 4, 4))
}


def _gradients(shapes: list[tuple[str, int, int, int, int]], most: bool) -> Iterator[Work]:
    for op, count, rows, n, k in shapes:
        features = {"groups": count, "n": n, "k": k, "bucket(m)": (count * rows - 1).bit_length()}
        title = f"{op} {count} x {rows}, {n}, {k}"
        if op == "grouped_weight_grad":
            configs = _changed(heuristics.weight_grad(SM_90, features), SUMS if most else {})
        else:
            base = heuristics.backward(SM_90, features)
            configs = {"chosen": base}
            for name, tile in _changed(base.grad_x, INPUTS if most else {}).items():
                configs[f"x {name}"] = replace(base, grad_x=tile)
            late = {name: change for name, change in SUMS.items() if not change["early"]}
            for name, tile in _changed(base.grad_w, late if most else {}).items():
                configs[f"w {name}"] = replace(base, grad_w=tile)
            configs = {name: c for name, c in configs.items() if name == "chosen" or c != base}
        yield Work("gradients", title, (op, count, rows, n, k), configs)


def _grouped(work: Work) -> Made:
    op, count, rows, n, k = work.shape
    data = Data.seeded(torch.device("cuda"), torch.bfloat16)
    dy, x = data.normal(count * rows, n), data.normal(count * rows, k)
    offsets = torch.arange(count + 1, device="cuda", dtype=torch.int32) * rows
    ends = offsets[1:].contiguous()
    if op == "grouped_weight_grad":
        out = torch.zeros(count, n, k, device="cuda")
        moved = 8.0 * out.numel() + 2 * (dy.numel() + x.numel())

        def added(config: Any) -> Tensor:
            groups.grouped_weight_grad(out, dy, x, offsets, None, config=config)
            return out

        def apart(config: Any) -> float:
            out.zero_()
            found = added(config)[0]
            right = dy[:rows].float().T @ x[:rows].float()
            return float((found - right).norm() / right.norm())

        peers = {"torch": lambda _: torch._grouped_mm(dy.T, x, offs=ends), "copy": _copy(int(moved))}
        return Made(added, peers, moved, apart)
    w = data.normal(count, n, k)

    def both(config: Any) -> Any:
        return groups.grouped_linear_backward(dy, x, w, offsets, None, output_mask=(True, True), config=config)

    def far(config: Any) -> float:
        of_x, of_w = (t.float() for t in both(config))
        x_right, w_right = dy[:rows].float() @ w[0].float(), dy[:rows].float().T @ x[:rows].float()
        return max(
            float((found - right).norm() / right.norm())
            for found, right in ((of_x[:rows], x_right), (of_w[0], w_right))
        )

    def peer(_: Any) -> Any:
        return torch._grouped_mm(dy, w, offs=ends), torch._grouped_mm(dy.T, x, offs=ends)

    return Made(both, {"torch": peer}, 2.0 * (2 * w.numel() + 2 * dy.numel() + 3 * x.numel()), far)


# Products of codes with scales of blocks: a shape is (m, n, k).


def _products(shapes: list[tuple[int, int, int]], most: bool) -> Iterator[Work]:
    for m, n, k in shapes:
        sizes = hopper_heuristics.Sizes(m, n, k, True, False)
        ranked = [hopper_heuristics.config(c, sizes) for c in sorted(hopper_heuristics.choices(sizes))]
        configs = {"chosen": ranked[0]}
        for config in ranked[:5] if most else []:
            for ahead in (False, True):
                one = replace(config, ahead=ahead)
                if one != ranked[0] and not (ahead and config.warpgroups == 3):
                    name = f"{config.block_m}x{config.block_n} {config.cut}{' swap' if config.swap else ''}"
                    configs[name + (" ahead" if ahead else "")] = one
        yield Work("scaled", f"scaled_linear 1x128 {m}, {n}, {k}", (m, n, k), configs)


def _scaled(work: Work) -> Made:
    given = measure_scaled.made(measure_scaled.Shape("square", *work.shape), "cuda")
    m, n, k = work.shape

    def call(config: Any) -> Tensor:
        return hopper_targets.scaled_linear(*given, None, out_dtype=torch.bfloat16, config=config)

    def apart(config: Any) -> float:
        some = (given[0][:256], given[1], given[2][:256], given[3])
        right = opmux.scaled_linear(*some, None, out_dtype=torch.float32, backend="reference")
        return float((call(config)[:256].float() - right).norm() / right.norm())

    peers = {
        name: (lambda _, peer=peer: peer())
        for name, peer in measure_scaled.peers(given, measure_scaled.Shape("square", m, n, k))
    }
    for name in list(peers):
        try:
            peers[name](None)
        except RuntimeError:  # this torch has no such product
            del peers[name]
    return Made(call, peers, float(m * k + n * k + 2 * m * n), apart)


def _copy(moved: int) -> Call:
    source = torch.empty(moved // 2, dtype=torch.int8, device="cuda")
    into = torch.empty_like(source)
    return lambda _: into.copy_(source)


MAKERS = {"quantise": _quantised, "paged": _decoded, "gradients": _grouped, "scaled": _scaled}


def works(seed: int | None) -> list[Work]:
    """Fixed shapes with all configs; with a seed, drawn shapes with the chosen ones."""
    most = seed is None
    if seed is None:
        norms = [("rms_norm_quantize", f, 16384, 8192, FP8) for f in ("1x128", "row")]
        norms += [("rms_norm_quantize", "1x128", 32768, 4096, FP8), ("rms_norm_quantize", "row", 18432, 7168, FP8)]
        more = [("quantize", f, 16384, 8192, FP8) for f in ("row", "tensor", "128x128")]
        more += [("quantize", "1x128", 16384, 8192, torch.int8), ("silu_and_mul_quantize", "row", 16384, 8192, FP8)]
        decode = [shape for shape in measure_paged.drawn(31, 2, itemsize=1) if shape.kv_bytes >= 200e6]
        decode.append(next(s for s in measure_paged.drawn(7, 4, itemsize=1) if len(s.lengths) > 1056))
        sums = [(8, 4096, 4096, 7168), (16, 2, 7168, 2048), (128, 12, 1536, 2048), (8, 317, 7168, 2048)]
        both = [(8, 4096, 4096, 7168), (8, 291, 7168, 2048)]
        products = [(4096, 7168, 16384), (4096, 4096, 7168), (4096, 24576, 1536), (128, 4096, 7168)]
    else:
        drawn = random.Random(seed)
        norms, more = [], []
        for form in ("1x128", "row"):
            for columns in (8192, *drawn.sample((2048, 4096, 5120, 6144, 7168, 12288, 16384), 3)):
                norms.append(("rms_norm_quantize", form, 2**28 // 2 // columns, columns, FP8))
        for form in ("row", "tensor", "128x128"):
            for columns in (8192, drawn.choice((4096, 5120, 7168))):
                more.append(("quantize", form, 2**28 // 2 // columns, columns, FP8))
        more += [("quantize", "1x128", 16384, 8192, torch.int8), ("silu_and_mul_quantize", "row", 16384, 8192, FP8)]
        decode = [s for s in measure_paged.drawn(seed, 4, itemsize=1) if s.kv_bytes >= 200e6][:6]
        decode += [s for s in measure_paged.drawn(31, 2, itemsize=1) if s.kv_bytes >= 200e6]
        sums, both = [(8, 4096, 4096, 7168)], [(8, 4096, 4096, 7168)]
        for found in (sums, both):
            for _ in range(4):
                n, k = drawn.choice(((7168, 2048), (4096, 7168), (1536, 2048), (5760, 2880)))
                found.append((drawn.choice((8, 16, 32)), round(math.exp(drawn.uniform(1, 7))), n, k))
        products = [(4096, 7168, 16384), (4096, 4096, 7168)]
        for _ in range(4):
            products.append(
                (round(math.exp(drawn.uniform(5, 9))) * 4, *drawn.sample((2048, 4096, 5120, 7168, 9216), 2))
            )
    gradients = [("grouped_weight_grad", *s) for s in sums] + [("grouped_linear_backward", *s) for s in both]
    return [
        *_quantisation(norms, most),
        *_paged(decode, most),
        *_gradients(gradients, most),
        *_products(products, most),
        *_quantisation(more, most),
    ]


def compiled(work: Work, names: list[str]) -> dict[str, str]:
    """Call each config once, in a process of its own: what goes wrong, by name."""
    wrong = {}
    call = MAKERS[work.part](work).call
    for name in names:
        try:
            call(work.configs[name])
            torch.cuda.synchronize()
        except Exception as error:
            wrong[name] = _said(error)
            if "CUDA error" in wrong[name]:  # nothing works in this process from now on
                return {**wrong, **dict.fromkeys(names[names.index(name) + 1 :], "not tried after that")}
    return wrong


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def timed(work: Work, wrong: dict[str, str]) -> None:
    """Time the configs that work, and print a line."""
    call, peers, moved, apart = MAKERS[work.part](work)
    names = [name for name in work.configs if name not in wrong]
    errors = {name: apart(work.configs[name]) for name in names}
    contenders = {name: Timed(partial(call, work.configs[name])) for name in names}
    contenders |= {name: Timed(partial(peer, None)) for name, peer in peers.items()}
    clock = clock_for(torch.device("cuda"))
    for name, one in contenders.items():
        clock.warm_up(name, one)
    times = {n: median(t) for n, t in interleave(clock, contenders, 9, 1.5, shuffled=random.Random(0)).items()}
    fastest = sorted((t, name) for name, t in times.items() if name not in peers)
    shown = " | ".join(f"{name} {t:.1f}" for t, name in fastest)
    best = " ".join(f"{n} {times[n]:.1f} ({times[n] / times.get('chosen', math.nan):.3f})" for n in peers)
    rate, far = moved / fastest[0][0] / 1e6, max(errors.values())
    print(f"{work.title}: {best} ours: {shown} [{rate:.2f} TB/s, apart {far:.2g}]", flush=True)
    repeats.forget()


def main() -> int:
    """Compile, check, time, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int)
    parser.add_argument("--limit", type=float, default=140)
    parser.add_argument("--part", action="append", choices=[*MAKERS, "faults"])
    parser.add_argument("--dry", action="store_true")
    given = parser.parse_args()
    begun = time.monotonic()
    parts = given.part or [*MAKERS, "faults"]
    todo = [work for work in works(given.seed) if work.part in parts]
    if given.dry:
        for work in todo:
            print(work.title, *(f"  {name}" for name in work.configs), sep="\n")
        return 0
    running = dict(children(HERE.parent / "tests")) if "faults" in parts else {}
    wrong: dict[str, dict[str, str]] = {work.title: {} for work in todo}
    tasks = [(w, names[i : i + 3]) for w in todo for names in ([*w.configs],) for i in range(0, len(names), 3)]
    pool = ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn"))
    waiting = {pool.submit(compiled, *task): task for task in tasks}
    try:
        for done in as_completed(waiting, timeout=0.55 * given.limit):
            work, names = waiting[done]
            try:
                wrong[work.title] |= done.result()
            except Exception as error:  # the process died
                wrong[work.title] |= dict.fromkeys(names, _said(error))
    except TimeoutError:
        print("compiling took too long: what is left is compiled while it is timed", flush=True)
    pool.shutdown(wait=False, cancel_futures=True)
    print(f"compiled after {time.monotonic() - begun:.0f} s", flush=True)
    for title, found in wrong.items():
        for name, text in found.items():
            print(f"{title}: {name}: {text}", flush=True)
    for name, child in running.items():
        try:
            text = child.communicate(timeout=max(5, 0.6 * given.limit - (time.monotonic() - begun)))[0]
        except subprocess.TimeoutExpired:
            child.kill()
            text = "ended by the limit\n" + child.communicate()[0]
        lines = [line for line in text.splitlines() if line.strip()]
        print(f"== {name}: {child.returncode}", *lines[:30], *(["..."] if len(lines) > 60 else []), *lines[30:][-30:],
              sep="\n  ", flush=True)  # fmt: skip
    for work in todo:
        if time.monotonic() - begun > given.limit:
            print(f"{work.title}: left out, the limit is over", flush=True)
            continue
        try:
            timed(work, wrong[work.title])
        except Exception as error:
            print(f"{work.title}: {_said(error)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
