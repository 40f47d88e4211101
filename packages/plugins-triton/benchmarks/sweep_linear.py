"""Configs of the linear family side by side with cuBLAS, on a GPU.

    python sweep_linear.py --out FILE.json [--seconds 120] [--only REGEX] [--dry]

Every variant is compiled, run once and checked in a process of its own pool first, with a limit on its time: one that
hangs or fails is left out. Then variants and cuBLAS are timed in interleaved rounds on random data; for few rows by
graph replays that rotate among weights larger than the L2. Medians; TFLOPS, or TB/s of weights where rows are few.
"""

import argparse
import json
import multiprocessing
import os
import random
import re
import statistics
import time
import traceback
from typing import Any

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


def product_config(shape: Shape, over: Config) -> Config:
    """The heuristic's config of a product with overrides."""
    from opmux.arch import parse_arch
    from opmux_triton.gemm import configs

    form, m, n, k = shape
    sizes = {"linear": (m, n, k), "grad_x": (m, k, n), "grad_w": (n, k, m)}[form]
    arch = parse_arch("sm_90")
    heuristic = configs.vector(arch, n, k) if form == "linear" and m == 1 else configs.halves(arch, *sizes)
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


def in_pool(jobs: list[Any], function: Any, limit: float, workers: int) -> list[Any]:
    """Results of jobs in processes; None for those that were not done in time."""
    context = multiprocessing.get_context("spawn")
    pool = context.Pool(workers, maxtasksperchild=None)
    pending = [pool.apply_async(function, (job,)) for job in jobs]
    end = time.monotonic() + limit
    results = []
    for one in pending:
        try:
            results.append(one.get(timeout=max(0.1, end - time.monotonic())))
        except multiprocessing.TimeoutError:
            results.append(None)
    pool.terminate()
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


def main() -> None:
    """Check, time, report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--only", default="")
    parser.add_argument("--skip-cases", action="store_true")
    parser.add_argument("--model", action="store_true", help="the products of benchmarks/model.py")
    parser.add_argument("--dry", action="store_true")
    given = parser.parse_args()
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
