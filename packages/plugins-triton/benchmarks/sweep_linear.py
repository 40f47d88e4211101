"""Configs of the linear family side by side with cuBLAS, on a GPU.

    python sweep_linear.py --out FILE.json [--seconds 120] [--only REGEX] [--roles] [--dry]

Every variant is compiled, run once and checked in a process of its own pool first, with a limit on its time: one that
hangs or fails is left out. Then variants and cuBLAS are timed in interleaved rounds on random data; for few rows by
graph replays that rotate among weights larger than the L2. Medians; TFLOPS, or TB/s of weights where rows are few.

With --roles it is the Gluon kernel's turn: a few small products in a process of their own first, then every tile
against float32 in all arrangements of operands, then the shapes where it might pay, both ways that matter: single calls
on a flushed cache, and calls one after the other until the card runs at its power limit.
"""

import argparse
import json
import multiprocessing
import os
import random
import re
import statistics
import sys
import threading
import time
import traceback
from typing import Any

from opmux_triton.gemm.configs import halves, roles, vector

Config = dict[str, Any]
Shape = tuple[str, int, int, int]

LARGE = [(8192, 8192, 8192), (4096, 24576, 1536), (4096, 7168, 16384)]
WEIGHTS = [(8192, 8192), (24576, 1536), (7168, 16384)]
FEW = [(m, n, k) for m in (1, 16) for n, k in WEIGHTS] + [(128, 7168, 16384)]
OTHERS = [(14336, 4096), (4096, 14336), (6144, 4096)]
MORE = [(m, n, k) for m in (1, 16) for n, k in OTHERS]
MORE += [(64, 8192, 8192), (128, 8192, 8192), (128, 24576, 1536), (256, 8192, 8192)]
MORE += [(512, 4096, 14336), (4096, 14336, 4096)]
BACKWARD = [("grad_x", 4096, 24576, 1536), ("grad_w", 4096, 24576, 1536), ("grad_x", 8192, 8192, 8192)]


MODEL_WEIGHTS = [(3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192), (32768, 2048)]
"""The weights of benchmarks/model.py: 1.1 billion parameters."""


def model_shapes() -> list[Shape]:
    """The products of a model's prefill, decode and training step."""
    found = [("linear", m, n, k) for m in (16384, 8) for n, k in MODEL_WEIGHTS]
    return found + [(form, 8192, n, k) for form in ("grad_x", "grad_w") for n, k in MODEL_WEIGHTS]


def shapes() -> list[Shape]:
    """Form, m, n and k of each product."""
    return [("linear", *s) for s in (*LARGE, *FEW, *MORE)] + BACKWARD


def variants(shape: Shape) -> dict[str, Config]:
    """Overrides of the heuristic's config by name, to try for a shape."""
    form, m, n, k = shape
    heuristic: dict[str, Config] = {}
    tma = {"tma": True, "store": "descriptor", "xcds": 1, "sum_rows": 16, "cut_rest": False}
    if form == "linear" and m == 1:
        tried = [(8, 512), (4, 1024), (2, 2048), (1, 2048)] if (n, k) in OTHERS else []
        rows = {f"r{r}k{b}": {"kind": "vector", "rows": r, "block_k": b, "num_warps": 4} for r, b in tried}
        return heuristic | rows

    def tile(bm: int, bn: int, bk: int, warps: int, stages: int, **more: Any) -> Config:
        base = {"kind": "tiles", "flatten": True, "parts": 1, "swap": False, "group": 8, "per_unit": 1, **tma}
        blocks = {"block_m": bm, "block_n": bn, "block_k": bk, "num_warps": warps, "num_stages": stages}
        return base | blocks | more

    sh: Config = {"kind": "shares", "flatten": False}
    cut: Config = {"cut_rest": True, "flatten": False}
    if m <= 16:
        if (n, k) not in (*OTHERS, *MODEL_WEIGHTS):
            return heuristic
        return heuristic | {
            "64k256s5": tile(64, 16, 256, 4, 5, swap=True),
            "64k128s5u2": tile(64, 16, 128, 4, 5, swap=True, per_unit=2),
            "64k128s3u3": tile(64, 16, 128, 4, 3, swap=True, per_unit=3),
            "sh64k256s5": tile(64, 16, 256, 4, 5, swap=True, **sh),
        }
    if m <= 64:
        return heuristic | {
            "sh128k128s4": tile(128, 64, 128, 4, 4, swap=True, **sh),
            "sh128k128s4w8": tile(128, 64, 128, 8, 4, swap=True, **sh),
        }
    if m <= 128:
        return heuristic | {
            "64x128k64s8": tile(64, 128, 64, 4, 8, swap=True),
            "64x128k64s4u2": tile(64, 128, 64, 4, 4, swap=True, per_unit=2),
            "128x128k64s3u2": tile(128, 128, 64, 4, 3, per_unit=2),
            "128x128k64s6": tile(128, 128, 64, 8, 6, parts=2),
        }
    found = {
        "256s4p2": tile(128, 256, 64, 8, 4, parts=2),
        "256s4p2cut": tile(128, 256, 64, 8, 4, parts=2, cut_rest=True),
        "256s4p2cutloop": tile(128, 256, 64, 8, 4, parts=2, **cut),
        "128s3u2": tile(128, 128, 64, 4, 3, parts=2, per_unit=2),
        "128s6w8": tile(128, 128, 64, 8, 6, parts=2),
    }
    if form == "linear" and m <= 512:
        found.update(heuristic)
        found["256s4cutswap"] = tile(128, 256, 64, 8, 4, swap=True, **cut)
        found["256x128s4cut"] = tile(256, 128, 64, 8, 4, **cut)
        found["256x128s4cutswap"] = tile(256, 128, 64, 8, 4, swap=True, **cut)
        found["128k128s3w8"] = tile(128, 128, 128, 8, 3, parts=2)
    return found


