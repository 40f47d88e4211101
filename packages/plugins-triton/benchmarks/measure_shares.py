"""Shares of the gradients of keys and values on a GPU: checks against the reference, then times beside cuDNN.

``python benchmarks/measure_shares.py [--seed N] [--limit SECONDS] [--chosen]`` prints one line for each check and each
shape as it goes: device microseconds (cold cache) of the numbers of shares, of the orders of tiles, and of torch's
gradients by cuDNN. ``--chosen`` times only what the heuristics choose. Starts no shape after ``--limit`` seconds.
"""

import argparse
import multiprocessing
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import opmux
from opmux.bench.clocks import CudaClock, Timed, interleave
from opmux.bench.data import Arguments, Data
from opmux.bench.shapes import Shape, attention
from opmux.bench.variants import BoundCase, Case, Configured
from opmux.bench.work import difference
from opmux.callpath.op import OPS
from opmux.plugin import parse_arch
from opmux.plugins import loading
from opmux_triton.attention.backward.configs import backward_config, hopper_config

MASK = (True, True, True, False)
NAMED = (
    (2, 3083, 4, 1, 96, True), (2, 2805, 8, 1, 80, False), (24, 283, 2, 1, 64, False), (3, 2771, 4, 1, 128, True),
    (2, 3474, 4, 1, 80, False), (11, 444, 4, 1, 64, True), (10, 517, 8, 2, 128, True), (30, 142, 2, 1, 80, True),
    (2, 5404, 8, 2, 80, False), (12, 718, 16, 4, 80, True), (34, 141, 8, 4, 64, False),
)  # fmt: skip
"""(batch, seq, heads, kv_heads, head_dim, causal): shapes whose tiles of keys leave multiprocessors without work."""
CHECKS: tuple[tuple[tuple[int, int, int, int, int], dict[str, Any]], ...] = (
    ((2, 517, 4, 1, 64), {}),
    ((2, 517, 8, 2, 128), {"causal": True}),
    ((1, 700, 6, 2, 96), {"causal": True}),
    ((2, 449, 8, 1, 80), {"window": (100, 50)}),
    ((1, 600, 4, 4, 128), {"causal": True, "window": (64, -1)}),
    ((2, 300, 4, 2, 64), {"softcap": 20.0}),
    ((2, 300, 4, 1, 128), {"causal": True, "sinks": True}),
)
"""(batch, seq, heads, kv_heads, head_dim) and options of the checked calls."""


def drawn(seed: int, count: int) -> Iterator[tuple[int, int, int, int, int, bool]]:
    """Shapes with few key and value heads, where shares may help."""
    draw = random.Random(seed)
    for _ in range(count):
        seq = round(2 ** draw.uniform(7.2, 12.2))
        kv_heads = draw.choice((1, 1, 2, 4))
        batch = max(1, min(40, round(draw.uniform(0.5, 2.5) * 8192 / seq / kv_heads)))
        yield (
            batch,
            seq,
            kv_heads * draw.choice((1, 2, 4, 8)),
            kv_heads,
            draw.choice((64, 80, 96, 128)),
            draw.random() < 0.5,
        )


def guarded(title: str, function: Callable[[], str], quiet: bool = False) -> None:
    """Print what a function says, or its error by name; a failure of one line leaves the others."""
    try:
        said = function()
    except Exception as error:  # one failure must not end the run
        said = f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
    if not quiet:
        print(f"{title}: {said}", flush=True)


def configs(head_dim: int) -> tuple[Any, Any]:
    """What the heuristics pick on sm_90, portable and Gluon."""
    features = {"head_dim": head_dim, "value_dim": head_dim, "bucket(seq_q)": 12}
    return backward_config(parse_arch("sm_90"), features), hopper_config(parse_arch("sm_90"), features)


