"""Attention forward: variants of the kernels against cuDNN, on the shapes that the backend is measured by.

``python benchmarks/sweep_attention_forward.py --out FILE.json [--seconds 60] [--only TEXT] [--dry]``. First everything
is compiled, by all cores. Then a worker process checks each variant against the reference and times those that are
right, in interleaved rounds. The parent watches it: where it says nothing for a while, the variant at work has hung; it
is killed, and another one goes on without that variant.
"""

import argparse
import concurrent.futures
import functools
import json
import math
import multiprocessing
import os
import queue
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from opmux.arch import parse_arch
from opmux_triton.attention.forward import configs

ARCH = "sm_90"
SHAPES = ((2, 4096, 32, 32, 64), (8, 2048, 32, 8, 64), (4, 4096, 32, 8, 128), (1, 16384, 32, 8, 128))
"""(batch, seq, heads, kv_heads, head_dim)."""
CASES: tuple[dict[str, Any], ...] = (
    {"sq": 256, "sk": 256, "causal": True},
    {"sq": 300, "sk": 300, "causal": True, "nan": True},
    {"sq": 200, "sk": 517, "causal": True, "nan": True},
    {"sq": 517, "sk": 200, "causal": True},
    {"sq": 300, "sk": 700, "causal": False},
    {"sq": 1024, "sk": 1024, "causal": False},
    {"sq": 700, "sk": 700, "causal": True, "lse": True, "sinks": True, "nan": True},
    {"sq": 700, "sk": 700, "causal": True, "window": (150, -1), "lse": True, "nan": True},
    {"sq": 1500, "sk": 1500, "causal": True, "batch": 3, "repeats": 4},
)
FEW_CASES = (0, 1, 3, 4)
QUIET = 45.0
"""Seconds without a word after which a worker counts as hung."""


def variants(head_dim: int) -> dict[str, dict[str, Any]]:
    """Configs by name: ``plain`` ones are of the portable kernel, ``hopper`` ones of the Gluon kernel."""
    found: dict[str, dict[str, Any]] = {}

    def plain(rows: int, block: int, warps: int, stages: int, tma: bool = True, cache: int = 32, **more: int) -> None:
        extra = "".join(f" {key}{value}" for key, value in more.items())
        name = f"plain {rows}x{block} w{warps} s{stages}{'' if tma else ' pointers'}{_cache(cache)}{extra}"
        found[name] = {
            "rows": rows, "block": block, "num_warps": warps, "num_stages": stages, "tma": tma, "cache": cache << 20,
            "apart": False, **more,
        }  # fmt: skip

    def hopper(
        groups: int, block: int, stages: int, turns: bool = False, persistent: bool = True, cache: int = 32
    ) -> None:
        marks = f"{' turns' if turns else ''}{'' if persistent else ' tilewise'}{_cache(cache)}"
        found[f"hopper {64 * groups}x{block} s{stages}{marks}"] = {
            "warpgroups": groups, "block": block, "stages": stages, "turns": turns, "persistent": persistent,
            "cache": cache << 20, "narrow": groups, "otherwise": {},
        }  # fmt: skip

    plain(64, 64, 4, 3)
    plain(64, 128, 4, 3)
    hopper(2, 128, 2)
    if head_dim == 64:
        hopper(2, 128, 3, turns=True)
        hopper(2, 128, 3)
        hopper(3, 128, 2)
        hopper(3, 128, 3)
        hopper(3, 128, 3, turns=True)
        hopper(3, 128, 3, persistent=False)
        hopper(3, 128, 3, cache=1 << 20)
        hopper(3, 64, 4, turns=True)
    else:
        hopper(2, 128, 2, turns=True)
    features = {"head_dim": head_dim, "value_dim": head_dim, "bucket(seq_q)": 12}
    found["hopper chosen"] = configs.hopper_config(parse_arch(ARCH), features)
    found["plain chosen"] = configs.forward_config(parse_arch(ARCH), features)
    return found


def _cache(mebibytes: int) -> str:
    return "" if mebibytes == 32 else f" L2={mebibytes if mebibytes < 1024 else 'all'}"