ROLES = {
    "256": roles(128, 256, 64, 4, 2, parts=4),
    "256g16": roles(128, 256, 64, 4, 2, parts=4, group=16),
    "256cut": roles(128, 256, 64, 4, 2, parts=4, cut="rest"),
    "256all": roles(128, 256, 64, 4, 2, parts=4, cut="all", spin=True),
    "tall": roles(256, 128, 64, 4, 2, slots=1),
    "tallall": roles(256, 128, 64, 4, 2, slots=1, cut="all"),
    "tallallspin": roles(256, 128, 64, 4, 2, slots=1, cut="all", spin=True),
    "alt128": roles(128, 128, 64, 5, 2, alternate=True),
    "alt128s6": roles(128, 128, 64, 6, 2, alternate=True, slots=1),
    "alt256": roles(64, 256, 64, 4, 2, alternate=True, parts=4),
    "192": roles(192, 128, 64, 5, 3, slots=1),
    "192g4": roles(192, 128, 64, 5, 3, slots=1, group=4),
    "128": roles(128, 128, 64, 6, 2, slots=1),
    "128spin": roles(128, 128, 64, 6, 2, slots=1, spin=True),
    "128k128spin": roles(128, 128, 128, 3, 2, slots=1, spin=True),
    "few64": roles(64, 128, 128, 4, 1, slots=1, swap=True),
    "few64spin": roles(64, 128, 128, 4, 1, slots=1, swap=True, spin=True),
    "few64cut": roles(64, 128, 64, 8, 1, slots=1, swap=True, cut="all", spin=True),
    "few128": roles(128, 128, 64, 6, 2, slots=1, swap=True, cut="all"),
    "few128spin": roles(128, 128, 64, 6, 2, slots=1, swap=True, cut="all", spin=True),
    "few256spin": roles(256, 128, 64, 4, 2, slots=1, swap=True, cut="all", spin=True),
}
"""The tiles of the Gluon kernel by name."""

