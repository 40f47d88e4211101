"""Paged decode on sm_90, with few kv heads on shapes drawn by a seed, against a copy of as many bytes.

``python benchmarks/measure_paged.py --seed N --out FILE.json [--each 4] [--fp8] [--heads 1 2] [--limit SECONDS]
[--apart] [--dry]``. The lengths of a batch differ by up to three times. With ``--listed`` instead of a seed the shapes
are those of ``opmux bench --size figures``. With ``--fp8`` the caches of the same shapes
hold fp8 in the arch's own flavour, with a scale for each kv head, beside bfloat16 queries. Each shape is checked
against the reference on its own tensors, then timed with a cold cache; a copy that reads and writes as many bytes in
all as the call reads of keys and values is timed in the same rounds. With ``--apart`` also what a call takes before it
reads much: the same call with one key in each sequence, a copy of 4 KiB, and each kernel by itself, as a profiler sees
it. ``scripts/paged_page.py`` makes a page from the result, ``scripts/quantised_page.py`` a section.
"""

import argparse
import json
import math
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor

import opmux
from opmux.bench.clocks import Timed, clock_for, interleave
from opmux.bench.data import Data
from opmux.bench.shapes import FIGURES

HEADS = (1, 2)
HEAD_DIMS = (64, 128, 256)
PAGES = (16, 32, 64)
SIZES = (50e6, 1.3e9)
"""Bytes of keys and values."""
LONGEST = (1024, 65536)
GROUPS = (4, 8, 16)
SPREAD = 3
CODES = 32.0
"""The standard deviation of the codes in fp8 caches."""
FLUSH_BYTES = 512 * 2**20
FLUSHES = 4
"""So that no kernel waits for the host, which a profiler slows down."""
COMPILING = 6
"""Processes that call a shape each, so that what it launches is compiled before anything is timed."""
COMPILED_S = 60.0
"""Seconds after which what is left is compiled where it is timed."""
PROFILED = 7
"""Calls that a profiler sees."""
FILLS = "elementwise_kernel"
"""Part of the names of kernels that flush the cache."""
AGREES = 0.01
"""The largest relative distance of a result from the reference's: the weights are rounded to 16 bits."""


@dataclass(frozen=True)
class Drawn:
    """A shape: ``lengths`` are those of its sequences."""

    kv_heads: int
    group: int
    head_dim: int
    page_size: int
    lengths: tuple[int, ...]
    itemsize: int = 2

    @property
    def kv_bytes(self) -> int:
        """What a call reads of keys and values."""
        return sum(self.lengths) * self.kv_heads * self.head_dim * 2 * self.itemsize

    @property
    def title(self) -> str:
        """The shape in a line."""
        lengths = f"{len(self.lengths)} x {min(self.lengths)} to {max(self.lengths)}"
        heads = f"{self.kv_heads * self.group}/{self.kv_heads} heads of {self.head_dim}"
        return f"{lengths}, {heads}, pages of {self.page_size}, {self.kv_bytes / 1e6:.0f} MB"