def call(name: str, config: dict[str, Any], tensors: tuple[Tensor | None, ...], case: dict[str, Any]) -> Any:
    """A variant's target on tensors (q, k, v, sinks)."""
    from opmux_triton.attention.forward import hopper_targets, targets

    module = hopper_targets if name.startswith("hopper") else targets
    target = module.attention_lse if case.get("lse") else module.attention
    options = {"scale": None, "causal": case["causal"], "window": case.get("window", (-1, -1)), "softcap": 0.0}
    return target(*tensors, **options, config=config)


def tensors_of(case: dict[str, Any], head_dim: int, device: str) -> tuple[Tensor | None, ...]:
    """q, k, v, sinks of a case of correctness: packed, so that strides are not those of contiguous tensors."""
    batch, heads, kv_heads = case.get("batch", 2), 4, 2
    if device == "cpu":
        made = [torch.empty(batch, case[s], h, head_dim, dtype=torch.bfloat16)
                for s, h in (("sq", heads), ("sk", kv_heads), ("sk", kv_heads))]  # fmt: skip
        return *made, torch.empty(heads) if case.get("sinks") else None
    q = torch.randn(batch, case["sq"], heads, head_dim, device=device).bfloat16()
    packed = torch.randn(batch, case["sk"], 2 * kv_heads, head_dim, device=device).bfloat16()
    k, v = packed[:, :, :kv_heads], packed[:, :, kv_heads:]
    if case.get("nan"):
        v[0, case["sk"] - 30, 0, 3] = float("nan")
        v[-1, case["sk"] - 70, 1, 5] = float("inf")
    return q, k, v, torch.randn(heads, device=device) if case.get("sinks") else None


def compile_variant(job: tuple[str, dict[str, Any], int, dict[str, Any]]) -> str | None:
    """Compile what a variant launches for a case, into Triton's cache; the error, if any."""
    name, config, head_dim, case = job
    try:
        from opmux_triton.aot.build import build
        from opmux_triton.launch import recording

        with recording(ARCH) as recorded:
            call(name, config, tensors_of(case, head_dim, "cpu"), case)
        for one in recorded.launches:
            build(one, ARCH)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[-200:]}"
    return None


def compile_all(jobs: list[Any], until: float) -> dict[str, str]:
    """Compile by all cores; the errors by variant."""
    failed: dict[str, str] = {}
    pool = concurrent.futures.ProcessPoolExecutor(max(1, os.cpu_count() or 1), multiprocessing.get_context("fork"))
    futures = {pool.submit(compile_variant, job): job for job in jobs}
    try:
        for future in concurrent.futures.as_completed(futures, timeout=max(1.0, until - time.time())):
            name, _, head_dim, _ = futures[future]
            error = future.result()
            if error and f"{head_dim} {name}" not in failed:
                failed[f"{head_dim} {name}"] = error
                print(f"{head_dim} {name}: {error}", flush=True)
    except concurrent.futures.TimeoutError:
        print(f"compilation cut short: {sum(f.done() for f in futures)} of {len(futures)} done", flush=True)
    for process in list((getattr(pool, "_processes", None) or {}).values()):
        process.kill()
    pool.shutdown(wait=False, cancel_futures=True)
    return failed


def check(name: str, config: dict[str, Any], head_dim: int) -> str | None:
    """What is wrong with a variant's results, or None."""
    import opmux

    cases = CASES if name.startswith("hopper") or name == "plain 64x64 w4 s3" else [CASES[i] for i in FEW_CASES]
    for case in cases:
        torch.manual_seed(0)
        tensors = tensors_of(case, head_dim, "cuda")
        options = {"scale": None, "causal": case["causal"], "window": case.get("window", (-1, -1)), "softcap": 0.0}
        wide = [t if t is None else t.double() for t in tensors]
        expected = opmux.attention_lse.reference(*wide, **options)
        found = call(name, config, tensors, case)
        found = found if isinstance(found, tuple) else (found,)
        for got, right, bound in zip(found, expected, (2e-2, 2e-3), strict=False):
            here = f"{case}: "
            if not torch.equal(torch.isnan(got), torch.isnan(right)):
                return f"{here}NaN in {int(torch.isnan(got).sum())} places, expected {int(torch.isnan(right).sum())}"
            if not torch.equal(torch.isinf(got), torch.isinf(right)):
                return f"{here}Inf in {int(torch.isinf(got).sum())} places, expected {int(torch.isinf(right).sum())}"
            finite = torch.isfinite(right)
            worst = float((got.double() - right)[finite].abs().max())
            norm = float((got.double() - right)[finite].norm() / right[finite].norm())
            if not (worst < bound and norm < 1e-2):
                return f"{here}largest error {worst:.2e}, of the norm {norm:.2e}"
        for _ in range(case.get("repeats", 1)):
            again = call(name, config, tensors, case)
            again = again if isinstance(again, tuple) else (again,)
            if not all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(found, again, strict=True)):
                return f"{case}: other bits the second time"
    return None