_WIDE = ("256", "256g16", "tall", "alt128", "alt128s6", "alt256")
_RESTS = ("256", "256cut", "tall", "alt128", "192", "192g4")
_WIDER = (*_WIDE, "192", "256cut")
ROLE_SHAPES: dict[Shape, tuple[str, ...]] = {
    ("linear", 128, 7168, 16384): ("few64", "few64spin", "few64cut", "few128", "few128spin", "few256spin"),
    ("linear", 128, 8192, 8192): ("few64", "few64spin", "few64cut", "few128", "few128spin", "few256spin"),
    ("linear", 256, 8192, 8192): ("128", "128spin", "128k128spin", "256all", "tallall", "tallallspin"),
    ("linear", 512, 4096, 14336): ("128", "128spin", "128k128spin", "256all", "tallall", "tallallspin"),
    ("linear", 4096, 24576, 1536): _WIDE,
    ("grad_x", 4096, 24576, 1536): _RESTS,
    ("grad_w", 4096, 24576, 1536): _WIDER,
    ("linear", 16384, 3072, 2048): _WIDER,
    ("linear", 16384, 2048, 2048): _WIDER,
    ("linear", 16384, 2048, 8192): _WIDE,
    ("grad_x", 8192, 3072, 2048): _WIDER,
    ("grad_x", 8192, 2048, 2048): _WIDER,
    ("grad_x", 8192, 2048, 8192): _WIDE,
    ("grad_w", 8192, 3072, 2048): (*_RESTS, "alt256"),
    ("grad_w", 8192, 2048, 2048): (*_RESTS, "128spin"),
    ("grad_w", 8192, 2048, 8192): _WIDE,
    ("linear", 8192, 8192, 8192): ("256", "tall", "alt128"),
    ("linear", 16384, 16384, 2048): ("256", "256g16", "tall", "alt128s6"),
    ("linear", 16384, 32768, 2048): ("256", "256g16", "tall", "alt128s6"),
    ("grad_w", 8192, 16384, 2048): ("256", "256g16", "tall", "alt128s6"),
    ("grad_x", 8192, 16384, 2048): ("256", "256g16", "tall", "alt128s6"),
    ("linear", 4096, 7168, 16384): ("256", "tall", "alt128"),
    ("linear", 1, 8192, 8192): (),
    ("linear", 1, 7168, 16384): (),
}
"""Shapes that lost to cuBLAS or were close to it, and which tiles to try."""

LINES = [(1, 8192, 4), (1, 8192, 8), (1, 4096, 4), (2, 4096, 8), (4, 2048, 8), (1, 16384, 8), (1, 2048, 4)]
"""Rows, block of k and warps of the one-row product."""


def role_variants(shape: Shape) -> dict[str, Config]:
    """Whole configs by name, the present one first."""
    found = {"now": product_config(shape, {})}
    if shape[1] == 1:
        for rows, block_k, warps in LINES:
            line = {"kind": "vector", "rows": rows, "block_k": block_k, "num_warps": warps}
            found[f"r{rows}k{block_k}w{warps}"] = line
    return found | {name: ROLES[name] for name in ROLE_SHAPES[shape]}


def product_config(shape: Shape, over: Config) -> Config:
    """The heuristic's config of a product with overrides."""
    from opmux.arch import parse_arch

    form, m, n, k = shape
    sizes = {"linear": (m, n, k), "grad_x": (m, k, n), "grad_w": (n, k, m)}[form]
    arch = parse_arch("sm_90")
    heuristic = vector(arch, n, k) if form == "linear" and m == 1 else halves(arch, *sizes)
    return heuristic | over


def inputs(shape: Shape, copies: int, torch: Any) -> list[tuple[Any, Any]]:
    """Operands of a form: (x, w), (grad, w) or (grad, x); random, the large one in several copies."""
    form, m, n, k = shape
    sizes = {"linear": ((m, k), (n, k)), "grad_x": ((m, n), (n, k)), "grad_w": ((m, n), (m, k))}[form]
    first = torch.randn(sizes[0], device="cuda", dtype=torch.bfloat16)
    return [(first, torch.randn(sizes[1], device="cuda", dtype=torch.bfloat16)) for _ in range(copies)]


def peer(shape: Shape, pair: tuple[Any, Any], torch: Any) -> Any:
    """The product by cuBLAS."""
    a, b = pair
    if shape[0] == "linear":
        return torch.nn.functional.linear(a, b)
    return a @ b if shape[0] == "grad_x" else a.t() @ b


def ours(shape: Shape, pair: tuple[Any, Any], config: Config) -> Any:
    """The product by a config."""
    from opmux_triton.gemm import targets

    a, b = pair
    if shape[0] == "linear":
        return targets.linear(a, b, None, config=config)
    backward = {"grad_x": config, "grad_w": config, "grad_bias": {}}
    if shape[0] == "grad_x":
        like = a.new_empty((a.shape[0], b.shape[1]))
        return targets.linear_backward(a, like, b, output_mask=(True, False, False), config=backward)[0]
    like = a.new_empty((a.shape[1], b.shape[1]))
    return targets.linear_backward(a, b, like, output_mask=(False, True, False), config=backward)[1]