def drawn(seed: int, each: int, heads: Sequence[int] = HEADS, itemsize: int = 2) -> list[Drawn]:
    """``each`` shapes for every number of kv heads and head size; one of them has about the fewest bytes in 16 bits."""
    source = random.Random(seed)

    def between(low: float, high: float) -> float:
        return low * (high / low) ** source.random()

    found = []
    for kv_heads in heads:
        for head_dim in HEAD_DIMS:
            for number in range(each):
                size = SIZES[0] * 1.05 if number == 0 else between(*SIZES)
                row, mean = kv_heads * head_dim * 4, (1 + 1 / SPREAD) / 2
                longest = min(int(between(*LONGEST)), int(size / row / mean))
                batch = max(1, round(size / row / mean / longest))
                lengths = tuple(source.randint(-(-longest // SPREAD), longest) for _ in range(batch))
                found.append(Drawn(kv_heads, source.choice(GROUPS), head_dim, source.choice(PAGES), lengths, itemsize))
    return found


def listed(itemsize: int = 2) -> list[Drawn]:
    """The calls with one query in each sequence of `paged_attention` in ``opmux bench --size figures``."""
    return [
        Drawn(s.kv_heads, s.heads // s.kv_heads, s.head_dim, s.page_size, (s.context,) * s.batch, itemsize)
        for s in FIGURES["paged_attention"]
        if s.new == 1
    ]


def tensors_of(shape: Drawn, data: Data) -> tuple[tuple[Tensor | None, ...], dict[str, Any]]:
    """A call's tensors and options; pages lie in random order."""
    batch, longest = len(shape.lengths), max(shape.lengths)
    each = -(-longest // shape.page_size)
    order = torch.randperm(batch * each, generator=data.generator, device=data.device).to(torch.int32)
    caches = [data.normal(batch * each, shape.page_size, shape.kv_heads, shape.head_dim) for _ in range(2)]
    scales: list[Tensor | None] = [None, None]
    if shape.itemsize == 1:
        # Codes of about 32 use the format's whole range; scales differ from head to head.
        caches = [cache.mul_(CODES).to(opmux.fp8_dtype(data.device)) for cache in caches]
        steps = torch.arange(1, shape.kv_heads + 1, device=data.device, dtype=torch.float32)
        scales = [(1 + steps / (place + 2 * shape.kv_heads)) / CODES for place in range(2)]
    q = data.normal(batch, shape.kv_heads * shape.group, shape.head_dim)
    rows = (data.offsets(batch, 1), data.ints(shape.lengths), order.reshape(batch, each))
    return (q, *caches, *rows, None, None, *scales), {"max_seqlen_q": 1, "max_seqlen_k": longest}


def kernels_in(trace: Mapping[str, Any], calls: int) -> Iterator[dict[str, Any]]:
    """The kernels of a call, in their order, from a profiler's trace of some calls: each with its median time.

    Kernels that flush the cache are left out. ``from_us`` is when a kernel begins, from the beginning of the first one.
    """
    found = [one for one in trace["traceEvents"] if one.get("cat") == "kernel" and FILLS not in one["name"]]
    found.sort(key=lambda one: one["ts"])
    each = len(found) // calls
    if not each or len(found) % calls:
        raise RuntimeError(f"expected the same kernels in each of {calls} calls, got {len(found)} kernels in all")
    for place in range(each):
        same = found[place::each]
        begun = (one["ts"] - first["ts"] for one, first in zip(same, found[::each], strict=True))
        more = {name: same[0]["args"].get(name) for name in ("grid", "registers per thread", "shared memory")}
        yield {
            "name": same[0]["name"],
            "us": round(median(one["dur"] for one in same), 2),
            "from_us": round(median(begun), 2),
            **more,
        }


def kernels_of(call: Callable[[], Any]) -> list[dict[str, Any]]:
    """The kernels of a call on a cold cache; none where a profiler cannot tell."""
    try:
        return profiled(call)
    except Exception as error:  # the times of a shape must not be lost with it
        print(f"no kernels: {type(error).__name__}: {error}", flush=True)
        return []


def profiled(call: Callable[[], Any]) -> list[dict[str, Any]]:
    """The kernels of a call on a cold cache."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(PROFILED):
            for _ in range(FLUSHES):
                flush.zero_()
            call()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        return list(kernels_in(json.loads(path.read_text(encoding="utf-8")), PROFILED))


def called(shape: Drawn) -> None:
    """Call a shape, in a process of its own: what it launches is compiled then."""
    tensors, options = tensors_of(shape, Data.seeded(torch.device("cuda"), torch.bfloat16))
    opmux.paged_attention(*tensors, **options, backend="triton")
    torch.cuda.synchronize()
    del tensors
    torch.cuda.empty_cache()


def compile_for(shapes: Sequence[Drawn]) -> None:
    """Compile what the shapes launch."""
    pool = ProcessPoolExecutor(COMPILING, mp_context=multiprocessing.get_context("spawn"))
    try:
        for done in as_completed([pool.submit(called, shape) for shape in shapes], timeout=COMPILED_S):
            if (error := done.exception()) is not None:
                print(f"not compiled: {type(error).__name__}: {' '.join(str(error).split())[:300]}", flush=True)
        pool.shutdown()
    except (TimeoutError, BrokenProcessPool) as error:
        print(f"compiling ended early: {error!r}", flush=True)
        for process in list((pool._processes or {}).values()):
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)


def measured(shape: Drawn, rounds: int, apart: bool) -> dict[str, Any]:
    """The times of a shape in microseconds, and how far the result is from the reference's.

    With ``apart`` also those of a call with one key in each sequence, of a small copy, and of each kernel.
    """
    device = torch.device("cuda")
    data = Data.seeded(device, torch.bfloat16)
    tensors, options = tensors_of(shape, data)
    call = partial(opmux.paged_attention, *tensors, **options, backend="triton")
    wide = [t.float() if t is not None and t.dtype == torch.bfloat16 else t for t in tensors]
    expected = opmux.paged_attention(*wide, **options, backend="reference")
    differs = float(((call().float() - expected).norm(dim=-1) / expected.norm(dim=-1)).max())
    del wide, expected
    source = torch.empty(shape.kv_bytes // 2, dtype=torch.int8, device=device)
    contenders = {"triton": Timed(call), "copy": Timed(partial(torch.empty_like(source).copy_, source))}
    if apart:
        ones = Data.seeded(device, torch.bfloat16).ints([1] * len(shape.lengths))
        empty = partial(opmux.paged_attention, *tensors[:4], ones, *tensors[5:], **options, backend="triton")
        small = torch.empty(2048, dtype=torch.int8, device=device)
        contenders["one key"] = Timed(empty)
        contenders["small copy"] = Timed(partial(torch.empty_like(small).copy_, small))
    clock = clock_for(device)
    for name, timed in contenders.items():
        clock.warm_up(name, timed)
    times = interleave(clock, contenders, rounds, 2.0, shuffled=random.Random(0))
    more = {"kernels": kernels_of(call), "kernels of one key": kernels_of(empty)} if apart else {}
    return {
        "shape": asdict(shape) | {"lengths": [len(shape.lengths), min(shape.lengths), max(shape.lengths)]},
        "title": shape.title,
        "kv_bytes": shape.kv_bytes,
        "apart": differs,
        "times_us": {name: quantiles(taken, n=4) for name, taken in times.items()},
        **more,
    }


def ceiling() -> float:
    """Bytes per microsecond, read and written, of a copy of 4 GiB in all."""
    source = torch.empty(2**31, dtype=torch.int8, device="cuda")
    timed = {"copy": Timed(partial(torch.empty_like(source).copy_, source))}
    clock = clock_for(source.device)
    clock.warm_up("copy", timed["copy"])
    return 2 * source.numel() / sorted(interleave(clock, timed, 9, 2.0)["copy"])[4]


def main() -> int:
    """Measure, print and write; 1 where a result is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int)
    which.add_argument("--listed", action="store_true", help="the shapes of `opmux bench --size figures`")
    parser.add_argument("--each", type=int, default=4, help="shapes for every number of kv heads and head size")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--fp8", action="store_true", help="caches in fp8, the shapes of 16-bit ones")
    parser.add_argument("--apart", action="store_true", help="also what a call takes before it reads much")
    parser.add_argument("--heads", type=int, nargs="+", default=HEADS, help="numbers of kv heads")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which no further shape is begun")
    parser.add_argument("--dry", action="store_true", help="list the shapes; needs no GPU")
    given = parser.parse_args()
    begun = time.monotonic()
    itemsize = 1 if given.fp8 else 2
    shapes = listed(itemsize) if given.listed else drawn(given.seed, given.each, given.heads, itemsize)
    if given.dry:
        sys.stdout.write("".join(f"{shape.title}\n" for shape in shapes))
        return 0
    if not torch.cuda.is_available():
        parser.error("measuring needs a GPU and there is none; --dry lists the shapes")
    found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "copy_bytes_per_us": ceiling()}
    cases: list[dict[str, Any]] = []
    compile_for(shapes)
    print(f"compiled after {time.monotonic() - begun:.0f} s", flush=True)
    for shape in shapes:
        if time.monotonic() - begun > given.limit:
            print(f"{len(shapes) - len(cases)} of {len(shapes)} shapes were left out: the limit is over")
            break
        cases.append(measured(shape, given.rounds, given.apart))
        took, copy = (cases[-1]["times_us"][name][1] for name in ("triton", "copy"))
        rate, wrong = shape.kv_bytes / took, cases[-1]["apart"]
        said = f"{shape.title}: {took:.1f} us, {rate / 1e6:.2f} TB/s, {copy / took:.3f} of copy, apart {wrong:.4f}"
        if given.apart:
            ones, small = (cases[-1]["times_us"][name][1] for name in ("one key", "small copy"))
            kernels = " + ".join(f"{one['us']:.1f} of {one['grid']}" for one in cases[-1]["kernels"])
            said += f"; one key {ones:.1f}, small copy {small:.1f}, kernels {kernels}"
        print(said, flush=True)
        if given.out is not None:
            given.out.write_text(json.dumps({**found, "seed": given.seed, "cases": cases}, indent=1) + "\n")
    return int(not all(case["apart"] <= AGREES for case in cases))


if __name__ == "__main__":
    sys.exit(main())
