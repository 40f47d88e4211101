"""Host time of calls of this backend and of the launches in them, by one way of launching; `measure_host.py` runs it.

``OPMUX_NATIVE_LAUNCH=1 python benchmarks/host_calls.py --out FILE [--seconds S] [--tiny]``, and the same with ``=0``.
Many asynchronous calls on small tensors, medians of interleaved rounds. With opmux-jit's launcher, a list of 100 times
the launches of a call is made in one native call too: little more than ``cuLaunchKernel`` itself.

``--gradients`` measures forward calls with a gradient due, and their backward passes, beside torch's own functions.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import opmux
from opmux_triton import repeats
from opmux_triton.interpreter import INTERPRETED
from opmux_triton.launch import Notes, noting, recording
from opmux_triton.native_launches import native_launches

BATCH = 100
"""Launches of a call in one native call, for the cost of the driver's own."""

Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


def calls(device: str, tiny: bool) -> dict[str, Call]:
    """Op and case -> the op, its tensors, its options: small, so that the host is the limit."""
    rows, hidden, inner = (4, 128, 128) if tiny else (8, 4096, 4096)
    heads, kv_heads, head_dim, context, page = (4, 2, 16, 64, 16) if tiny else (32, 8, 128, 1024, 16)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(sizes, device=device).bfloat16()

    def ints(*values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    x, weight = normal(rows, hidden), torch.ones(hidden, device=device).bfloat16()
    pages = context // page
    cache = [normal(rows * pages, page, kv_heads, head_dim) for _ in range(2)]
    table = torch.arange(rows * pages, dtype=torch.int32, device=device).reshape(rows, pages)
    decode = (normal(rows, heads, head_dim), *cache, ints(*range(rows + 1)), ints(*[context] * rows), table)
    q, k = normal(rows, heads, head_dim), normal(rows, kv_heads, head_dim)
    angles = torch.randn(2, 256, head_dim // 2, device=device)
    slots = torch.arange(rows, dtype=torch.int64, device=device)
    fp8 = {"dtype": torch.float8_e4m3fn, "block": (1, 128)}
    return {
        "rms_norm": (opmux.rms_norm, (x, weight), {}),
        "add_rms_norm": (opmux.add_rms_norm, (x, x.clone(), weight), {}),
        "layer_norm": (opmux.layer_norm, (x, weight, weight.clone()), {}),
        "silu_mul": (opmux.silu_mul, (x, x.clone()), {}),
        "silu_and_mul": (opmux.silu_and_mul, (torch.cat((x, x), -1),), {}),
        "gelu_mul": (opmux.gelu_mul, (x, x.clone()), {}),
        "apply_rope": (opmux.apply_rope, (q, k, *angles), {}),
        "write_kv_cache": (
            opmux.write_kv_cache,
            (*(normal(rows, kv_heads, head_dim) for _ in "kv"), *cache, slots),
            {},
        ),
        "quantize": (opmux.quantize, (x,), fp8),
        "rms_norm_quantize": (opmux.rms_norm_quantize, (x, weight), fp8),
        "linear": (opmux.linear, (x, normal(inner, hidden)), {}),
        "paged_attention, decode": (opmux.paged_attention, decode, {"max_seqlen_q": 1, "max_seqlen_k": context}),
    }


def ways(call: Call) -> dict[str, tuple[Callable[[], Any], int]]:
    """Name -> what is timed, and how many calls of the op it stands for."""
    op, tensors, options = call
    found: dict[str, tuple[Callable[[], Any], int]] = {"call": (lambda: op(*tensors, **options), 1)}
    bound = op.bind(*tensors, **options)
    found["bound"] = (lambda: bound(*tensors), 1)
    for _ in range(3):  # plans, compiles, and keeps the launches
        result = op(*tensors, **options)
        bound(*tensors)
    plan = opmux.explain(op, *tensors, **options)
    if INTERPRETED or plan.chosen is None or not plan.chosen.name.startswith("triton"):
        return found
    made = [result] if isinstance(result, Tensor) else list(result or ())
    with recording(plan.arch) as recorded:
        bound(*tensors)

    def plain() -> None:
        for tensor in made:
            torch.empty_like(tensor)
        for one in recorded.launches:
            one.kernel[one.grid](*one.arguments, **one.meta)

    found["kernel[grid]"] = (plain, 1)
    many = raw(lambda: bound(*tensors))
    if many is not None:
        found["cuLaunchKernel"] = (many, BATCH)
    return found


def raw(run: Callable[[], Any]) -> Callable[[], Any] | None:
    """The launches of a call, `BATCH` times in one native call; None where they go through Triton."""
    repeats.forget()
    noting.notes = notes = Notes()
    try:
        run()
    finally:
        noting.notes = None
    bases = [getattr(value, "base", value) for one in notes.made for value in one.arguments]
    tensors = list({id(base): base for base in bases if isinstance(base, Tensor)}.values())
    many = native_launches(notes.made * BATCH, tensors, (), ()) if notes.whole else None
    return None if many is None else lambda: many(*tensors)


def gradients(device: str, tiny: bool) -> dict[str, tuple[Callable[[], Tensor], Callable[[], Tensor]]]:
    """Op and case -> a forward call of opmux with a gradient due, and of torch."""
    rows, hidden, seq, heads, head_dim = (4, 64, 8, 2, 16) if tiny else (8, 1024, 64, 8, 64)

    def leaf(*sizes: int) -> Tensor:
        return torch.randn(sizes, device=device).bfloat16().requires_grad_()

    x, gate, weight, w = leaf(rows, hidden), leaf(rows, hidden), leaf(hidden), leaf(hidden, hidden)
    q, k, v = (leaf(1, seq, heads, head_dim) for _ in "qkv")
    a, b, c = (t.detach().transpose(1, 2).contiguous().requires_grad_() for t in (q, k, v))
    return {
        "attention": (
            lambda: opmux.attention(q, k, v, causal=True),
            lambda: F.scaled_dot_product_attention(a, b, c, is_causal=True),
        ),
        "linear": (lambda: opmux.linear(x, w), lambda: F.linear(x, w)),
        "rms_norm": (lambda: opmux.rms_norm(x, weight), lambda: F.rms_norm(x, (hidden,), weight, 1e-6)),
        "silu_mul": (lambda: opmux.silu_mul(x, gate), lambda: F.silu(x) * gate),
    }


def settle(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def microseconds(run: Callable[[], Any], count: int, device: str) -> float:
    """Host time of one call, without waiting for the device."""
    settle(device)
    started = time.perf_counter_ns()
    for _ in range(count):
        run()
    taken = (time.perf_counter_ns() - started) / count / 1e3
    settle(device)
    return taken


def passes(forward: Callable[[], Tensor], count: int, device: str) -> tuple[float, float]:
    """Host time of a forward call, and of the backward pass of its result."""
    outs: list[Tensor] = []
    ahead = microseconds(lambda: outs.append(forward()), count, device)
    grads = [torch.ones_like(out) for out in outs]
    pairs = iter(list(zip(outs, grads, strict=True)))

    def back() -> None:
        out, grad = next(pairs)
        out.backward(grad)

    return ahead, microseconds(back, count, device)


def measure_calls(arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Op -> way -> microseconds a call."""
    found, failed = {}, {}
    for name, call in calls(arguments.device, arguments.tiny).items():
        try:
            found[name] = ways(call)
        except Exception as error:  # one op's failure must not stop the others
            failed[name] = f"{type(error).__name__}: {str(error)[:300]}"
            print(f"{name}: {failed[name]}", flush=True)
    taken: dict[str, dict[str, list[float]]] = {name: {way: [] for way in each} for name, each in found.items()}
    for number in rounds(arguments):
        for name, each in found.items():
            for way, (run, stands_for) in each.items():
                count = max(1, arguments.calls // stands_for)
                taken_us = microseconds(run, count, arguments.device) / stands_for
                if number:  # the first round warms up
                    taken[name][way].append(taken_us)
    return {n: {way: round(statistics.median(us), 2) for way, us in each.items()} for n, each in taken.items()}


def measure_gradients(arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Op -> "opmux forward", "torch forward", "opmux backward", "torch backward" -> microseconds."""
    taken: dict[str, dict[str, list[float]]] = {}
    pairs = gradients(arguments.device, arguments.tiny)
    count = max(2, arguments.calls // 4)
    for number in rounds(arguments):
        for name, both in pairs.items():
            for who, forward in zip(("opmux", "torch"), both, strict=True):
                for way, us in zip(("forward", "backward"), passes(forward, count, arguments.device), strict=True):
                    if number:
                        taken.setdefault(name, {}).setdefault(f"{who} {way}", []).append(us)
    return {n: {way: round(statistics.median(us), 2) for way, us in each.items()} for n, each in taken.items()}


def rounds(arguments: argparse.Namespace) -> Iterator[int]:
    """Numbers of rounds: one to warm up, and more until the time is over or there are enough."""
    over = time.monotonic() + arguments.seconds
    for number in range(arguments.rounds + 1):
        yield number
        if number and time.monotonic() > over:
            return


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--gradients", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="small sizes on the CPU, to see that everything runs")
    arguments = parser.parse_args()
    arguments.device = "cpu" if arguments.tiny else "cuda"
    if not arguments.gradients:
        torch.set_grad_enabled(False)
    found = measure_gradients(arguments) if arguments.gradients else measure_calls(arguments)
    for name, us in found.items():
        print(f"{name:28} " + "  ".join(f"{way} {value:.2f}" for way, value in us.items()), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps({"native": os.environ.get("OPMUX_NATIVE_LAUNCH"), "us": found}, indent=1))


if __name__ == "__main__":
    main()