def check_variant(job: tuple[Shape, str, Config]) -> tuple[Shape, str, str]:
    """In a worker: compile, run, compare with cuBLAS."""
    shape, name, config = job
    try:
        import torch

        torch.manual_seed(0)
        pair = inputs(shape, 1, torch)[0]
        out = ours(shape, pair, config)
        torch.cuda.synchronize()
        out = ours(shape, pair, config)
        expected = peer(shape, pair, torch).float()
        error = float((out.float() - expected).norm() / expected.norm())
        return shape, name, "" if error < 5e-3 else f"relative error {error:.2e}"
    except Exception as error:
        return shape, name, f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


CASES = [
    (1, 1000, 777, "bfloat16", True, "plain"),
    (1, 8192, 4096, "float16", True, "plain"),
    (1, 7168, 16384, "bfloat16", True, "plain"),
    (3, 1000, 1536, "bfloat16", True, "plain"),
    (16, 8191, 4096, "bfloat16", True, "plain"),
    (16, 24576, 1536, "float16", True, "plain"),
    (15, 8191, 1025, "float16", True, "transposed"),
    (17, 8192, 520, "float16", True, "plain"),
    (64, 1024, 8192, "bfloat16", True, "plain"),
    (100, 264, 2048, "bfloat16", True, "plain"),
    (127, 8200, 1040, "bfloat16", True, "plain"),
    (128, 7168, 4104, "bfloat16", True, "plain"),
    (300, 1000, 77, "bfloat16", True, "plain"),
    (300, 8200, 4104, "bfloat16", True, "plain"),
    (1023, 4104, 1032, "bfloat16", True, "plain"),
    (4097, 8200, 520, "float16", True, "plain"),
    (4096, 1544, 4104, "bfloat16", True, "plain"),
    (4096, 8193, 512, "bfloat16", False, "plain"),
    (4096, 2048, 4097, "float16", True, "plain"),
    (4095, 8191, 1025, "bfloat16", True, "plain"),
    (2048, 4096, 0, "bfloat16", True, "plain"),
    (2048, 4096, 1024, "bfloat16", True, "sliced"),
    (2048, 4096, 1024, "bfloat16", True, "transposed"),
    (2047, 4096, 1024, "float16", True, "transposed"),
    (2049, 4097, 1025, "bfloat16", True, "transposed"),
    (4096, 8192, 2056, "bfloat16", True, "transposed"),
    (24, 4096, 1024, "bfloat16", True, "folded"),
    (2400, 4096, 1024, "bfloat16", True, "folded"),
    (2400, 4096, 1024, "bfloat16", True, "gaps"),
    (65, 127, 129, "float32", True, "plain"),
    (511, 1025, 257, "float32", True, "transposed"),
    (1024, 1024, 512, "float32", True, "plain"),
    (5, 1024, 512, "float32", True, "plain"),
    (1, 1024, 512, "float32", True, "plain"),
]
"""m, n, k, dtype, bias, form: every arrangement of operands, by descriptors and by pointers, odd and even."""


