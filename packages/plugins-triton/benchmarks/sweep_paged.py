"""Launch parameters of paged attention, tried side by side on the shapes that count.

``python sweep_paged.py --out FILE.json --seconds 60`` on a GPU: compiles every variant in parallel, checks results
against torch (the Gluon prefill first, in a child with a time limit), times the variants in interleaved rounds of graph
replays, prints a short table last. ``--dry`` (with
TRITON_INTERPRET=1) runs all of its own logic on small sizes on the CPU.
"""

import argparse
import itertools
import json
import math
import os
import statistics
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

import torch

ARCH = "sm_90"
HEADS, KV_HEADS, DIM = 32, 8, 128

DECODE = {"64x8k": (64, 8192), "1x128k": (1, 131072), "256x1k": (256, 1024)}
SMALL = {"1x1k": (1, 1024), "8x2k": (8, 2048), "64x1k": (64, 1024)}
PAGES = (16, 64)
NEW, CACHED = 4096, 4096

DECODE_ALTERNATIVES = {
    name: {"n32 w4 s4": (32, 4, 4, 4), "n64 w4 s4 p8": (64, 4, 4, 8), "n64 w4 s4 p2": (64, 4, 4, 2)}
    if name == "1x128k"
    else {}
    for name in DECODE
}
"""Keys of a block, warps, stages and programs for each unit, by shape and label."""

PREFILL_SHAPES = [(128, 64, 8, 3), (64, 64, 4, 3)]
"""Rows, keys of a block, warps, stages of the portable kernel."""


def _hopper(stages: int, slots: int, loaders: int) -> dict[str, int]:
    found = {"hopper_block": 128, "hopper_stages": stages, "hopper_slots": slots, "hopper_loaders": loaders}
    # A warp that loads everything alone needs more registers.
    return found | ({"hopper_registers": 224, "hopper_loading_registers": 56} if loaders == 1 else {})


HOPPERS: dict[str, dict[str, int]] = {
    "hopper own": {"hopper_block": 128},
    "hopper s3 q1 l4": _hopper(3, 1, 4),
    "hopper s3 q1 l1": _hopper(3, 1, 1),
    "hopper s2 q2 l1": _hopper(2, 2, 1),
    "hopper s2 q2 l2": _hopper(2, 2, 2),
    "hopper s2 q2 l4": _hopper(2, 2, 4),
}
"""The Gluon prefill's stages of keys and values, places for queries, and warps that load."""


def decode_variants(name: str) -> dict[str, dict[str, int]]:
    """Changes of the config for decode, by label."""
    return {
        label: {
            "decode_block_n": block, "decode_num_warps": warps, "decode_num_stages": stages,
            "decode_programs": programs,
        }
        for label, (block, warps, stages, programs) in DECODE_ALTERNATIVES.get(name, {}).items()
    }  # fmt: skip


def prefill_variants(hopper: bool) -> dict[str, dict[str, int]]:
    """Changes of the config for prefill, by label."""
    found = {
        f"m{rows} n{block} w{warps} s{stages}": {
            "prefill_rows": rows, "prefill_block_n": block, "prefill_num_warps": warps, "prefill_num_stages": stages,
        }
        for rows, block, warps, stages in PREFILL_SHAPES
    }  # fmt: skip
    return {**HOPPERS, **dict(list(found.items())[:1])} if hopper else found


def base_config(
    arch: str, page_size: int, dim: int, value_dim: int, dtype: torch.dtype, override: dict[str, int], batch: int
) -> dict[str, Any]:
    """The config that the arch's heuristics pick, changed."""
    from opmux.arch import parse_arch
    from opmux_triton.paged import configs

    features = {"page_size": page_size, "head_dim": dim, "value_dim": value_dim}
    features["bucket(batch)"] = (batch - 1).bit_length()
    make = configs.float32_config if dtype == torch.float32 else configs.halves_config
    if "hopper_block" in override:
        make = configs.hopper_config
    return make(parse_arch(arch), features) | override


def targets_of(override: dict[str, int]) -> Any:
    """The module whose functions a config is for."""
    if "hopper_block" in override:
        from opmux_triton.paged import hopper

        return hopper
    from opmux_triton.paged import targets

    return targets


