"""The figures of docs/benchmarks/cutile.md: each call in the heuristic's config beside its peers, in one run.

    python packages/plugins-cutile/benchmarks/figures.py --record sources.pickle   # what a bundle has to have
    python packages/plugins-cutile/benchmarks/figures.py --out docs/benchmarks/data/cutile.json

Times are medians of CUDA events around calls that take turns, with a second-level cache that has been overwritten.
Peers are a copy of as many bytes, cuBLASLt (``torch.nn.functional.linear``, ``torch._scaled_mm``), cuDNN, the Triton
backend, and with ``--tilegym`` TileGym's own calls. Host times are those of 100 planned calls in a row, median of 30.
"""

import argparse
import json
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OPMUX_PLUGINS", "cutile,triton")
sys.path.insert(0, str(Path(__file__).parent))

import tilegym_peers
import torch
import torch.nn.functional as F
from cases import BF16, Example, decode, drawn, flash, products, scaled_products, timed
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import opmux
from opmux.plugin import takers

FLUSHED = 1 << 30
"""Bytes written before each timed call, which take longer than the host does for a call."""
ROUNDS = 9
PARTS = {"memory": timed, "linear": products, "scaled": scaled_products, "attention": flash, "decode": decode}


def hosts() -> Iterator[Example]:
    """Calls whose time on the host is measured: too small to keep the GPU busy."""
    yield Example("rms_norm", "4x4096", lambda d: [drawn(d, 4, 4096), drawn(d, 4096)], {})
    yield Example("silu_and_mul", "4x4096", lambda d: [drawn(d, 4, 8192)], {})
    yield Example("linear", "16x512x512", lambda d: [drawn(d, 16, 512), drawn(d, 512, 512), None], {})


def bound(example: Example, backend: str, tensors: Sequence[Tensor | None]) -> Callable[[], Any] | None:
    """The call of a backend, planned; None where it does not take it."""
    found = takers(getattr(opmux, example.op), *tensors, arch="sm_90", backend=backend, **example.options)
    if not found:
        return None
    taker = found[0]
    return partial(taker.bound(taker.config()), *tensors, **taker.call.options)


def peers(
    part: str, example: Example, tensors: Sequence[Any], result: Any
) -> tuple[dict[str, Callable[[], Any]], float]:
    """What a call is compared with, and its work: operations, or bytes."""
    if part == "linear":
        x, w, _ = tensors
        return {"cublas": lambda: F.linear(x, w)}, 2.0 * x.shape[0] * w.numel()
    if part == "scaled":
        x, w, of_x, of_w, _ = tensors
        theirs = partial(torch._scaled_mm, x, w.t(), of_x, of_w.t(), out_dtype=BF16)
        return ({"cublas": theirs} if "rows" in example.text else {}), 2.0 * x.shape[0] * w.numel()
    if part == "attention":
        q, k, v, _ = (None if t is None else t.transpose(1, 2) for t in tensors)
        causal = bool(example.options["causal"])

        def cudnn() -> Tensor:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

        batch, heads, seq, dim = q.shape
        return {"cudnn": cudnn}, 4.0 * batch * heads * seq * seq * dim / (2 if causal else 1)
    moved = [*tensors, *(result if isinstance(result, tuple) else (result,))]
    size = sum(t.numel() * t.element_size() for t in moved if isinstance(t, Tensor))
    there, here = (torch.empty(size // 2, dtype=torch.int8, device="cuda") for _ in range(2))
    return {"copy": lambda: there.copy_(here)}, float(size)


def microseconds(calls: dict[str, Callable[[], Any]], flush: Tensor) -> dict[str, float]:
    """The median time of each of some calls, which take turns."""
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(ROUNDS):
        events = {}
        for name, call in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flush.zero_()
            start.record()
            call()
            end.record()
            events[name] = start, end
        torch.cuda.synchronize()
        for name, (start, end) in events.items():
            spent[name].append(start.elapsed_time(end) * 1e3)
    return {name: sorted(times)[ROUNDS // 2] for name, times in spent.items()}


def measure(until: float, beside_triton: bool, beside_tilegym: bool) -> Iterator[dict[str, Any]]:
    """Every line, as long as there is time."""
    flush = torch.empty(FLUSHED, dtype=torch.int8, device="cuda")
    for part, examples in PARTS.items():
        for example in examples():
            line: dict[str, Any] = {"part": part, "op": example.op, "call": example.text}
            if time.time() > until:
                yield line | {"failed": "out of time"}
                continue
            try:
                tensors = example.make("cuda")
                ours = bound(example, "cutile", tensors)
                assert ours is not None
                others, work = peers(part, example, tensors, ours())
                triton = bound(example, "triton", tensors) if beside_triton else None
                calls = {"cutile": ours, **others, **({"triton": triton} if triton else {})}
                if beside_tilegym:
                    try:
                        if (theirs := tilegym_peers.peer(example, tensors)) is not None:
                            theirs()  # it tunes itself
                            calls["tilegym"] = theirs
                    except Exception as error:
                        line["tilegym_failed"] = f"{type(error).__name__}: {str(error)[:200]}"
                yield line | {"work": work, "microseconds": microseconds(calls, flush)}
            except Exception as error:
                yield line | {"failed": f"{type(error).__name__}: {str(error)[:200]}"}


def on_the_host(example: Example, backend: str) -> float:
    """The host's time of a planned call in microseconds."""
    call = partial(getattr(opmux, example.op), *example.make("cuda"), backend=backend, **example.options)
    for _ in range(200):
        call()
    found = []
    for _ in range(30):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(100):
            call()
        found.append((time.perf_counter() - start) * 1e4)
    return sorted(found)[15]


def record(path: Path, arch: str) -> None:
    """Write the sources of the kernels that a run launches."""
    from opmux_cutile.prebuilding import kernels_of
    from opmux_jit.cache.keys import source_key

    found = {}
    for example in (*(e for examples in PARTS.values() for e in examples()), *hosts()):
        tensors = example.make("meta")
        for taker in takers(getattr(opmux, example.op), *tensors, arch=arch, backend="cutile", **example.options):
            for kernel in kernels_of(taker):
                source = kernel.source(arch)
                found[source_key(source)] = source
    path.write_bytes(pickle.dumps(found))
    print(f"{len(found)} kernels")


def main() -> None:
    """Measure, or record what is to be compiled."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--without-triton", action="store_true", help="whose kernels are compiled where they run")
    parser.add_argument("--tilegym", action="store_true", help="beside TileGym too, which has to be installed")
    parser.add_argument("--seconds", type=float, default=120)
    given = parser.parse_args()
    if given.record:
        record(given.record, given.arch)
        return
    lines = []
    for line in measure(time.time() + given.seconds, not given.without_triton, given.tilegym):
        lines.append(line)
        print(json.dumps(line), flush=True)
    host = [
        {"op": e.op, "call": e.text, "microseconds": {name: on_the_host(e, name) for name in ("cutile", "triton")}}
        for e in hosts()
    ]
    data = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "date": time.strftime("%Y-%m-%d"),
        "lines": lines,
        "host": host,
    }
    given.out.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
