"""Check attention's backward, then time the Gluon kernel and tiles of the portable ones beside cuDNN's backward.

    python benchmarks/sweep_attention_backward.py --out sweep.json --seconds 75

Compiles every variant in parallel first, without launching. Checks and timings run in child processes with a time
limit, so that a kernel that hangs ends with them. Rates count the five products of the op (2.5 times the forward's),
half of them under a causal mask; the portable kernel of keys and values does four products, that of queries three, and
their own rates count those (the kernel of row statistics is in both times).
"""

import argparse
import copy
import json
import math
import multiprocessing
import statistics
import subprocess
import sys
import time
import traceback
from typing import Any

import torch

from opmux.arch import parse_arch
from opmux_triton.attention.backward import configs, hopper_targets
from opmux_triton.launch import recording

SHAPES = {
    "4x4096 32/8 128": (4, 4096, 32, 8, 128),
    "2x4096 32/32 64": (2, 4096, 32, 32, 64),
    "1x16384 32/8 128": (1, 16384, 32, 8, 128),
}
CUDNN = {
    ("4x4096 32/8 128", True): 448,
    ("4x4096 32/8 128", False): 507,
    ("1x16384 32/8 128", True): 519,
    ("1x16384 32/8 128", False): 533,
    ("2x4096 32/32 64", True): 364,
    ("2x4096 32/32 64", False): 422,
}
"""TFLOPS seen before, to judge whether the peer is at its best in this run."""

# block_m, block_n, num_warps, num_stages
VARIANTS = {
    ("keys_values", 128): (),
    ("queries", 128): (),
    ("keys_values", 64): (
        (64, 128, 8, 3),
        (64, 64, 4, 2),
        (64, 64, 4, 3),
        (32, 64, 4, 3),
    ),
    ("queries", 64): (
        (128, 64, 8, 3),
        (64, 64, 4, 3),
        (64, 32, 4, 3),
        (128, 128, 8, 2),
    ),
}
HOPPER: dict[str, dict[str, Any]] = {
    "hopper": {},
    "hopper bulk": {"bulk": True},
    "hopper late": {"late": True},
    "hopper together 4": {"together": 4},
    "hopper late together 8": {"late": True, "together": 8},
    "hopper without dQ": {"queries": False},
}
CHECKED: dict[str, dict[str, Any]] = {
    "": {},
    "bulk": {"bulk": True},
    "late": {"late": True},
    "together": {"together": 2},
}
"""``together``: how many (batch, kv head) pairs at a time. Without dQ tells what that costs; its result is wrong."""
ONLY = {"keys_values": (False, True, True, False), "queries": (True, False, False, False)}
ALL = (True, True, True, False)
PRODUCTS = {"keys_values": 4, "queries": 3}


def config_of(arch: str, dim: int, value_dim: int, dtype: torch.dtype) -> dict[str, Any]:
    """The heuristic's record."""
    function = configs.float32_config if dtype == torch.float32 else configs.backward_config
    return copy.deepcopy(function(parse_arch(arch), {"head_dim": dim, "value_dim": value_dim}))


def hopper_config(dim: int, variant: dict[str, Any]) -> dict[str, Any]:
    """The heuristic's record of the Gluon kernel with other numbers."""
    base = configs.hopper_config(parse_arch(ARCH), {"head_dim": dim, "value_dim": dim, "bucket(seq_q)": 12})
    return {**base, **variant}


def with_variant(config: dict[str, Any], part: str, variant: tuple[int, int, int, int]) -> dict[str, Any]:
    """The record with another tile for one of its kernels."""
    changed = copy.deepcopy(config)
    block_m, block_n, warps, stages = variant
    changed[part] = {"block_m": block_m, "block_n": block_n, "options": {"num_warps": warps, "num_stages": stages}}
    return changed


def naive(q, k, v, sinks, causal, window, softcap, scale):
    """Attention and lse in the dtype of q, score by score."""
    groups = q.shape[2] // k.shape[2]
    queries, keys = (x.transpose(1, 2) for x in (q, k.repeat_interleave(groups, 2)))
    values = v.repeat_interleave(groups, 2).transpose(1, 2)
    scores = queries @ keys.mT * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    position = torch.arange(q.shape[1], device=q.device)[:, None] + k.shape[1] - q.shape[1]
    key = torch.arange(k.shape[1], device=q.device)[None]
    left, right = window
    seen = torch.ones((q.shape[1], k.shape[1]), dtype=torch.bool, device=q.device)
    if causal or right != -1:
        seen &= key <= position + (0 if causal else right)
    if left != -1:
        seen &= key >= position - left
    scores = scores.masked_fill(~seen, -math.inf)
    joined = scores
    if sinks is not None:
        joined = torch.cat((scores, sinks.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)), -1)
    lse = torch.logsumexp(joined, -1)
    weights = torch.exp(scores - torch.where(lse == -math.inf, 0.0, lse)[..., None])
    return (weights @ values).transpose(1, 2), lse