def options_of(most_new: int, longest: int, **more: Any) -> dict[str, Any]:
    """The options of a call."""
    usual = {"scale": None, "causal": True, "window": (-1, -1), "softcap": 0.0, "layout": "nhd"}
    return {"max_seqlen_q": most_new, "max_seqlen_k": longest, **usual, **more}


def launches_of(
    new: list[int], lengths: list[int], page_size: int, dtype: torch.dtype, shape: dict[str, int],
    chosen: dict[str, Any], override: dict[str, int], with_lse: bool,
) -> list[Any]:  # fmt: skip
    """What a call would launch; no device is touched."""
    from opmux_triton.launch import recording

    def empty(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    chosen = dict(chosen)
    sinks = empty(shape.get("heads", HEADS), dtype=torch.float32) if chosen.pop("sinks", False) else None
    heads, kv_heads = shape.get("heads", HEADS), shape.get("kv_heads", KV_HEADS)
    dim, value_dim = shape.get("dim", DIM), shape.get("value_dim", DIM)
    needed = [-(-length // page_size) for length in lengths]
    pages = sum(needed) + 1
    tensors = (
        empty(sum(new) + shape.get("rest", 0), heads, dim),
        empty(pages, page_size, kv_heads, dim), empty(pages, page_size, kv_heads, value_dim),
        empty(len(new) + 1, dtype=torch.int32), empty(len(new), dtype=torch.int32),
        empty(len(new), max(1, *needed), dtype=torch.int32), sinks,
    )  # fmt: skip
    config = base_config(ARCH, page_size, dim, value_dim, dtype, override, len(new))
    targets = targets_of(override)
    target = targets.paged_attention_lse if with_lse else targets.paged_attention
    with recording(ARCH) as recorded:
        target(*tensors, config=config, **options_of(max(new), max(lengths), **chosen))
    return list(recorded.launches)


def different(calls: list[tuple[Any, ...]]) -> list[tuple[tuple[Any, ...], int]]:
    """The (call, number of the launch) that need a compilation of their own."""
    found: dict[Any, tuple[tuple[Any, ...], int]] = {}
    for call in calls:
        for number, one in enumerate(launches_of(*call)):
            key: list[Any] = [one.kernel.__name__, *one.meta.items()]
            for argument in one.arguments:
                if isinstance(argument, int):
                    key.append("one" if argument == 1 else argument % 16 == 0)
                else:
                    key.append(getattr(argument, "dtype", type(argument)))
            found.setdefault(tuple(key), (call, number))
    return list(found.values())


def compile_one(call: tuple[Any, ...], number: int) -> None:
    """In a worker: compile a launch into Triton's cache on disk; no device is touched."""
    from opmux_triton.aot.build import build

    build(launches_of(*call)[number], ARCH)


def compile_all(jobs: list[tuple[tuple[Any, ...], int]], workers: int, deadline: float) -> list[str]:
    """Failures, one line each."""
    failures = []
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    waiting = {pool.submit(compile_one, *job): job for job in jobs}
    try:
        for future in as_completed(waiting, timeout=max(1.0, deadline - time.time())):
            if future.exception() is not None:
                failures.append(f"compile {str(waiting[future][0][2:])[:200]}: {str(future.exception())[:200]}")
    except TimeoutError:
        failures.append("compilation took too long: the rest is compiled when it is run")
    for process in list((pool._processes or {}).values()):
        process.terminate()
    pool.shutdown(wait=False, cancel_futures=True)
    return failures


def make_batch(
    new: list[int], lengths: list[int], page_size: int, dtype: torch.dtype, device: str, *,
    heads: int | None = None, kv_heads: int | None = None, dim: int | None = None, value_dim: int | None = None,
    rest: int = 0, seed: int = 0,
) -> tuple[tuple[torch.Tensor, ...], tuple[int, int]]:  # fmt: skip
    """Tensors of a paged call over caches that are slices of one tensor, pages in random order, their rest NaN."""
    heads, kv_heads = heads or HEADS, kv_heads or KV_HEADS
    dim, value_dim = dim or DIM, value_dim or DIM
    generator = torch.Generator(device).manual_seed(seed)
    needed = [-(-length // page_size) for length in lengths]
    pages = sum(needed) + 1
    order = torch.randperm(pages, generator=generator, device=device).to(torch.int32)
    table = torch.full((len(lengths), max(1, *needed)), 2**31 - 1, dtype=torch.int32, device=device)
    place = 0
    for row, count in enumerate(needed):
        table[row, :count] = order[place : place + count]
        place += count
    if dim == value_dim:
        both = torch.empty((2, pages, page_size, kv_heads, dim), dtype=dtype, device=device)
        k_cache, v_cache = both[0], both[1]
    else:
        k_cache = torch.empty((pages, page_size, kv_heads, dim), dtype=dtype, device=device)
        v_cache = torch.empty((pages, page_size, kv_heads, value_dim), dtype=dtype, device=device)
    k_cache.normal_(generator=generator)
    v_cache.normal_(generator=generator)
    for row, length in enumerate(lengths):
        if length % page_size:
            last = int(table[row, needed[row] - 1])
            k_cache[last, length % page_size :] = math.nan
            v_cache[last, length % page_size :] = math.nan
    q = torch.randn((sum(new) + rest, heads, dim), generator=generator, device=device, dtype=torch.float32).to(dtype)
    offsets = torch.tensor([0, *itertools.accumulate(new)], dtype=torch.int32, device=device)
    return (
        (q, k_cache, v_cache, offsets, torch.tensor(lengths, dtype=torch.int32, device=device), table),
        (max(new), max(lengths)),
    )


def expected(
    tensors: tuple[torch.Tensor, ...], options: dict[str, Any], sinks: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gather and softmax in float32, sequence by sequence."""
    q, k_cache, v_cache, offsets, lengths, table = tensors
    groups, page_size = q.shape[1] // k_cache.shape[2], k_cache.shape[1]
    out = torch.zeros((*q.shape[:2], v_cache.shape[3]), device=q.device)
    lse = torch.full((q.shape[1], q.shape[0]), -math.inf, device=q.device)
    starts = offsets.tolist()
    for row, length in enumerate(lengths.tolist()):
        start, stop = starts[row], starts[row + 1]
        if start == stop:
            continue
        pages = table[row, : -(-length // page_size)].long()
        k = k_cache[pages].flatten(0, 1)[:length].float().repeat_interleave(groups, 1)
        v = v_cache[pages].flatten(0, 1)[:length].float().repeat_interleave(groups, 1)
        scores = torch.einsum("qhd,khd->hqk", q[start:stop].float(), k) / math.sqrt(q.shape[2])
        if options["softcap"]:
            scores = options["softcap"] * torch.tanh(scores / options["softcap"])
        at = torch.arange(length - (stop - start), length, device=q.device)[:, None]
        key = torch.arange(length, device=q.device)[None]
        hidden = torch.zeros((stop - start, length), dtype=torch.bool, device=q.device)
        left, right = options["window"]
        if options["causal"]:
            hidden |= key > at
        if left >= 0:
            hidden |= key < at - left
        if right >= 0:
            hidden |= key > at + right
        scores = scores.masked_fill(hidden, -math.inf)
        if sinks is not None:
            scores = torch.cat([scores, sinks[:, None, None].expand(-1, stop - start, 1)], -1)
        lse[:, start:stop] = torch.logsumexp(scores, -1)
        out[start:stop] = torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., :length], v)
    return out, lse


def error(got: torch.Tensor, right: torch.Tensor) -> float:
    """||got - right|| / ||right||; infinite where one is not finite and the other is."""
    got, right = got.float(), right.float()
    if bool((got.isfinite() != right.isfinite()).any()):
        return math.inf
    apart = torch.where((got == right) | ~right.isfinite(), 0.0, got - right)
    return float(apart.norm() / torch.where(right.isfinite(), right, 0.0).norm().clamp_min(1e-30))


FEW = {"decode_programs": 1 << 16, "decode_least": 64, "prefill_programs": 1 << 16, "prefill_least": 64}
"""As many splits as there can be."""


def check_calls(dry: bool) -> list[tuple[str, tuple[Any, ...]]]:
    """Small and odd batches: a label, and what `compile_one` takes."""
    long = 100 if dry else 3000
    cases: dict[str, tuple[list[int], list[int], dict[str, int], dict[str, Any]]] = {
        "decode": ([1, 1, 0, 1, 1], [17, long, 30, 1, 77], {}, {}),
        "decode+rest": ([1, 1, 1], [long, 16, 33], {"rest": 5}, {}),
        "verify": ([3, 1, 2, 3], [long, 9, 64, 3], {}, {}),
        "prefill": ([long // 2], [long // 2], {}, {}),
        "chunked": ([70, 33], [long, 90], {}, {}),
        "mixed": ([1, 60, 0, 1, 2, 1], [long, 200, 7, 1, 90, 65], {"rest": 3}, {}),
        "window": ([1, 60, 2, 1], [long, 200, 50, 65], {}, {"window": (33, 0)}),
        "band": ([1, 60, 2, 1], [long, 200, 50, 65], {}, {"window": (33, 7), "causal": False, "softcap": 5.0}),
        "full": ([5, 60, 2, 1], [long, 200, 50, 65], {}, {"causal": False}),
        "dims": ([1, 40, 2], [long, 100, 50], {"dim": 72, "value_dim": 40, "heads": 6, "kv_heads": 2}, {}),
        "wide": ([1, 40, 2], [long, 100, 50], {"dim": 256, "value_dim": 256, "heads": 8, "kv_heads": 4}, {}),
        "mqa": ([1, 40, 2], [long, 100, 50], {"dim": 64, "value_dim": 64, "heads": 32, "kv_heads": 1}, {}),
    }
    found = []
    half = torch.bfloat16
    picked = [(name, 16, half) for name in cases]
    picked += [(name, size, half) for name in ("decode", "mixed") for size in (1, 48, 64)]
    picked += [(name, 16, dtype) for name in ("mixed", "band") for dtype in (torch.float16, torch.float32)]
    for name, page_size, dtype in picked:
        new, lengths, shape, chosen = cases[name]
        if dry:
            shape = {"heads": 4, "kv_heads": 2, "dim": 16, "value_dim": 16} | shape
            shape |= {"dim": min(shape["dim"], 24), "value_dim": min(shape["value_dim"], 24)}
        for label, override in (("own", {}), ("splits", FEW)):
            label = f"{name} pages {page_size} {str(dtype)[6:]} {label}"
            found.append((label, (new, lengths, page_size, dtype, shape, chosen, override, True)))
    return found


def check(device: str, arch: str, dry: bool, deadline: float) -> list[str]:
    """What is wrong in the results of `check_calls`, one line each."""
    from opmux_triton.paged import targets

    lines = []
    for label, (new, lengths, page_size, dtype, shape, chosen, override, _) in check_calls(dry):
        if time.time() > deadline:
            return [*lines, f"no time left from {label} on"]
        try:
            tensors, (most, longest) = make_batch(new, lengths, page_size, dtype, device, **shape)
            options = options_of(most, longest, **chosen)
            out, lse = expected(tensors, options)
            config = base_config(arch, page_size, tensors[0].shape[2], out.shape[2], dtype, override, len(new))
            got, got_lse = targets.paged_attention_lse(*tensors, None, config=config, **options)
            wrong, wrong_lse = error(got, out), error(got_lse, lse)
            if not (wrong < (1e-4 if dtype == torch.float32 else 1e-2) and wrong_lse < 1e-4):
                lines.append(f"WRONG {label}: {wrong:.2e}, lse {wrong_lse:.2e}")
        except Exception as raised:
            lines.append(f"ERROR {label}: {str(raised)[:200]}")
    return lines


def hopper_calls(variant: str) -> list[tuple[str, tuple[Any, ...], bool]]:
    """For the Gluon prefill: a label, what `compile_one` takes, and whether a value that some rows see is NaN."""
    half = torch.bfloat16
    long, mixed = ([300], [3000]), ([1, 300, 0, 1, 2, 129, 1, 64], [3000, 700, 7, 1, 90, 129, 65, 1000])
    news = [(number * 89) % 307 if number % 5 else 0 for number in range(40)]
    many = (news, [new + (number * 211) % 900 for number, new in enumerate(news)])
    narrow = {"dim": 64, "value_dim": 64}
    few = {"heads": 8, "kv_heads": 2}
    cases: list[tuple[str, Any, int, torch.dtype, dict[str, int], dict[str, Any], bool]] = [
        ("long", long, 16, half, {}, {}, False),
        ("long", long, 64, half, {}, {}, False),
        ("exact", ([256], [1024]), 16, half, {}, {}, False),
        ("mixed", mixed, 16, half, {"rest": 5}, {}, False),
        ("mixed", mixed, 64, torch.float16, few, {}, False),
        ("many", many, 16, half, few, {}, False),
        ("many", many, 64, half, few, {"sinks": True}, False),
        ("window", mixed, 16, half, few, {"window": (100, 0)}, False),
        ("band", mixed, 256, half, few, {"window": (100, 30), "causal": False}, False),
        ("nan", mixed, 16, half, {"rest": 5}, {}, True),
        ("narrow", mixed, 32, half, narrow, {}, False),
        ("full", mixed, 128, half, few, {"causal": False, "sinks": True}, False),
    ]
    if variant != "hopper own":
        cases = [case for case in cases if case[0] in ("exact", "many", "band", "nan")]
    override = HOPPERS[variant]
    return [
        (f"{variant}, {name}, pages {page_size}", (*batch, page_size, dtype, shape, chosen, override, True), nan)
        for name, batch, page_size, dtype, shape, chosen, nan in cases
    ]


def check_hopper(variant: str) -> None:
    """In a child, as it might hang: prints a line for each of `hopper_calls`."""
    from opmux_triton.paged import hopper, targets

    for label, (new, lengths, page_size, dtype, shape, chosen, override, _), strange in hopper_calls(variant):
        print(f"{label}: begun", flush=True)
        tensors, (most, longest) = make_batch(new, lengths, page_size, dtype, "cuda", **shape)
        chosen = dict(chosen)
        sinks = torch.randn(tensors[0].shape[1], device="cuda") if chosen.pop("sinks", False) else None
        options = options_of(most, longest, **chosen)
        config = base_config(ARCH, page_size, tensors[0].shape[2], tensors[2].shape[3], dtype, override, len(new))
        if strange:  # of a key in the middle of the new tokens of a sequence: some of its rows see it
            key = lengths[1] - 100
            tensors[2][int(tensors[5][1, key // page_size]), key % page_size] = math.nan
            out, lse = targets.paged_attention_lse(*tensors, sinks, config=config, **options)
            print(f"{label}: {int((~out.isfinite()).any(2).any(1).sum())} of 100 rows are not finite", flush=True)
        else:
            out, lse = expected(tensors, options, sinks)
        for _ in range(3):
            got, got_lse = hopper.paged_attention_lse(*tensors, sinks, config=config, **options)
        torch.cuda.synchronize()
        wrong, wrong_lse = error(got, out), error(got_lse, lse)
        verdict = "right" if wrong < 1e-2 and wrong_lse < 1e-4 else "WRONG"
        print(f"{label}: {verdict} {wrong:.2e}, lse {wrong_lse:.2e}", flush=True)


def run_hopper_checks(seconds: float) -> tuple[set[str], list[str]]:
    """The variants of the Gluon prefill that were right everywhere, and what their children printed: one for each."""
    import subprocess

    command = [sys.executable, os.path.abspath(__file__), "--child"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    children = {variant: subprocess.Popen([*command, variant], **pipes) for variant in HOPPERS}
    until, sound, lines = time.time() + seconds, set(), []
    for variant, child in children.items():
        try:
            text = child.communicate(timeout=max(0.5, until - time.time()))[0]
        except subprocess.TimeoutExpired:
            child.kill()
            text = child.communicate()[0] + f"\n{variant}: no end within {seconds:.0f} s"
        ended = child.returncode == 0
        said = text.splitlines()
        if ended and "WRONG" not in text:
            sound.add(variant)
            lines.append(f"{variant}: {sum(': right' in line for line in said)} cases right")
            lines += [line for line in said if "not finite" in line and variant == "hopper own"]
        else:
            lines += [line for line in said if "WRONG" in line] if ended else said[-6:]
    return sound, lines


class Timed:
    """Variants that are timed in turns; each is a list of calls on different data, replayed as a graph."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.graphs: dict[str, tuple[Any, int]] = {}
        self.times: dict[str, list[float]] = {}
        self.failed: dict[str, str] = {}

    def add(self, name: str, calls: list[Any]) -> None:
        try:
            if self.device == "cpu":
                self.graphs[name] = (lambda: [call() for call in calls], len(calls))
            else:
                for call in calls:
                    call()
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    for call in calls:
                        call()
                self.graphs[name] = (graph.replay, len(calls))
                graph.replay()
                torch.cuda.synchronize()
            self.times[name] = []
        except Exception as raised:
            self.failed[name] = f"{type(raised).__name__}: {str(raised)[:160]}"
            print(f"  {name} failed: {self.failed[name]}", flush=True)

    def rounds(self, count: int, deadline: float) -> dict[str, float]:
        """The median time of a call in microseconds."""
        for _ in range(count):
            for name, (replay, calls) in self.graphs.items():
                if self.device == "cpu":
                    begin = time.perf_counter()
                    replay()
                    self.times[name].append((time.perf_counter() - begin) * 1e6 / calls)
                    continue
                start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                replay()
                stop.record()
                stop.synchronize()
                self.times[name].append(start.elapsed_time(stop) * 1e3 / calls)
            if time.time() > deadline:
                break
        return {name: statistics.median(times) for name, times in self.times.items() if times}


def copy_bandwidth(device: str, dry: bool) -> float:
    """Bytes per second read and written by the best of a few large copies: copy engines' and kernels', no graphs."""
    count = 1 << (14 if dry else 28)
    a = torch.zeros(count, dtype=torch.float32, device=device)
    b = torch.empty_like(a)
    best = math.inf
    for copy in (lambda: b.copy_(a), lambda: torch.neg(a, out=b)):
        for _ in range(5):
            begin = time.perf_counter()
            if device != "cpu":
                start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                torch.cuda._sleep(200_000)  # the host is ahead when the first event is recorded
                start.record()
                copy()
                copy()
                stop.record()
                stop.synchronize()
                best = min(best, start.elapsed_time(stop) * 1e-3 / 2)
            else:
                copy()
                best = min(best, time.perf_counter() - begin)
    return 2 * 4 * count / best


def decode(
    device: str, arch: str, name: str, batch: int, length: int, page_size: int, variants: dict[str, dict[str, int]],
    deadline: float, rounds: int,
) -> tuple[dict[str, float], dict[str, str], int]:  # fmt: skip
    """Microseconds of each variant, what failed, and the bytes of keys and values."""
    from opmux_triton.paged import targets

    size = 2 * 2 * KV_HEADS * DIM * batch * length
    sets = max(1, min(4, -(-(1 << 30) // size))) if device != "cpu" else 1
    batches = [
        make_batch([1] * batch, [length] * batch, page_size, torch.bfloat16, device, seed=seed)[0]
        for seed in range(sets)
    ]
    options = options_of(1, length)
    right = None
    timed = Timed(device)
    for label, override in {"own": {}, **variants}.items():
        if time.time() > deadline:
            timed.failed[label] = "no time left"
            continue
        config = base_config(arch, page_size, DIM, DIM, torch.bfloat16, override, batch)
        try:
            got = targets.paged_attention(*batches[0], None, config=config, **options)
            if right is None:
                right = expected(tuple(t[:2] if i in (4, 5) else t for i, t in enumerate(batches[0])), options)[0][:2]
            wrong = error(got[:2], right)
            if not wrong < 1e-2:
                timed.failed[label] = f"WRONG {wrong:.2e}"
                continue
        except Exception as raised:
            timed.failed[label] = f"{type(raised).__name__}: {str(raised)[:160]}"
            continue

        def call(tensors: Any, config: Any = config) -> Any:
            return targets.paged_attention(*tensors, None, config=config, **options)

        timed.add(label, [lambda t=t, call=call: call(t) for t in batches])
    found = timed.rounds(rounds, deadline)
    return found, timed.failed, size


def prefill(
    device: str, arch: str, page_size: int, variants: dict[str, dict[str, int]], deadline: float, new: int, cached: int,
    rounds: int,
) -> tuple[dict[str, float], dict[str, str], float]:  # fmt: skip
    """Microseconds of each variant and of the same attention on contiguous tensors; floating-point operations."""
    import opmux

    tensors, (most, longest) = make_batch([new], [new + cached], page_size, torch.bfloat16, device)
    options = options_of(most, longest)
    q, k_cache, v_cache, _, _, table = tensors
    k, v = (c[table[0].long()].flatten(0, 1)[None, :longest].contiguous() for c in (k_cache, v_cache))
    right = expected(tensors, options)[0]
    timed = Timed(device)
    calls: dict[str, Any] = {}
    for label, override in {"own": {}, **variants}.items():
        config = base_config(arch, page_size, DIM, DIM, torch.bfloat16, override, 1)
        target = targets_of(override).paged_attention
        calls[label] = lambda config=config, target=target: target(*tensors, None, config=config, **options)
    calls["dense triton"] = lambda: opmux.attention(q[None], k, v, causal=True, backend="triton")[0]
    qs, ks, vs = (t.transpose(1, 2) for t in (q[None], k, v))
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def halves() -> None:
        """The cached part in full and the new one causally: all of the work, without joining the two."""
        sdpa(qs, ks[:, :, :cached], vs[:, :, :cached], enable_gqa=True)
        sdpa(qs, ks[:, :, cached:], vs[:, :, cached:], is_causal=True, enable_gqa=True)

    def lower_right() -> torch.Tensor:
        from torch.nn.attention.bias import causal_lower_right

        return sdpa(qs, ks, vs, attn_mask=causal_lower_right(new, new + cached), enable_gqa=True)[0].transpose(0, 1)

    def cudnn() -> None:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            halves()

    calls["cudnn in two parts"] = cudnn
    calls["flash lower right"] = lower_right
    if device == "cpu":
        del calls["cudnn in two parts"], calls["flash lower right"]
    for label, call in calls.items():
        if time.time() > deadline:
            timed.failed[label] = "no time left"
            continue
        try:
            got = call()
            if got is not None:
                wrong = error(got, right)
                if not wrong < 2e-2:
                    timed.failed[label] = f"WRONG {wrong:.2e}"
                    continue
        except Exception as raised:
            timed.failed[label] = f"{type(raised).__name__}: {str(raised)[:160]}"
            continue
        timed.add(label, [call])
    pairs = new * cached + new * (new + 1) // 2
    return timed.rounds(rounds, deadline), timed.failed, 4.0 * HEADS * DIM * pairs


def main() -> None:
    """The command."""
    global HEADS, KV_HEADS, DIM, DECODE, SMALL, NEW, CACHED
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=None)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--only", default="hopper,prefill,decode,check")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--child", default=None, help="only the checks of a variant of the Gluon prefill, as its child")
    parser.add_argument("--shapes", default="", help="of decode only these, by name, with commas")
    given = parser.parse_args()
    if given.child:
        check_hopper(given.child)
        return
    if given.shapes:
        DECODE = {name: DECODE[name] for name in given.shapes.split(",")}
    only = given.only.split(",")
    begin = time.time()
    deadline = begin + given.seconds
    device, arch = ("cpu", "cpu") if given.dry else ("cuda", ARCH)
    of_prefill = prefill_variants(not given.dry and "hopper" in only)
    if given.dry:
        HEADS, KV_HEADS, DIM, NEW, CACHED = 4, 2, 16, 20, 30
        DECODE, SMALL = {"3x100": (3, 100)}, {"1x40": (1, 40)}
        of_prefill = dict(list(of_prefill.items())[:2])
    report: dict[str, Any] = {"argv": sys.argv, "torch": torch.__version__}

    half = torch.bfloat16
    jobs: list[tuple[Any, ...]] = [call for _, call in check_calls(given.dry)] if "check" in only else []
    if "hopper" in only and not given.dry:
        checked = [one for variant in HOPPERS for one in hopper_calls(variant)]
        jobs = [call for _, call, _ in checked] + jobs
        jobs += [(*call[:6], {}, True) for _, call, strange in checked if strange]
    for page_size in PAGES:
        if "prefill" in only:
            for override in ({}, *of_prefill.values()):
                jobs.append(([NEW], [NEW + CACHED], page_size, half, {}, {}, override, False))
        for batch, length in (*(SMALL.values() if "small" in only else ()),):
            jobs.append(([1] * batch, [length] * batch, page_size, half, {}, {}, {}, False))
        for name, (batch, length) in (*(DECODE.items() if "decode" in only else ()),):
            jobs += [
                ([1] * batch, [length] * batch, page_size, half, {}, {}, override, False)
                for override in ({}, *decode_variants(name).values())
            ]
    compiled = different(jobs)
    print(f"{len(jobs)} calls, {len(compiled)} kernels to compile, {time.time() - begin:.1f} s", flush=True)
    if not given.dry:
        failures = compile_all(compiled, given.workers, min(deadline - 20, begin + 0.6 * given.seconds))
        report["compile"] = {"kernels": len(compiled), "seconds": time.time() - begin, "failures": failures}
        print("\n".join(failures), flush=True)
        print(f"compiled in {time.time() - begin:.1f} s", flush=True)

    lines: list[str] = []
    bandwidth = copy_bandwidth(device, given.dry)
    lines.append(f"copy {bandwidth / 1e12:.3f} TB/s")
    report["copy"] = bandwidth

    def part(name: str, function: Any) -> None:
        try:
            function()
        except Exception:
            lines.append(f"{name} failed: {traceback.format_exc(limit=3)[-300:]}")
            traceback.print_exc()

    def run_check() -> None:
        found = check(device, arch, given.dry, deadline)
        report["check"] = found
        print("\n".join(found), flush=True)
        lines.append(f"check: {len(found)} wrong, {time.time() - begin:.1f} s; {' | '.join(found[:3])[:400]}")

    def run_decode(shapes: dict[str, tuple[int, int]], best: int, label: str) -> None:
        report[label] = {}
        left = len(shapes) * len(PAGES)
        for name, (batch, length) in shapes.items():
            for page_size in PAGES:
                until = time.time() + max(2.0, (deadline - 8 - time.time()) / left)
                left -= 1
                variants = decode_variants(name)
                found, failed, size = decode(device, arch, name, batch, length, page_size, variants, until, 9)
                if not given.dry:
                    torch.cuda.empty_cache()
                report[label][f"{name} pages {page_size}"] = {"us": found, "failed": failed, "bytes": size}
                for one in sorted(found, key=lambda n: found[n])[:best]:
                    rate = size / (found[one] * 1e-6)
                    share = rate / bandwidth
                    lines.append(f"{name} pages {page_size}: {one}: {found[one]:.1f} us, {share:.3f} of copy")
                own = found.get("own", math.nan)
                share = size / (own * 1e-6) / bandwidth
                lines.append(f"{name} pages {page_size}: own {own:.1f} us, {share:.3f} of copy")
                lines.extend(f"{name} pages {page_size}: {one}: {why}"[:160] for one, why in list(failed.items())[:2])

    def run_prefill() -> None:
        report["prefill"] = {}
        for page_size in PAGES:
            until = time.time() + max(2.0, (deadline - time.time()) / 4)
            found, failed, work = prefill(device, arch, page_size, of_prefill, until, NEW, CACHED, 15)
            report["prefill"][f"pages {page_size}"] = {"us": found, "failed": failed, "work": work}
            for one in sorted(found, key=lambda n: found[n]):
                rate = work / found[one] / 1e6
                lines.append(f"prefill pages {page_size}: {one}: {found[one]:.1f} us, {rate:.0f} TFLOPS")
            lines.extend(f"prefill pages {page_size}: {one}: {why}"[:160] for one, why in failed.items())

    if "hopper" in only and not given.dry:
        sound, said = run_hopper_checks(min(25.0, max(5.0, deadline - 20 - time.time())))
        report["hopper"] = said
        lines.extend(line[:160] for line in said)
        of_prefill = {label: one for label, one in of_prefill.items() if label not in HOPPERS or label in sound}
    if "prefill" in only:
        part("prefill", run_prefill)
    if "small" in only:
        part("small", lambda: run_decode(SMALL, 0, "small"))
    if "decode" in only:
        part("decode", lambda: run_decode(DECODE, 4, "decode"))
    if "check" in only:
        part("check", run_check)
    report["seconds"] = time.time() - begin
    if given.out:
        with open(given.out, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1, default=str)
    print("\n".join(lines))
    print(f"{time.time() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    main()