def peers(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> dict[str, Any]:
    """cuDNN in the layouts that it may like best."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def run(tensors: list[Tensor], grouped: bool) -> Any:
        def forward() -> Tensor:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=causal, enable_gqa=grouped)

        return forward

    views = [x.transpose(1, 2) for x in (q, k, v)]
    copies = [x.contiguous() for x in views]
    groups = q.shape[2] // k.shape[2]
    if groups == 1:
        return {"cudnn bshd": run(views, False), "cudnn bhsd": run(copies, False)}
    repeated = [copies[0], *(x.repeat_interleave(groups, 1) for x in copies[1:])]
    return {
        "cudnn bshd gqa": run(views, True),
        "cudnn bhsd gqa": run(copies, True),
        "cudnn bhsd repeated": run(repeated, False),
    }


def measure(run: Any, times: int) -> float:
    """Milliseconds of one of several calls behind each other."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(times):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / times


def flops(shape: tuple[int, ...], causal: bool) -> float:
    """Of the two products; half of them where causal."""
    batch, seq, heads, _, head_dim = shape
    return 4 * batch * heads * seq * seq * head_dim * (0.5 if causal else 1)


def worker(said: Any, wanted: dict[str, dict[str, Any]], skip: set[str], done: list[str], until: float) -> None:
    """Check, then time; everything that is found out is said at once."""
    good: dict[int, dict[str, Any]] = {}
    for key, config in wanted.items():
        head_dim, name = int(key.partition(" ")[0]), key.partition(" ")[2]
        if key in skip:
            continue
        said.put(("at", key))
        wrong = None
        if f"check {key}" not in done:
            try:
                wrong = check(name, config, head_dim)
            except Exception as error:
                wrong = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            said.put(("checked", key, wrong))
        if wrong is None:
            good.setdefault(head_dim, {})[name] = config
    for shape in SHAPES:
        for causal in (True, False):
            label = f"{shape} {'causal' if causal else 'full'}"
            if label in done or time.time() > until:
                continue
            batch, seq, heads, kv_heads, head_dim = shape
            q = torch.randn(batch, seq, heads, head_dim, device="cuda").bfloat16()
            k, v = (torch.randn(batch, seq, kv_heads, head_dim, device="cuda").bfloat16() for _ in range(2))
            runs: dict[str, Any] = {}
            offered = dict(peers(q, k, v, causal))
            for name, config in good.get(head_dim, {}).items():
                offered[name] = functools.partial(call, name, config, (q, k, v, None), {"causal": causal})
                if name == "hopper chosen":
                    lse = {"causal": causal, "lse": True}
                    offered[f"{name} lse"] = functools.partial(call, name, config, (q, k, v, None), lse)
            for name, run in offered.items():
                said.put(("at", f"{head_dim} {name}"))
                try:
                    run()
                    torch.cuda.synchronize()
                    measure(run, 2)
                    runs[name] = run
                except Exception as error:
                    said.put(("failed", f"{label} {name}", f"{type(error).__name__}: {str(error)[:200]}"))
            times: dict[str, list[float]] = {name: [] for name in runs}
            repeats = max(2, min(20, int(4e12 / flops(shape, causal))))
            for _ in range(7):
                for name, run in runs.items():
                    said.put(("at", f"{head_dim} {name}"))
                    times[name].append(measure(run, repeats))
                if time.time() > until:
                    break
            said.put(("timed", label, flops(shape, causal), times))
            del q, k, v, offered, runs
            torch.cuda.empty_cache()
    said.put(("end",))


def watch(wanted: dict[str, dict[str, Any]], found: dict[str, Any], until: float) -> None:
    """Run workers until one comes to the end."""
    context = multiprocessing.get_context("spawn")
    skip: set[str] = set()
    done: list[str] = []
    for _ in range(6):
        said = context.Queue()
        process = context.Process(target=worker, args=(said, wanted, skip, done, until), daemon=True)
        process.start()
        at, heard, ended = "", time.time(), False
        while not ended:
            try:
                word = said.get(timeout=2.0)
            except queue.Empty:
                if not process.is_alive() or time.time() - heard > QUIET or time.time() > until + 40:
                    break
                continue
            heard = time.time()
            if word[0] == "at":
                at = word[1]
            elif word[0] == "checked":
                done.append(f"check {word[1]}")
                if word[2]:
                    skip.add(word[1])
                    found["wrong"][word[1]] = word[2]
                    print(f"wrong: {word[1]}: {word[2]}", flush=True)
            elif word[0] == "failed":
                found["wrong"][word[1]] = word[2]
                print(f"failed: {word[1]}: {word[2]}", flush=True)
            elif word[0] == "timed":
                done.append(word[1])
                found["times"][word[1]] = {"flops": word[2], "milliseconds": word[3]}
            ended = word[0] == "end"
        process.kill()
        process.join(10)
        if ended or time.time() > until:
            return
        print(f"the worker hung or died at {at!r}; another one goes on without it", flush=True)
        found["wrong"][at] = "hung or died"
        skip.add(at)


def table(found: dict[str, Any]) -> None:
    """The best of each shape."""
    print("TFLOPS (ratio to the best cuDNN; spread of the rounds)")
    for label, one in found["times"].items():
        rate = {n: one["flops"] / statistics.median(t) / 1e9 for n, t in one["milliseconds"].items() if t}
        spread = {n: (max(t) - min(t)) / statistics.median(t) for n, t in one["milliseconds"].items() if t}
        best = max((r for n, r in rate.items() if n.startswith("cudnn")), default=math.nan)
        cudnn = ", ".join(f"{n[6:]} {r:.0f}" for n, r in rate.items() if n.startswith("cudnn"))
        print(f"{label}: cudnn {cudnn}")
        ours = sorted(((r, n) for n, r in rate.items() if not n.startswith("cudnn")), reverse=True)
        first_plain = next((x for x in ours if x[1].startswith("plain")), None)
        kept = [x for x in ours if x in ours[:4] or x == first_plain or "chosen" in x[1]]
        for r, n in kept:
            print(f"  {r:6.0f} {r / best:5.2f}  {n}  ({spread[n]:.1%})")


def main() -> None:
    """Compile, check, time, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--only", default="", help="names of variants that contain this text")
    parser.add_argument("--dry", action="store_true", help="compile one variant of each kind, run nothing")
    arguments = parser.parse_args()
    started = time.time()
    until = started + arguments.seconds
    wanted = {
        f"{head_dim} {name}": config
        for head_dim in (64, 128)
        for name, config in variants(head_dim).items()
        if arguments.only in name
    }
    if arguments.dry:
        wanted = {key: wanted[key] for key in list(wanted)[:1] + [k for k in wanted if "hopper" in k][:1]}
    jobs = []
    for key, config in wanted.items():
        head_dim, name = int(key.partition(" ")[0]), key.partition(" ")[2]
        chosen = range(len(CASES)) if name.startswith("hopper") or name == "plain 64x64 w4 s3" else FEW_CASES
        unique: dict[str, dict[str, Any]] = {}
        for case in (CASES[i] for i in chosen):
            unique.setdefault(
                str([case.get(x) for x in ("causal", "window", "lse", "sinks")] + [case["sk"] % 128]), case
            )
        jobs += [(name, config, head_dim, case) for case in unique.values()]
    if arguments.dry:
        jobs = jobs[:2] + jobs[-2:]
    failed = compile_all(jobs, started + 0.5 * arguments.seconds)
    print(f"{len(jobs)} compilations in {time.time() - started:.0f} s, {len(failed)} variants failed", flush=True)
    found: dict[str, Any] = {"times": {}, "wrong": dict(failed), "variants": wanted}
    for key in failed:
        wanted.pop(key, None)
    if not arguments.dry:
        import triton

        found |= {"torch": torch.__version__, "triton": triton.__version__}
        watch(wanted, found, until)
    arguments.out.write_text(json.dumps(found, indent=1, default=str))
    table(found)


if __name__ == "__main__":
    main()