def check(sizes: tuple[int, int, int, int, int], options: dict[str, Any], device: torch.device) -> str:
    """The largest difference of each path and number of shares, as a fraction of the largest magnitude."""
    batch, seq, heads, kv_heads, dim = sizes
    draw = torch.Generator(device).manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, device=device).to(torch.bfloat16)

    q, k, v = normal(batch, seq, heads, dim), normal(batch, seq, kv_heads, dim), normal(batch, seq, kv_heads, dim)
    options = dict(options)
    sinks = normal(heads) if options.pop("sinks", False) else None
    out, lse = opmux.attention_lse(q, k, v, sinks, backend="reference", **options)
    tensors = (normal(*out.shape), q, k, v, out, lse, sinks, None)
    defaults = {"scale": None, "causal": False, "window": (-1, -1), "softcap": 0.0, "output_mask": MASK}
    keywords = defaults | options
    expected = [g for g in opmux.attention_backward(*tensors, backend="reference", **keywords) if g.numel()]
    portable, gluon = configs(dim)
    said = []
    for path, base in (("triton", portable), ("triton:hopper", gluon)):
        if path == "triton:hopper" and (options.get("softcap") or device.type != "cuda"):
            continue
        for shares in (1, 2, 3, 4, 8, 0):
            run = Configured(path, replace(base, shares=shares)).bound(OPS["attention_backward"], device)
            found = [g for g in run(*tensors, **keywords) if g.numel()]
            again = [g for g in run(*tensors, **keywords) if g.numel()]
            apart = difference(found, expected)
            same = all(torch.equal(x, y) for x, y in zip(found[1:], again[1:], strict=True))
            wrong = "" if apart <= 0.03 and same else " WRONG"
            said.append(f"{path} {shares}: {apart:.4f}{'' if same else ' not the same twice'}{wrong}")
    return ", ".join(said)


def ragged(device: torch.device) -> str:
    """A ragged batch with an empty sequence and tokens past the last one, by shares."""
    draw = torch.Generator(device).manual_seed(8)
    lengths = [300, 0, 517, 64]
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device=device)
    tokens = sum(lengths) + 10
    q, k, v = (
        torch.randn((tokens, heads, 64), generator=draw, device=device).to(torch.bfloat16) for heads in (8, 2, 2)
    )
    longest = {"max_seqlen_q": 517, "max_seqlen_k": 517}
    out, lse = opmux.attention_varlen_lse(q, k, v, offsets, offsets, backend="reference", causal=True, **longest)
    grad = torch.randn(out.shape, generator=draw, device=device).to(torch.bfloat16)
    tensors = (grad, q, k, v, out, lse, offsets, offsets, None, None)
    keywords = {"scale": None, "causal": True, "window": (-1, -1), "softcap": 0.0, "output_mask": MASK, **longest}
    expected = opmux.attention_varlen_backward(*tensors, backend="reference", **keywords)[:3]
    portable, _ = configs(64)
    said = []
    for shares in (1, 2, 4, 0):
        run = Configured("triton", replace(portable, shares=shares)).bound(OPS["attention_varlen_backward"], device)
        apart = difference(list(run(*tensors, **keywords)[:3]), list(expected))
        said.append(f"{shares}: {apart:.4f}{'' if apart <= 0.03 else ' WRONG'}")
    return ", ".join(said)


def contenders_of(
    sizes: tuple[int, int, int, int, int, bool], chosen: bool, device: torch.device
) -> dict[str, Callable[[], Any]]:
    """The calls to be timed, by name."""
    shape = attention(*sizes)
    bound = BoundCase(Case("attention_backward", shape, {}, make=_without_reference), shape, device)
    dim, causal = sizes[4:]
    portable, gluon = configs(dim)
    made = {"hopper": ("triton:hopper", gluon), "portable": ("triton", portable)}
    if not chosen:
        for shares in (1, 2, 3, 4, 6, 8):
            made[f"hopper {shares}"] = ("triton:hopper", replace(gluon, shares=shares))
        made["hopper 1 sections"] = ("triton:hopper", replace(gluon, shares=1, together=1))
        for shares in (1, 2, 4):
            made[f"portable {shares}"] = ("triton", replace(portable, shares=shares))
    found = {name: bound.call(Configured(path, config)) for name, (path, config) in made.items()}
    return {"cuDNN": _by_torch(bound.arguments.tensors, causal), **found}