def check(device: str, config: dict[str, Any] | None = None, tiny: bool = False) -> list[str]:
    """Every gradient against autograd in float64; one line per case."""
    cases = [
        # dtype, batch, seq_q, seq_k, heads, kv_heads, head_dim, value_dim, causal, window, softcap, sinks, grad_lse
        (torch.bfloat16, 2, 300, 300, 4, 1, 128, 128, True, (-1, -1), 0.0, False, False),
        (torch.bfloat16, 2, 256, 512, 8, 2, 128, 128, False, (-1, -1), 0.0, True, True),
        (torch.bfloat16, 1, 333, 517, 4, 4, 64, 64, True, (-1, -1), 0.0, True, True),
        (torch.float16, 2, 261, 130, 4, 2, 72, 40, True, (100, 0), 0.0, True, True),
        (torch.bfloat16, 2, 197, 400, 2, 2, 256, 256, False, (40, 30), 3.0, False, True),
        (torch.float32, 2, 130, 197, 4, 2, 96, 64, True, (-1, -1), 2.0, True, True),
        (torch.bfloat16, 1, 1, 700, 4, 1, 80, 80, True, (-1, -1), 0.0, True, True),
    ]
    lines = []
    for dtype, batch, seq_q, seq_k, heads, kv_heads, dim, value_dim, causal, window, softcap, sinky, lsey in cases:
        if tiny:
            seq_q, seq_k = 1 + seq_q // 8, 1 + seq_k // 8
        torch.manual_seed(0)
        kwargs = {"device": device, "dtype": torch.float32}
        q = torch.randn(batch, seq_q, heads, dim, **kwargs).to(dtype)
        k = torch.randn(batch, seq_k, kv_heads, dim, **kwargs).to(dtype)
        v = torch.randn(batch, seq_k, kv_heads, value_dim, **kwargs).to(dtype)
        sinks = torch.randn(heads, **kwargs) if sinky else None
        scale = dim**-0.5
        leaves = [x.double().requires_grad_() for x in (q, k, v)] + ([sinks.double().requires_grad_()] if sinky else [])
        of_sinks = leaves[3] if sinky else None
        out, lse = naive(*leaves[:3], of_sinks, causal, window, softcap, scale)
        grad_out = torch.randn(out.shape, **kwargs).to(dtype)
        grad_lse = torch.randn(lse.shape, **kwargs) if lsey else None
        if lsey:
            grad_lse = grad_lse.masked_fill(lse.detach() == -math.inf, 0.0)
        loss = (out * grad_out.double()).sum()
        if lsey:
            loss = loss + torch.where(grad_lse == 0, 0.0, lse * grad_lse.double()).sum()
        wanted = torch.autograd.grad(loss, leaves)
        used = config or config_of(ARCH, dim, value_dim, dtype)
        if config is not None and (dtype == torch.float32 or dim > 128):
            continue
        saved = (out.detach().to(dtype), lse.detach().float())
        options = {"scale": None, "causal": causal, "window": window, "softcap": softcap}
        got = targets.attention_backward(
            grad_out, q, k, v, *saved, sinks, grad_lse, **options, output_mask=(True,) * 4, config=used
        )
        errors = [float((a.double() - b).norm() / b.norm().clamp_min(1e-30)) for a, b in zip(got, wanted, strict=False)]
        limit = 1e-5 if dtype == torch.float32 else 2e-2
        good = all(e < limit for e in errors)
        what = f"{str(dtype)[6:]} {batch}x{seq_q}/{seq_k} {heads}/{kv_heads} {dim}/{value_dim} {options}"
        lines.append(f"{'ok ' if good else 'BAD'} {what}: " + " ".join(f"{e:.1e}" for e in errors))
    return lines


ARCH = "sm_90"