def check_case(case: tuple[int, int, int, str, bool, str]) -> tuple[Any, str]:
    """In a worker: linear and its backward with the heuristics' configs against float64."""
    try:
        import torch

        import opmux

        m, n, k, dtype, has_bias, form = case
        torch.manual_seed(1)
        kind = getattr(torch, dtype)

        def make(*size: int) -> Any:
            if form == "sliced" and len(size) == 2:
                return torch.randn(size[0], size[1] * 2 + 16, device="cuda", dtype=kind)[:, 8 : 8 + size[1]]
            if form == "transposed" and len(size) == 2:
                return torch.randn(size[1], size[0], device="cuda", dtype=kind).t()
            if form == "folded" and len(size) == 2 and size[0] == m:
                whole = torch.randn(m // 6, 3, 5, size[1], device="cuda", dtype=kind)
                return whole[:, :2].transpose(0, 1)[:, :, 1:4]  # (2, m / 6, 3, size)
            if form == "gaps" and len(size) == 2 and size[0] == m:
                return torch.randn(m // 4, 5, size[1], device="cuda", dtype=kind)[:, :4]
            return torch.randn(*size, device="cuda", dtype=kind)

        x, w = make(m, k), make(n, k)
        bias = make(n) if has_bias else None
        name = "triton:float32" if dtype == "float32" else "triton"
        out = opmux.linear(x, w, bias, backend=name)
        x64, w64 = x.double(), w.double()
        exact = x64 @ w64.T + (bias.double() if has_bias else 0)
        found = [("out", out, exact)]
        grad = make(m, n)
        got = opmux.linear_backward(grad, x, w, backend=name)
        flat, flat_x = grad.double().reshape(m, n), x64.reshape(m, k)
        wanted = ((flat @ w64).reshape(x.shape), flat.T @ flat_x, flat.sum(0))
        found += list(zip(("grad_x", "grad_w", "grad_bias"), got, wanted, strict=True))
        wrong = []
        for what, value, want in found:
            if tuple(value.shape) != tuple(want.shape):
                wrong.append(f"{what} shape {tuple(value.shape)}")
                continue
            if want.numel() == 0:
                continue
            size = float(want.norm())
            error = float((value.double() - want).norm()) / size if size else float(value.double().abs().max())
            limit = {"float32": 2e-6, "float16": 6e-4, "bfloat16": 4e-3}[dtype]
            if not error < limit:
                wrong.append(f"{what} error {error:.1e}")
        return case, ", ".join(wrong)
    except Exception as error:
        return case, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


ROLE_SIZES = [
    (300, 1000, 776),
    (1023, 4104, 1032),
    (128, 7168, 2048),
    (4095, 1544, 2056),
    (2048, 4096, 1024),
    (65, 264, 8),
    (1, 8, 64),
    (8, 136, 4096),
    (640, 1536, 8192),
]
"""m, n and k: odd rows, blocks of all dims cut short, fewer tiles than programs and many more."""
SMOKE = ("256", "alt128", "192", "few128spin")


def check_tile(job: tuple[str, str, str]) -> tuple[str, str]:
    """In a worker: a tile of the Gluon kernel, in every arrangement of operands, against a product in float32."""
    name, dtype, extent = job
    try:
        import torch

        from opmux_triton.gemm.operands import matrix_of
        from opmux_triton.gemm.products import product

        torch.manual_seed(3)
        torch.backends.cuda.matmul.allow_tf32 = False
        kind, wrong = getattr(torch, dtype), []
        limit = {"float16": 6e-4, "bfloat16": 4e-3}[dtype]
        for m, n, k in ROLE_SIZES if extent == "all" else [(300, 1000, 776), (2048, 4096, 1024)]:
            for a_turned, b_turned, has_bias in ((0, 0, 1), (0, 0, 0), (0, 1, 0), (1, 1, 0)):
                if extent != "all" and has_bias:
                    continue
                if a_turned and m % 8:
                    continue
                a = torch.randn((k, m) if a_turned else (m, k), device="cuda", dtype=kind)
                b = torch.randn((k, n) if b_turned else (n, k), device="cuda", dtype=kind)
                bias = torch.randn(n, device="cuda", dtype=kind) if has_bias else None
                outs = [torch.full((m, n), float("nan"), device="cuda", dtype=kind) for _ in range(2)]
                operands = (matrix_of(a, bool(a_turned)), matrix_of(b, bool(b_turned)))
                for out in outs:
                    product(*operands, bias, out, (m, n, k), ROLES[name])
                exact = (a.t() if a_turned else a).float() @ (b if b_turned else b.t()).float()
                exact = exact + bias.float() if bias is not None else exact
                error = float((outs[0].float() - exact).norm() / exact.norm())
                where = f"{m} {n} {k} {a_turned}{b_turned}{has_bias}"
                if not error < limit:
                    wrong.append(f"{where} error {error:.1e}")
                elif not torch.equal(*outs):
                    wrong.append(f"{where} differs from run to run")
        return f"{name} {dtype}", "; ".join(wrong)
    except Exception as error:
        return f"{name} {dtype}", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def in_pool(jobs: list[Any], function: Any, limit: float, workers: int) -> list[Any]:
    """Results of jobs in processes; None for those that were not done in time."""
    context = multiprocessing.get_context("spawn")
    pool = context.Pool(workers, maxtasksperchild=None)
    results = collect([pool.apply_async(function, (job,)) for job in jobs], limit)
    pool.terminate()
    return results


def collect(pending: list[Any], limit: float) -> list[Any]:
    """What was promised; None for what is not there in time."""
    end = time.monotonic() + limit
    results = []
    for one in pending:
        try:
            results.append(one.get(timeout=max(0.01, end - time.monotonic())))
        except Exception:  # a limit that has passed, or a worker that broke
            results.append(None)
    return results


def replay(calls: list[Any], torch: Any) -> Any:
    """A graph of calls."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call() for call in calls]
    del kept
    return graph


def time_shape(shape: Shape, configs: dict[str, Config], seconds: float, torch: Any) -> dict[str, float]:
    """Median microseconds of each variant and of cuBLAS."""
    form, m, n, k = shape
    few = form == "linear" and m <= 128
    copies = max(2, -(-300_000_000 // (n * k * 2))) if few else 1
    pairs = inputs(shape, copies, torch)
    names = ["cublas", *configs]
    runs: dict[str, Any] = {}
    repeats = (2 if n * k > 1e8 else 4) if few else 2
    for name in names:
        if name == "cublas":
            calls = [lambda p=p: peer(shape, p, torch) for p in pairs]
        else:
            calls = [lambda p=p, c=configs[name]: ours(shape, p, c) for p in pairs]
        try:
            if few:
                graph = replay(calls * repeats, torch)
                runs[name] = (graph.replay, copies * repeats)
            else:
                calls[0]()
                runs[name] = (lambda call=calls[0]: [call() for _ in range(2)], 2)
        except Exception:
            print(f"{shape} {name}: {traceback.format_exc(limit=1)[-200:]}", flush=True)
    torch.cuda.synchronize()
    times: dict[str, list[float]] = {name: [] for name in runs}
    end = time.monotonic() + seconds
    rounds = 0
    while rounds < 5 or (time.monotonic() < end and rounds < 60):
        order = list(runs)
        random.shuffle(order)
        for name in order:
            run, count = runs[name]
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            run()
            stop.record()
            stop.synchronize()
            times[name].append(start.elapsed_time(stop) * 1000 / count)
        rounds += 1
        if rounds >= 5 and time.monotonic() > end:
            break
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def time_both(
    shape: Shape, configs: dict[str, Config], seconds: float, flush: Any, torch: Any
) -> dict[str, tuple[float, float]]:
    """Microseconds of cuBLAS and each variant: single calls on a flushed cache, and one call after the other."""
    pair = inputs(shape, 1, torch)[0]
    runs: dict[str, Any] = {"cublas": lambda: peer(shape, pair, torch)}
    runs |= {name: lambda c=config: ours(shape, pair, c) for name, config in configs.items()}
    one: dict[str, list[float]] = {name: [] for name in runs}
    for name in list(runs):
        try:
            for _ in range(3):
                runs[name]()
            torch.cuda.synchronize()
        except Exception:
            print(f"{shape} {name}: {traceback.format_exc(limit=1)[-200:]}", flush=True)
            del runs[name], one[name]

    def between(run: Any, calls: int) -> float:
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(calls):
            run()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) * 1000 / calls

    began = time.monotonic()
    while len(one["cublas"]) < 7 or (time.monotonic() < began + seconds * 0.4 and len(one["cublas"]) < 60):
        order = list(runs)
        random.shuffle(order)
        for name in order:
            for _ in range(3):
                flush.zero_()
            one[name].append(between(runs[name], 1))
    single = {name: statistics.median(times[1:]) for name, times in one.items()}
    rounds = 3
    each = max(2000.0, (began + seconds - time.monotonic()) * 1e6 / rounds / len(runs))  # microseconds
    many: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        order = list(runs)
        random.shuffle(order)
        for name in order:
            calls = max(2, round(each / 2 / single[name]))
            for _ in range(calls):
                runs[name]()
            many[name].append(between(runs[name], calls))
    return {name: (single[name], statistics.median(many[name])) for name in runs}


def role_main(given: argparse.Namespace) -> None:
    """Check and time the Gluon kernel."""
    began = time.monotonic()
    wanted = [s for s in ROLE_SHAPES if re.search(given.only, f"{s[0]} {s[1]} {s[2]} {s[3]}")]
    variants_of = {shape: role_variants(shape) for shape in wanted}
    used = sorted({name for shape in wanted for name in ROLE_SHAPES[shape]})
    print(f"{len(wanted)} shapes, {sum(len(v) for v in variants_of.values())} variants, {len(used)} tiles")
    if given.dry:
        role_dry(variants_of)
        return
    result: dict[str, Any] = {"faults": [], "times": {}}

    def keep() -> None:
        with open(given.out, "w") as file:
            json.dump(result, file, indent=1)

    workers = min(14, max(1, (os.cpu_count() or 2) - 2))
    context = multiprocessing.get_context("spawn")
    first, second = context.Pool(len(SMOKE)), context.Pool(workers)
    smoke = [first.apply_async(check_tile, ((name, "bfloat16", "few"),)) for name in SMOKE]
    plain = [(s, name, c) for s in wanted for name, c in variants_of[s].items() if name not in ROLES]
    pending: list[tuple[str, Any, Any]] = [("variant", job, second.apply_async(check_variant, (job,))) for job in plain]
    sound = True
    for name, answer in zip(SMOKE, collect(smoke, 40.0), strict=True):
        text = "HANGS (or did not compile in 40 s)" if answer is None else answer[1]
        sound = sound and answer is not None
        if text:
            result["faults"].append(["smoke", name, text])
            print(f"SMOKE {name}: {text}", flush=True)
    threading.Thread(target=first.terminate, daemon=True).start()  # joins its workers: not to be waited for
    keep()
    print(f"smoke done in {time.monotonic() - began:.0f} s", flush=True)
    if sound:
        tiles = [(name, "bfloat16", "all") for name in used] + [(name, "float16", "all") for name in SMOKE]
        pending += [("tile", job, second.apply_async(check_tile, (job,))) for job in tiles]
        more = [(s, name, c) for s in wanted for name, c in variants_of[s].items() if name in ROLES]
        pending += [("variant", job, second.apply_async(check_variant, (job,))) for job in more]
    else:
        print("a tile hangs: only what is there now is timed", flush=True)
    bad: set[Any] = set()
    answers = collect([job[2] for job in pending], 0.55 * given.seconds)
    for (what, job, _), answer in zip(pending, answers, strict=True):
        text = "not done in time" if answer is None else answer[-1]
        if text:
            name = job[0] if what == "tile" else job[1]
            bad.add(name if what == "tile" else (job[0], name))
            where = f"{name} {job[1]}" if what == "tile" else f"{name} {job[0]}"
            result["faults"].append([what, where, text])
            print(f"{what.upper()} {where}: {text[:300]}", flush=True)
    threading.Thread(target=second.terminate, daemon=True).start()
    keep()
    good = [name for name in used if name not in bad] if sound else []
    print(f"{len(good)} of {len(used)} tiles right; checked in {time.monotonic() - began:.0f} s", flush=True)
    import torch

    torch.manual_seed(2)
    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    lines = []
    for done, shape in enumerate(wanted):
        configs = {
            name: c
            for name, c in variants_of[shape].items()
            if (name not in ROLES or name in good) and (shape, name) not in bad
        }
        left = given.seconds - (time.monotonic() - began)
        try:
            found = time_both(shape, configs, max(0.3, left / (len(wanted) - done) * 0.8), flush, torch)
        except Exception as error:
            lines.append(f"TIMING {shape}: {type(error).__name__} {str(error)[:120]}")
            continue
        result["times"][str(shape)] = found
        keep()
        lines.append(role_line(shape, found))
    print("ratio to cuBLAS, cold/sustained, best cold one first")
    print("\n".join(lines))
    print(f"{len(good)} of {len(used)} tiles right; {time.monotonic() - began:.0f} s")
    sys.stdout.flush()
    os._exit(0)  # whatever workers still do


def role_line(shape: Shape, found: dict[str, tuple[float, float]]) -> str:
    """A line of the table: the ratios to cuBLAS of each variant."""
    form, m, n, k = shape
    cold, hot = found["cublas"]
    flops = 2 * m * n * k / 1e6
    ranked = sorted((c, h, name) for name, (c, h) in found.items() if name != "cublas")
    text = " ".join(f"{name} {cold / c:.3f}/{hot / h:.3f}" for c, h, name in ranked)
    return f"{form} {m};{n},{k} cublas {cold:.1f}/{hot:.1f}us {flops / cold:.0f}/{flops / hot:.0f}TF | {text}"


def role_dry(variants_of: dict[Shape, dict[str, Config]]) -> None:
    """Every launch of every variant, noted instead of made, on any machine."""
    import torch

    from opmux_triton.launch import recording

    for shape, configs in variants_of.items():
        form, m, n, k = shape
        sizes = {"linear": ((m, k), (n, k)), "grad_x": ((m, n), (n, k)), "grad_w": ((m, n), (m, k))}[form]
        first, second = (torch.empty(s, dtype=torch.bfloat16, device="meta") for s in sizes)
        for name, config in configs.items():
            with recording("sm_90") as noted:
                ours(shape, (first, second), config)
            print(shape, name, [(n.kernel.__name__, n.grid) for n in noted.launches])
    example: dict[str, tuple[float, float]] = {"cublas": (10.0, 11.0), "now": (12.0, 11.0)}
    print(role_line(next(iter(variants_of)), example))


def main() -> None:
    """Check, time, report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--only", default="")
    parser.add_argument("--skip-cases", action="store_true")
    parser.add_argument("--model", action="store_true", help="the products of benchmarks/model.py")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--roles", action="store_true", help="the Gluon kernel")
    given = parser.parse_args()
    if given.roles:
        role_main(given)
        return
    began = time.monotonic()
    wanted = [
        s
        for s in (model_shapes() if given.model else shapes())
        if re.search(given.only, f"{s[0]} {s[1]} {s[2]} {s[3]}")
    ]
    jobs = []
    for shape in wanted:
        for name, over in {"heuristic": {}, **variants(shape)}.items():
            jobs.append((shape, name, product_config(shape, over)))
    print(f"{len(wanted)} shapes, {len(jobs)} variants")
    if given.dry:
        for job in jobs:
            print(job)
        return
    workers = min(14, max(1, (os.cpu_count() or 2) - 2))
    result: dict[str, Any] = {"faults": [], "cases": [], "times": {}}
    lines = []
    limit = max(30.0, given.seconds * 0.5)
    todo = [] if given.skip_cases else CASES
    checked = in_pool([("case", c) for c in todo] + [("variant", j) for j in jobs], check_any, limit, workers)
    for case, answer in zip(todo, checked[: len(todo)], strict=True):
        text = "not done in time" if answer is None else answer[1]
        result["cases"].append([str(case), text])
        if text:
            lines.append(f"CASE {case}: {text}")
    good: dict[Shape, dict[str, Config]] = {shape: {} for shape in wanted}
    for job, answer in zip(jobs, checked[len(todo) :], strict=True):
        text = "not done in time" if answer is None else answer[2]
        if text:
            result["faults"].append([str(job[0]), job[1], text])
            lines.append(f"FAULT {job[0]} {job[1]}: {text}")
        else:
            good[job[0]][job[1]] = job[2]
    print(f"checked in {time.monotonic() - began:.0f} s", flush=True)
    import torch

    torch.manual_seed(2)
    for done, shape in enumerate(wanted):
        left = given.seconds - (time.monotonic() - began)
        try:
            found = time_shape(shape, good[shape], max(0.3, left / (len(wanted) - done) * 0.6), torch)
        except Exception as error:
            lines.append(f"TIMING {shape}: {type(error).__name__} {str(error)[:120]}")
            continue
        result["times"][str(shape)] = found
        with open(given.out, "w") as file:
            json.dump(result, file, indent=1)
        lines.append(line_of(shape, found))
    with open(given.out, "w") as file:
        json.dump(result, file, indent=1)
    print("\n".join(lines))
    right = sum(not text for _, text in result["cases"])
    print(f"cases: {right} of {len(result['cases'])} right; {time.monotonic() - began:.0f} s")


def check_any(job: tuple[str, Any]) -> Any:
    """A job of the pool."""
    return check_case(job[1]) if job[0] == "case" else check_variant(job[1])


def line_of(shape: Shape, found: dict[str, float]) -> str:
    """A line of the table: the ratio to cuBLAS of each variant, best first."""
    form, m, n, k = shape
    base = found.get("cublas", float("nan"))
    few = form == "linear" and m <= 64
    scale = (n * k * 2 / 1e6) if few else (2 * m * n * k / 1e6)
    unit = "TB/s" if few else "TFLOPS"
    ranked = sorted((t, name) for name, t in found.items() if name != "cublas")
    text = " ".join(f"{name} {base / t:.3f}" for t, name in ranked)
    return f"{form} {m};{n},{k} cublas {base:.1f}us {scale / base:.4g} {unit} | {text}"


if __name__ == "__main__":
    main()