def warm(job: tuple[int, int, bool]) -> None:
    """Compile what a head size needs, in a process of its own: the kernels are found in Triton's cache afterwards."""
    loading.ensure_loaded()
    device = torch.device("cuda", 0)
    dim, number, causal = job
    if number >= 0:
        guarded("", lambda: check(*CHECKS[number], device), quiet=True)
        return
    for seq in (512, 517):
        for run in contenders_of((1, seq, 2, 1, dim, causal), False, device).values():
            guarded("", lambda run=run: str(run()), quiet=True)


class Timing:
    """Times of one shape after another, on one clock."""

    def __init__(self, device: torch.device, chosen: bool) -> None:
        self._clock, self._device, self._chosen = CudaClock(device), device, chosen

    def __call__(self, batch: int, seq: int, heads: int, kv_heads: int, dim: int, causal: bool) -> str:
        """Microseconds by name; the first ratio is cuDNN's time over that of what is chosen."""
        contenders = contenders_of((batch, seq, heads, kv_heads, dim, causal), self._chosen, self._device)
        timed = {name: Timed(run) for name, run in contenders.items()}
        for name, one in timed.items():
            self._clock.warm_up(name, one)
        samples = interleave(self._clock, timed, 9, 1.0)
        times = {name: statistics.median(of) for name, of in samples.items()}
        rest = ", ".join(f"{name} {time:.0f}" for name, time in times.items())
        return f"{times['cuDNN'] / times['hopper']:.2f} of cuDNN's speed; {rest}"


def _without_reference(data: Data, s: Shape) -> Arguments:
    """Arguments whose out and lse come from an implementation of opmux that is fast."""
    q = data.normal(s.batch, s.new, s.heads, s.head_dim)
    k, v = (data.normal(s.batch, s.context, s.kv_heads, s.head_dim) for _ in range(2))
    out, lse = opmux.attention_lse(q, k, v, causal=s.causal)
    return Arguments(
        (data.normal(*out.shape), q, k, v, out, lse, None, None), {"causal": s.causal, "output_mask": MASK}
    )


def _by_torch(tensors: tuple[Any, ...], causal: bool) -> Callable[[], Any]:
    grad, q, k, v = tensors[:4]
    leaves = [t.transpose(1, 2).detach().requires_grad_() for t in (q, k, v)]
    with torch.enable_grad(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
        out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal, enable_gqa=True)
    return lambda: torch.autograd.grad(out, leaves, grad.transpose(1, 2), retain_graph=True)


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=47)
    parser.add_argument("--drawn", type=int, default=12)
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--chosen", action="store_true")
    parser.add_argument("--dry", action="store_true", help="only the portable checks, interpreted on the CPU")
    given = parser.parse_args()
    started = time.monotonic()
    loading.ensure_loaded()
    device = torch.device("cpu") if given.dry else torch.device("cuda", 0)
    if not given.dry:
        jobs = [(0, number, False) for number in range(len(CHECKS))]
        jobs += [(dim, -1, causal) for dim in (64, 80, 96, 128) for causal in (False, True)]
        with ProcessPoolExecutor(len(jobs), multiprocessing.get_context("spawn")) as pool:
            list(pool.map(warm, jobs))
        print(f"compiled in {time.monotonic() - started:.0f} s", flush=True)
    for sizes, options in CHECKS:
        guarded(f"check {sizes} {options}", lambda sizes=sizes, options=options: check(sizes, options, device))
    guarded("check ragged", lambda: ragged(device))
    if given.dry:
        return 0
    timing = Timing(device, given.chosen)
    for shape in (*NAMED, *drawn(given.seed, given.drawn)):
        if time.monotonic() - started > given.limit:
            print("out of time", flush=True)
            break
        guarded(f"{time.monotonic() - started:.0f} s {shape}", lambda shape=shape: timing(*shape))
    return 0


if __name__ == "__main__":
    sys.exit(main())