def make(shape: tuple[int, ...], causal: bool, device: str, forward: bool = True) -> dict[str, Any]:
    """Inputs of one shape; out and lse from cuDNN, or random where there is no GPU."""
    batch, seq, heads, kv_heads, dim = shape
    torch.manual_seed(1)
    kwargs = {"device": device, "dtype": torch.bfloat16}
    q, grad_out = (torch.randn(batch, seq, heads, dim, **kwargs) for _ in range(2))
    k, v = (torch.randn(batch, seq, kv_heads, dim, **kwargs) for _ in range(2))
    made = {"q": q, "k": k, "v": v, "grad_out": grad_out}
    made["out"], made["lse"] = torch.zeros_like(q), torch.zeros(batch, heads, seq, device=device)
    if device == "cuda" and forward:
        try:
            arguments = [
                x.transpose(1, 2)
                for x in (q, k.repeat_interleave(heads // kv_heads, 2), v.repeat_interleave(heads // kv_heads, 2))
            ]
            found = torch.ops.aten._scaled_dot_product_cudnn_attention(*arguments, None, True, 0.0, causal, False)
            made["out"] = found[0].transpose(1, 2).contiguous()
            made["lse"] = found[1].reshape(batch, heads, seq).contiguous()
        except Exception as error:
            print("forward by cuDNN failed, out and lse are made up:", str(error)[:200])
    return made


def peer(made: dict[str, Any], causal: bool) -> Any:
    """cuDNN's backward as a function, on grouped kv heads where it takes them, else on repeated ones."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v, grad = (made[n].transpose(1, 2) for n in ("q", "k", "v", "grad_out"))
    failed = ""
    for grouped in (True, False):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        if not grouped:
            groups = q.shape[1] // k.shape[1]
            leaves = [q.detach().requires_grad_()] + [
                x.repeat_interleave(groups, 1).detach().requires_grad_() for x in (k, v)
            ]
        try:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal, enable_gqa=grouped)

            def run(out: Any = out, leaves: Any = leaves) -> Any:
                return torch.autograd.grad(out, leaves, grad, retain_graph=True)

            run()
            return run, "" if grouped else f"kv heads repeated ({failed})"
        except Exception as error:
            failed = str(error)[:80]
    return None, failed


def ours(made: dict[str, Any], causal: bool, config: dict[str, Any], mask: tuple[bool, ...]) -> Any:
    """A call of the target as a function."""
    arguments = [made[n] for n in ("grad_out", "q", "k", "v", "out", "lse")]
    options = {"scale": None, "causal": causal, "window": (-1, -1), "softcap": 0.0, "output_mask": mask}
    target = targets.attention_backward
    if "otherwise" in config:
        target = hopper_targets.attention_backward
    return lambda: target(*arguments, None, None, **options, config=config)


def timed(functions: dict[Any, Any], rounds: int) -> dict[Any, list[float]]:
    """Milliseconds of each function, in interleaved rounds; those that raise are left out."""
    times: dict[Any, list[float]] = {}
    for name in list(functions):
        try:
            functions[name]()
            torch.cuda.synchronize()
            times[name] = []
        except Exception as error:
            print(f"  {name}: {type(error).__name__} {str(error)[:160]}")
    for _ in range(rounds):
        events = {}
        for name in times:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            functions[name]()
            end.record()
            events[name] = (start, end)
        torch.cuda.synchronize()
        for name, (start, end) in events.items():
            times[name].append(start.elapsed_time(end))
    return times


def compile_one(job: tuple[str, tuple[int, ...], bool, str, Any]) -> str:
    """Compile what one variant launches, in a process of its own: the binaries land in Triton's cache."""
    name, shape, causal, part, variant = job
    try:
        made = make((*shape[:1], 512, *shape[2:]), causal, "cuda", forward=False)
        if part == "hopper":
            config, mask = hopper_config(shape[4], variant), ALL
        else:
            config = config_of(ARCH, shape[4], shape[4], torch.bfloat16)
            config = config if variant is None else with_variant(config, part, variant)
            mask = ONLY.get(part, ALL)
        with recording(ARCH) as recorded:
            ours(made, causal, config, mask)()
        for one in recorded.launches:
            one.kernel.warmup(*one.arguments, grid=one.grid, **one.meta)
        return ""
    except Exception as error:
        return f"{name} {'causal' if causal else 'full'} {part} {variant}: {type(error).__name__} {str(error)[:200]}"


def flops(shape: tuple[int, ...], causal: bool) -> float:
    """Of the five products."""
    batch, seq, heads, _, dim = shape
    return 10.0 * batch * heads * seq * seq * dim * (0.5 if causal else 1.0)


HOPPER_CASES = [
    # name, dtype, batch, seq_q, seq_k, heads, kv_heads, dim, causal, window, sinks, grad_lse, nan
    ("one block", torch.bfloat16, 1, 128, 128, 1, 1, 128, False, (-1, -1), False, False, False),
    ("full", torch.bfloat16, 2, 512, 512, 4, 2, 128, False, (-1, -1), False, False, False),
    ("causal", torch.bfloat16, 2, 512, 512, 4, 2, 128, True, (-1, -1), False, False, False),
    ("one block 64", torch.bfloat16, 1, 128, 128, 1, 1, 64, False, (-1, -1), False, False, False),
    ("full 64", torch.bfloat16, 2, 512, 512, 4, 4, 64, False, (-1, -1), False, False, False),
    ("causal 64", torch.bfloat16, 2, 512, 512, 4, 4, 64, True, (-1, -1), False, False, False),
    ("odd", torch.bfloat16, 2, 333, 517, 8, 2, 128, False, (-1, -1), True, True, False),
    ("odd causal", torch.bfloat16, 2, 517, 333, 8, 2, 128, True, (-1, -1), True, True, False),
    ("odd causal 64", torch.float16, 2, 333, 517, 4, 1, 64, True, (-1, -1), False, True, False),
    ("window", torch.bfloat16, 1, 700, 700, 4, 2, 128, True, (200, 0), False, False, False),
    ("window 64", torch.bfloat16, 1, 700, 650, 4, 2, 64, False, (100, 70), False, False, False),
    ("long", torch.bfloat16, 1, 2048, 2048, 8, 2, 128, True, (-1, -1), False, False, False),
    ("NaN", torch.bfloat16, 1, 512, 512, 4, 2, 128, True, (-1, -1), False, False, True),
]


def hopper_variants(case: tuple[Any, ...]) -> dict[str, dict[str, Any]]:
    """All of them where they are compiled anyway."""
    plain = case[1] == torch.bfloat16 and case[9] == (-1, -1)
    return {label: v for label, v in CHECKED.items() if plain or not label}


def hopper_inputs(case: tuple[Any, ...], device: str) -> tuple[Any, ...]:
    """q, k, v, sinks of a case."""
    _, dtype, batch, seq_q, seq_k, heads, kv_heads, dim, _, _, sinky, *_ = case
    torch.manual_seed(0)
    kwargs = {"device": device, "dtype": torch.float32}
    q = torch.randn(batch, seq_q, heads, dim, **kwargs).to(dtype)
    k, v = (torch.randn(batch, seq_k, kv_heads, dim, **kwargs).to(dtype) for _ in range(2))
    return q, k, v, torch.randn(heads, **kwargs) if sinky else None


def compile_check(index: int) -> str:
    """Compile what a case of `check_hopper` launches."""
    case = HOPPER_CASES[index]
    name, dtype, batch, seq_q, _, heads, _, dim, causal, window, _, lsey, nan = case
    try:
        q, k, v, sinks = hopper_inputs(case, "cuda")
        lse = torch.zeros(batch, heads, seq_q, device="cuda")
        arguments = (q, q, k, v, q, lse, sinks, lse if lsey else None)
        options = {"scale": None, "causal": causal, "window": window, "softcap": 0.0, "output_mask": (True,) * 4}
        with recording(ARCH) as recorded:
            for variant in hopper_variants(case).values():
                hopper_targets.attention_backward(*arguments, **options, config=hopper_config(dim, variant))
            if nan:
                targets.attention_backward(*arguments, **options, config=config_of(ARCH, dim, dim, dtype))
        for one in recorded.launches:
            one.kernel.warmup(*one.arguments, grid=one.grid, **one.meta)
        return ""
    except Exception as error:
        return f"case {name}: {type(error).__name__} {str(error)[:200]}"


def check_hopper(device: str = "cuda") -> None:
    """The Gluon kernel against autograd in float64, and against the portable kernels where NaN meets a mask."""
    for case in HOPPER_CASES:
        name, dtype, _, _, _, _, _, dim, causal, window, sinky, lsey, nan = case
        print(f"... {name}", flush=True)
        q, k, v, sinks = hopper_inputs(case, device)
        kwargs = {"device": device, "dtype": torch.float32}
        leaves = [x.double().requires_grad_() for x in (q, k, v)] + ([sinks.double().requires_grad_()] if sinky else [])
        out, lse = naive(*leaves[:3], leaves[3] if sinky else None, causal, window, 0.0, dim**-0.5)
        grad_out = torch.randn(out.shape, **kwargs).to(dtype)
        grad_lse = torch.randn(lse.shape, **kwargs).masked_fill(lse.detach() == -math.inf, 0.0) if lsey else None
        loss = (out * grad_out.double()).sum()
        if lsey:
            loss = loss + torch.where(grad_lse == 0, 0.0, lse * grad_lse.double()).sum()
        wanted = list(torch.autograd.grad(loss, leaves))
        saved = (out.detach().to(dtype), lse.detach().float())
        options = {"scale": None, "causal": causal, "window": window, "softcap": 0.0, "output_mask": (True,) * 4}
        if nan:
            grad_out[:, 100, 1] = math.nan
            grad_out[:, 300, 2] = math.inf
            q[:, 200, 3] = math.nan
            k[:, 411, 0] = math.nan
            arguments = (grad_out, q, k, v, *saved, sinks, grad_lse)
            wanted = list(targets.attention_backward(*arguments, **options, config=config_of(ARCH, dim, dim, dtype)))
        for label, variant in hopper_variants(case).items():
            worst: list[float] = []
            notes = ""
            for _ in range(3):
                got = hopper_targets.attention_backward(
                    grad_out, q, k, v, *saved, sinks, grad_lse, **options, config=hopper_config(dim, variant)
                )
                errors = []
                for a, b in zip(got, wanted, strict=False):
                    if nan and not torch.equal(torch.isfinite(a), torch.isfinite(b)):
                        notes = f" finite in {int(a.isfinite().sum())} places, expected {int(b.isfinite().sum())}"
                    a, b = (torch.where(x.isfinite(), x, 0.0).double() for x in (a, b))
                    errors.append(float((a - b).norm() / b.norm().clamp_min(1e-30)))
                worst = errors if not worst else [max(e) for e in zip(worst, errors, strict=True)]
            good = all(e < 2e-2 for e in worst) and not notes
            found = " ".join(f"{e:.1e}" for e in worst)
            print(f"{'ok ' if good else 'BAD'} hopper {label} {name}: {found}{notes}", flush=True)


def profiled(function: Any) -> str:
    """Microseconds of each kernel of a call."""
    try:
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as record:
            function()
            torch.cuda.synchronize()
        found = [(e.key[:24], e.device_time_total) for e in record.key_averages() if e.device_time_total > 3]
        return "  ".join(f"{key} {us:.0f}" for key, us in found)
    except Exception as error:
        return f"no profile: {str(error)[:80]}"


def time_all(out: str, seconds: float, with_hopper: bool) -> None:
    """Time every shape; prints as it goes."""
    began = time.monotonic()
    found: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        for causal in (True, False):
            mask = "causal" if causal else "full"
            if time.monotonic() - began > seconds - 3:
                print(f"{name} {mask}: no time left", flush=True)
                continue
            work = flops(shape, causal)
            try:
                made = make(shape, causal, "cuda")
                base = config_of(ARCH, shape[4], shape[4], torch.bfloat16)
                functions: dict[Any, Any] = {}
                theirs, note = peer(made, causal)
                if theirs is not None:
                    functions["cudnn"] = theirs
                functions["portable"] = ours(made, causal, base, ALL)
                if with_hopper:
                    for label, variant in HOPPER.items():
                        functions[label] = ours(made, causal, hopper_config(shape[4], variant), ALL)
                for part, only in ONLY.items():
                    for tile in VARIANTS[part, shape[4]]:
                        functions[part, tile] = ours(made, causal, with_variant(base, part, tile), only)
                times = timed(functions, 5)
                profile = profiled(functions["hopper"]) if "hopper" in times else ""
            except Exception as error:
                print(f"{name} {mask}: {type(error).__name__} {str(error)[:300]}", flush=True)
                continue
            medians = {key: statistics.median(t) for key, t in times.items()}
            found[f"{name} {mask}"] = {"times": {str(key): t for key, t in times.items()}, "profile": profile}
            with open(out, "w") as file:
                json.dump(found, file, indent=1)
            rate = {key: work / ms * 1e-9 for key, ms in medians.items()}
            print(f"{name} {mask}: cudnn {rate.get('cudnn', 0):.0f} (seen {CUDNN[name, causal]}) {note}")
            for key in ("portable", *HOPPER):
                if key in rate:
                    print(f"  {rate[key]:5.0f}  {rate[key] / rate.get('cudnn', math.nan):.2f}  {key}")
            for part in ONLY:
                own = {k[1]: rate[k] * PRODUCTS[part] / 5 for k in sorted(medians, key=str) if k[0] == part}
                if own:
                    print(f"  {part}: " + "  ".join(f"{'/'.join(map(str, v))} {r:.0f}" for v, r in own.items()))
            if profile:
                print(f"  {profile}")
            sys.stdout.flush()
            del functions, made
            torch.cuda.empty_cache()


def child(role: str, seconds: float, *more: str) -> list[str]:
    """Run a part of this script with a time limit; the lines that it printed."""
    command = [sys.executable, __file__, "--role", role, "--seconds", str(seconds), *more]
    try:
        run = subprocess.run(
            command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds
        )
        text, end = run.stdout, "" if run.returncode == 0 else f"{role} ended with {run.returncode}"
    except subprocess.TimeoutExpired as error:
        text = error.stdout or ""
        text = text.decode() if isinstance(text, bytes) else text
        end = f"{role} did not end within {seconds:.0f} s"
    lines = [line for line in text.splitlines() if line.strip()]
    return [*lines[-70:], end] if end else lines


def main() -> None:
    """Check, compile, time, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=75)
    parser.add_argument("--role", choices=("all", "check", "portable", "time"), default="all")
    parser.add_argument("--hopper", action="store_true", help="with --role time: the Gluon kernel too")
    parser.add_argument("--dry", action="store_true", help="the logic alone, on a CPU under TRITON_INTERPRET=1")
    arguments = parser.parse_args()
    began = time.monotonic()
    if arguments.dry:
        print("\n".join(check("cpu", tiny=True)))
        made = make((1, 64, 2, 1, 64), True, "cpu")
        for part, only in ONLY.items():
            config = with_variant(config_of(ARCH, 64, 64, torch.bfloat16), part, VARIANTS[part, 64][0])
            print(part, [tuple(x.shape) for x in ours(made, True, config, only)()])
        return
    if arguments.role == "check":
        check_hopper()
        return
    if arguments.role == "portable":
        print("\n".join(check("cuda")))
        return
    if arguments.role == "time":
        time_all(arguments.out, arguments.seconds, arguments.hopper)
        return

    jobs: list[Any] = [
        (name, shape, causal, "hopper", variant)
        for (name, shape) in list(SHAPES.items())[:2]
        for causal in (True, False)
        for label, variant in HOPPER.items()
        if "together" not in label
    ]
    jobs += [
        (name, shape, causal, part, tile)
        for (name, shape) in list(SHAPES.items())[:2]
        for causal in (True, False)
        for part in ONLY
        for tile in (None, *VARIANTS[part, shape[4]])
    ]
    failed: list[str] = []
    with multiprocessing.get_context("spawn").Pool(14) as pool:
        waiting = pool.map_async(compile_one, jobs, chunksize=1)
        of_checks = pool.map_async(compile_check, range(len(HOPPER_CASES)), chunksize=1)
        try:
            failed = waiting.get(timeout=0.4 * arguments.seconds)
            failed += of_checks.get(timeout=max(1.0, 0.45 * arguments.seconds - (time.monotonic() - began)))
            failed = [line for line in failed if line]
        except multiprocessing.TimeoutError:
            print("compilation takes too long; what is not compiled yet is compiled as it comes")
            pool.terminate()
    print(f"compiled after {time.monotonic() - began:.0f} s")
    try:
        lines = child("check", min(25.0, 0.3 * arguments.seconds), "--out", arguments.out)
    except Exception:
        lines = [traceback.format_exc()[-300:]]
    good = [line for line in lines if line.startswith("ok ")]
    bad = [line for line in lines if not line.startswith(("ok ", "... "))]
    hung = bool(bad) and "did not end" in bad[-1]
    print(f"checked after {time.monotonic() - began:.0f} s")
    rest = arguments.seconds - (time.monotonic() - began)
    timings = child("time", max(15.0, rest), "--out", arguments.out, *([] if hung else ["--hopper"]))
    print("\n".join(failed[:8]))
    print(f"{len(good)} checks of the Gluon kernel ok")
    print("\n".join([*(good if bad else good[:4]), *bad]))
    if hung or bad:
        print("the last begun:", [line for line in lines if line.startswith("... ")][-1:])
    print("\n".join(timings))
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
