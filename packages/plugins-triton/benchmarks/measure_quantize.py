"""The bandwidth of quantisation, against a copy that moves as many bytes.

``python benchmarks/measure_quantize.py --out FILE.json [--rows 16384] [--limit SECONDS] [--dry]``. Each op runs on
bfloat16 of 8192 columns, 268 MB with the default number of rows, through its public function with
``backend="triton"``. What a call moves is what it reads and writes once; a scale for a whole matrix takes two passes
over it, so its bytes are counted for each. Each result is checked against the reference on its first rows, then timed
with a cold cache, a copy in the same rounds. ``--dry`` makes every call on a few rows, with the backend that the
machine has.
"""

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

import opmux
from opmux.bench.clocks import Timed, clock_for, interleave

COLUMNS = 8192
CHECKED = 64
"""Rows whose codes are compared."""
CODES_APART = 1e-3
"""The largest share of codes that may differ from the reference's."""
BLOCKS = {"1x128": (1, 128), "row": (1, -1), "tensor": (-1, -1), "128x128": (128, 128), "1x32": (1, 32)}


class Measured(NamedTuple):
    """One call: its tensors, its options, and how often it has to read the first tensor."""

    name: str
    op: str
    tensors: tuple[Tensor, ...]
    options: dict[str, Any]
    passes: int = 1


def calls(rows: int, device: torch.device) -> Iterator[Measured]:
    """What is measured, the figures asked for first."""
    generator = torch.Generator(device).manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16)

    fp8 = opmux.fp8_dtype(device)
    x, weight = drawn(rows, COLUMNS), drawn(COLUMNS)
    for name in ("1x128", "row", "tensor"):
        yield Measured(
            f"quantize {name}", "quantize", (x,), {"dtype": fp8, "block": BLOCKS[name]}, 1 + (name == "tensor")
        )
    residual = drawn(rows, COLUMNS)
    for name in ("1x128", "row"):
        options = {"dtype": fp8, "block": BLOCKS[name]}
        yield Measured(f"rms_norm_quantize {name}", "rms_norm_quantize", (x, weight), options)
        yield Measured(f"add_rms_norm_quantize {name}", "add_rms_norm_quantize", (x, residual, weight), options)
        yield Measured(f"silu_and_mul_quantize {name}", "silu_and_mul_quantize", (x,), options)
    del residual
    for name in ("128x128", "1x32"):
        yield Measured(f"quantize {name}", "quantize", (x,), {"dtype": fp8, "block": BLOCKS[name]})
    transposed = {"dtype": fp8, "block": BLOCKS["1x128"], "scale_major": "m"}
    yield Measured("quantize 1x128, scales transposed", "quantize", (x,), transposed)
    yield Measured("quantize 1x128, int8", "quantize", (x,), {"dtype": torch.int8, "block": BLOCKS["1x128"]})
    q, scale = opmux.quantize(x, dtype=fp8, block=BLOCKS["1x128"])
    yield Measured("static_quantize 1x128", "static_quantize", (x, scale), {"dtype": fp8})
    yield Measured("dequantize 1x128", "dequantize", (q, scale), {"out_dtype": torch.bfloat16})


def moved(call: Measured, results: tuple[Tensor, ...]) -> int:
    """The bytes that a call reads and writes."""
    sizes = [t.numel() * t.element_size() for t in (*call.tensors, *results)]
    return sum(sizes) + (call.passes - 1) * sizes[0]


def run(call: Measured, tensors: tuple[Tensor, ...], backend: str | None) -> tuple[Tensor, ...]:
    """The results of a call, as a tuple."""
    function: Callable[..., Any] = getattr(opmux, call.op)
    found = function(*tensors, **call.options, backend=backend)
    return found if isinstance(found, tuple) else (found,)


def apart(call: Measured, backend: str | None) -> float:
    """The share of codes (or values) on the first rows that differ from the reference's."""
    rows = call.tensors[0].shape[0]
    some = tuple(t[: -(-CHECKED * t.shape[0] // rows)] if t.dim() > 1 and t.shape[0] > 1 else t for t in call.tensors)
    got, expected = (run(call, some, name)[0] for name in (backend, "reference"))
    return float((got.float() != expected.float()).float().mean())


def measured(call: Measured, rounds: int) -> dict[str, Any]:
    """A call's time and a copy's in microseconds."""
    device = call.tensors[0].device
    wrong = apart(call, "triton")
    total = moved(call, run(call, call.tensors, "triton"))
    source = torch.empty(total // 2, dtype=torch.int8, device=device)
    contenders = {
        "triton": Timed(partial(run, call, call.tensors, "triton")),
        "copy": Timed(partial(torch.empty_like(source).copy_, source)),
    }
    clock = clock_for(device)
    for name, timed in contenders.items():
        clock.warm_up(name, timed)
    times = interleave(clock, contenders, rounds, 2.0, shuffled=random.Random(0))
    took, copy = (median(times[name]) for name in ("triton", "copy"))
    return {"name": call.name, "bytes": total, "us": took, "copy_us": copy, "of_copy": copy / took, "apart": wrong}


def main() -> int:
    """Measure, print and write; 1 where a result is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which no further call is begun")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--dry", action="store_true", help="make every call on a few rows; needs no GPU")
    given = parser.parse_args()
    begun, has_gpu = time.monotonic(), torch.cuda.is_available()
    if given.dry:
        for call in calls(CHECKED, torch.device("cuda" if has_gpu else "cpu")):
            print(f"{call.name}: {moved(call, run(call, call.tensors, None))} bytes, apart {apart(call, None):.5f}")
        return 0
    if not has_gpu:
        parser.error("measuring needs a GPU and there is none; --dry makes the calls")
    found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    cases: list[dict[str, Any]] = []
    for call in calls(given.rows, torch.device("cuda")):
        if time.monotonic() - begun > given.limit:
            print("the limit is over: the rest was left out")
            break
        case = measured(call, given.rounds)
        cases.append(case)
        rate, took = case["bytes"] / case["us"] / 1e6, case["us"]
        print(f"{call.name}: {took:.1f} us, {rate:.2f} TB/s, {case['of_copy']:.3f} of copy, apart {case['apart']:.5f}")
        if given.out is not None:
            given.out.write_text(json.dumps({**found, "cases": cases}, indent=1) + "\n")
    return int(not all(case["apart"] <= CODES_APART for case in cases))


if __name__ == "__main__":
    sys.exit(main())
