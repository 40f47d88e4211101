"""Times and peak memory of the losses, against torch's own and against chunks in plain torch.

``python benchmarks/measure_loss.py --out FILE.json [--limit SECONDS] [--dry]``. For the vocabularies of Llama 3 and
Gemma 3: the loss of a linear layer with all gradients (forward and backward), by the kernels, by torch eager and
compiled, by chunks as Liger cuts them, and by Liger itself and torch's chunked form where they are there; the loss of
logits, forward and backward; and the product that sums the gradient of the weight, against cuBLAS. One line for each
measurement; what the limit leaves no time for is listed.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import opmux

SHAPES = ((8192, 2048, 128_256), (4096, 4096, 128_256), (16384, 2048, 128_256), (8192, 2560, 262_144))
"""(tokens, hidden, vocab): Llama 3.2 1B, Llama 3 8B, the first with twice the tokens, Gemma 3 4B."""
DRY = ((48, 32, 301),)
REPEATS = 5

Step = Callable[[], Any]


def parts_as_liger(x: Tensor, weight: Tensor, target: Tensor) -> Step:
    """Chunks as Liger cuts them, in plain torch, with the gradient of the weight in its own dtype."""
    (tokens, hidden), vocab = x.shape, weight.shape[0]
    step = 1 << (math.ceil(tokens / math.ceil(vocab / hidden)) - 1).bit_length()

    def run() -> Any:
        with torch.no_grad():
            total = torch.zeros((), device=x.device)
            grad_x, grad_weight = torch.empty_like(x), torch.zeros_like(weight)
            for first in range(0, tokens, step):
                some, classes = x[first : first + step], target[first : first + step]
                logits = (some @ weight.T).float()
                total += F.cross_entropy(logits, classes, reduction="sum")
                slopes = torch.softmax(logits, -1)
                slopes[torch.arange(len(classes), device=x.device), classes] -= 1
                slopes = (slopes / tokens).to(x.dtype)
                grad_x[first : first + step] = slopes @ weight
                grad_weight.addmm_(slopes.T, some)
        return total / tokens, grad_x, grad_weight

    return run


def contenders(x: Tensor, weight: Tensor, target: Tensor) -> Iterator[tuple[str, Callable[[], Step]]]:
    """Every way to get the loss of a linear layer and its gradients, by name."""

    def by(loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Step:
        leaves = x.detach().requires_grad_(), weight.detach().requires_grad_()

        def run() -> Any:
            found = loss(*leaves, target)
            return found.detach(), *torch.autograd.grad(found, leaves)

        return run

    def eager(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x, weight).float(), target)

    def liger() -> Step:
        from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction as Function

        return by(lambda x, w, t: Function.apply(x, w, t)[0])

    def chunked() -> Step:
        options = torch.nn.LinearCrossEntropyOptions()
        return by(lambda x, w, t: F.linear_cross_entropy(x, w, t, options=options))

    yield "opmux", lambda: by(opmux.fused_linear_cross_entropy)
    yield "liger", liger
    yield "torch, chunks as liger's", lambda: parts_as_liger(x, weight, target)
    yield "torch.nn.functional.linear_cross_entropy", chunked
    yield "torch eager", lambda: by(eager)
    yield "torch.compile", lambda: by(torch.compile(eager))


def of_logits(logits: Tensor, target: Tensor) -> Iterator[tuple[str, Callable[[], Step]]]:
    """Every way to get the loss of logits and its gradient, by name."""

    def by(loss: Callable[[Tensor], Tensor]) -> Step:
        leaf = logits.detach().requires_grad_()
        return lambda: torch.autograd.grad(loss(leaf), leaf)

    yield "opmux", lambda: by(lambda given: opmux.cross_entropy(given, target))
    yield "torch eager", lambda: by(lambda given: F.cross_entropy(given.float(), target))
    yield "torch.compile", lambda: by(torch.compile(lambda given: F.cross_entropy(given.float(), target)))
    yield "copy of as many bytes", lambda: logits.clone


def of_weight(tokens: int, x: Tensor, weight: Tensor) -> Iterator[tuple[str, Callable[[], Step]]]:
    """The product that a chunk adds to the gradient of the weight."""
    from opmux_triton.loss.fused_targets import _add_product

    slopes = torch.randn(tokens, weight.shape[0], device=x.device).to(x.dtype)
    some = x[:tokens]
    sums = torch.zeros(weight.shape, device=x.device)

    def tiles(**changed: Any) -> Callable[[], Step]:
        from opmux_triton.loss.configs import ProductConfig

        config = ProductConfig(**{"num_warps": 8, "num_stages": 3, "block_m": 128, "block_n": 256, "block_k": 64,
                                  **changed})  # fmt: skip
        return lambda: lambda: _add_product(slopes, some, sums, torch.float32, config)

    yield "triton 128x256x64, 3 stages", tiles()
    yield "triton 128x256x64, 4 stages", tiles(num_stages=4)
    yield "triton 256x128x64, 3 stages", tiles(block_m=256, block_n=128)
    yield "triton 128x128x64, 4 stages", tiles(block_n=128, num_stages=4)
    yield "triton 128x256x64, group 4", tiles(group=4)
    yield "cuBLAS into float32", lambda: lambda: torch.addmm(sums, slopes.T, some, out_dtype=torch.float32, out=sums)
    yield "cuBLAS in 16 bits", lambda: lambda: slopes.T @ some


def measured(make: Callable[[], Step], device: torch.device) -> dict[str, Any]:
    """Median milliseconds of a step, and the bytes that it needs beside what was there."""
    step = make()
    step()
    if device.type != "cuda":
        begin = time.perf_counter()
        step()
        return {"ms": 1e3 * (time.perf_counter() - begin)}
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    times = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        step()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return {"ms": statistics.median(times), "least_ms": min(times), "peak_gib": peak / 2**30}


def works(dry: bool, device: torch.device) -> Iterator[tuple[str, str, Callable[[], Step]]]:
    """(work, contender, what makes its step), work after work."""
    dtype = torch.float32 if dry else torch.bfloat16
    for tokens, hidden, vocab in DRY if dry else SHAPES:
        generator = torch.Generator(device).manual_seed(0)
        x = torch.randn(tokens, hidden, generator=generator, device=device).to(dtype)
        weight = (torch.randn(vocab, hidden, generator=generator, device=device) / hidden**0.5).to(dtype)
        target = torch.randint(vocab, (tokens,), generator=generator, device=device)
        shape = f"{tokens} tokens, hidden {hidden}, vocab {vocab}"
        for name, make in contenders(x, weight, target):
            yield f"linear layer and loss, {shape}", name, make
        if not dry and (tokens, hidden) == SHAPES[0][:2]:
            for name, make in of_weight(tokens // 4, x, weight):
                yield f"gradient of the weight, {tokens // 4} of {shape}", name, make
        if (tokens, hidden, vocab) in (*DRY, SHAPES[0]):
            logits = F.linear(x, weight)
            for name, make in of_logits(logits, target):
                yield f"loss of logits, {shape}", name, make


def main() -> int:
    """Measure until the limit, and write what there is after every measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds")
    parser.add_argument("--dry", action="store_true", help="small shapes on the CPU")
    given = parser.parse_args()
    device = torch.device("cpu" if given.dry else "cuda")
    begin, found = time.monotonic(), list[dict[str, Any]]()
    about = {"torch": torch.__version__, "device": "cpu" if given.dry else torch.cuda.get_device_name()}
    for work, name, make in works(given.dry, device):
        row: dict[str, Any] = {"work": work, "contender": name}
        if time.monotonic() - begin > given.limit:
            row["left_out"] = "no time"
        elif given.dry and "compile" in name:
            row["left_out"] = "dry"
        else:
            try:
                row |= measured(make, device)
            except Exception as error:  # a peer that is not there, or out of memory
                row["left_out"] = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        found.append(row)
        line = ", ".join(f"{key} {value:.3f}" for key, value in row.items() if isinstance(value, float))
        print(f"{work} | {name} | {line or row['left_out']}", flush=True)
        given.out.write_text(json.dumps({**about, "rows": found}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
