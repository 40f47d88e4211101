"""Products with scales of blocks that are computed as w x^T, held to float64 on a GPU for every number of steps.

    python packages/plugins-cutile/benchmarks/turned_on_gpu.py --seconds 20 --out turned.json

Their loads run ahead by some steps, so what is left at the end of k depends on their number, and a copy that comes too
late shows in the result. Most sizes are smaller than those that get this kernel, which is asked for by its config. Each
call is made again beside copies on another stream, and must have the same bits. Ends with 1 if one is wrong.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from cases import BF16, FP32, codes, drawn, scales
from torch import Tensor

import opmux
from opmux.plugin import takers
from opmux_cutile.scaled.configs import TURNED

BLOCK = 128
STEPS = range(1, 36)
"""Of k, a block each."""
ROOM = 2.0**-12
"""Of the sum of magnitudes: the matrix units keep 14 bits of a short sum. One scale of another block is far beyond."""
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-20}
AGAIN = 5
"""Calls that have to have the same bits."""


def sizes() -> Iterator[tuple[int, int, int]]:
    """Rows of x, rows of w and k: many tiles, then few, of whole blocks and not."""
    for steps in (13, 14, 15, 16):
        yield 4096, 2048, BLOCK * steps
    for steps in STEPS:
        yield 192, 256, BLOCK * steps
        yield 131, 264, BLOCK * steps - 112
    for steps in (47, 64, 113, 144):
        yield 320, 392, BLOCK * steps


def kinds() -> list[tuple[torch.dtype, torch.dtype, torch.dtype | None]]:
    """Codes, the dtype of the result, and that of the bias."""
    floats = (torch.float8_e4m3fn, torch.float8_e5m2)
    return list(itertools.product(floats, (BF16, torch.float16, FP32), (None, BF16)))


def exact(x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """The product in float64, and the sums of its terms' magnitudes."""
    k, n = x.shape[1], len(w)
    a = x.double() * x_scale.double().repeat_interleave(BLOCK, 1)[:, :k]
    b = w.double() * w_scale.double().repeat_interleave(BLOCK, 0)[:n].repeat_interleave(BLOCK, 1)[:, :k]
    return a @ b.T + (0.0 if bias is None else bias.double()), a.abs() @ b.abs().T


def wrong(found: Tensor, wanted: Tensor, magnitudes: Tensor) -> int:
    """Numbers that are farther from what is wanted than their rounding, and that of short sums."""
    away = (found.double() - wanted).abs()
    return int((~(away <= ROUNDING[found.dtype] * wanted.abs() + ROOM * magnitudes)).sum())


def one(device: str, size: tuple[int, int, int], kind: tuple[torch.dtype, torch.dtype, torch.dtype | None]) -> str:
    """What is wrong with a call, or nothing."""
    (m, n, k), (stored, out, shift) = size, kind
    blocks = -(-k // BLOCK)
    bias = None if shift is None else drawn(device, n, dtype=shift)
    w_scale = scales(device, -(-n // BLOCK), blocks)
    tensors = (
        codes(device, m, k, dtype=stored),
        codes(device, n, k, dtype=stored),
        scales(device, m, blocks),
        w_scale,
        bias,
    )
    (taker, *_) = takers(opmux.scaled_linear, *tensors, arch="sm_90", backend="cutile", out_dtype=out)
    call = taker.bound(TURNED)
    first = call(*tensors, **taker.call.options)
    count = wrong(first, *exact(*tensors))
    if count:
        return f"{count} of {first.numel()} wrong"
    if device == "cuda":
        beside, memory = torch.cuda.Stream(), torch.empty(2, 1 << 26, dtype=torch.int8, device=device)
        for _ in range(AGAIN):
            with torch.cuda.stream(beside):
                memory[0].copy_(memory[1])
            if not torch.equal(call(*tensors, **taker.call.options), first):
                return "other bits beside copies"
    return ""


def main() -> int:
    """Check; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=60.0, help="after which no further call is begun")
    parser.add_argument("--out", type=Path, help="a file for what was found")
    given = parser.parse_args()
    until, found = time.monotonic() + given.seconds, {}
    several = itertools.cycle(kinds())
    for size in sizes():
        for kind in itertools.islice(several, 5):  # of twelve: each has its turn with every size's neighbours
            if time.monotonic() < until:
                found[f"{size} {kind}"] = one(given.device, size, kind)
    bad = {name: text for name, text in found.items() if text}
    name = torch.cuda.get_device_name() if given.device == "cuda" else given.device
    if given.out:
        given.out.write_text(
            json.dumps({"device": name, "calls": len(found), "wrong": bad}, indent=1), encoding="utf-8"
        )
    sys.stdout.write("".join(f"{name}: {text}\n" for name, text in bad.items()))
    sys.stdout.write(f"{len(found)} calls on {name}, {len(bad)} wrong\n")
    return int(bool(bad) or not found)


if __name__ == "__main__":
    sys.exit(main())
