"""Small calls of kernels that few conformance cases launch, for compute-sanitizer: decode in parts, grouped gradients.

``compute-sanitizer --tool memcheck python benchmarks/memcheck_calls.py [NAME ...]``, with
``PYTORCH_NO_CUDA_MEMORY_CACHING=1`` so that every tensor has an allocation of its own. Tensors are made on the CPU, and
results are compared with the reference there: under the tool every kernel of torch's costs time. The kernels that were
launched are printed; the exit status is 1 where a result is wrong. Run it once without the tool before: then nothing is
compiled under it. Without a GPU the calls run under Triton's interpreter, on fewer keys.
"""

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

GPU = torch.cuda.is_available()
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported

import opmux  # noqa: E402
from opmux_triton import launch as launching  # noqa: E402

DEVICE = "cuda" if GPU else "cpu"
LONGEST = 1500 if GPU else 1100
FP8 = torch.float8_e4m3fn
Call = tuple[Callable[..., Any], list[Any], dict[str, Any]]
"""An op, its arguments and its options."""


def paged(
    kv_heads: int, group: int, head_dim: int, value_dim: int, coded: bool = False, new: tuple[int, ...] = (1, 1, 1, 1),
    lse: bool = False, sinks: bool = False, **options: Any,
) -> Call:  # fmt: skip
    """Sequences of which one is empty, one is short and one fills its pages; numbers of pages lie in random order."""
    generator = torch.Generator().manual_seed(0)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator).to(torch.bfloat16)

    page, lengths = 16, (LONGEST, 0, 19, LONGEST // 2)
    counts = [min(count, length) for count, length in zip(new, lengths, strict=True)]
    each = -(-LONGEST // page)
    table = torch.randperm(4 * each, generator=generator).to(torch.int32).view(4, each)
    caches = [normal(4 * each, page, kv_heads, dim) for dim in (head_dim, value_dim)]
    scales: list[Tensor | None] = [None, None]
    if coded:
        caches = [(cache * 32).to(FP8) for cache in caches]
        scales = [torch.arange(1, kv_heads + 1) / 40.0 for _ in range(2)]
    offsets = torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32)
    heads = kv_heads * group
    q = normal(sum(counts), heads, head_dim)
    tensors = [q, *caches, offsets, torch.tensor(lengths, dtype=torch.int32), table, normal(heads) if sinks else None]
    bounds = {"max_seqlen_q": max(counts), "max_seqlen_k": LONGEST, **options}
    op = opmux.paged_attention_lse if lse else opmux.paged_attention
    return op, [*tensors, None, *scales], bounds


def grouped(op: str, n: int, k: int, rows: tuple[int, ...], sizes: bool = False) -> Call:
    """Groups of these rows; with ``sizes``, each has a few fewer than there is room for."""
    generator = torch.Generator().manual_seed(0)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator).to(torch.bfloat16)

    total, groups = sum(rows), len(rows)
    offsets = torch.tensor([0, *itertools.accumulate(rows)], dtype=torch.int32)
    used = torch.tensor([max(0, row - 3) for row in rows], dtype=torch.int32) if sizes else None
    dy, x = normal(total, n), normal(total, k)
    if op == "grouped_linear_backward":
        return opmux.grouped_linear_backward, [dy, x, normal(groups, n, k), offsets, used], {}
    out = torch.ones(groups, n, k)
    if op == "grouped_weight_grad":
        return opmux.grouped_weight_grad, [out, dy, x, offsets, used], {}
    scales = [torch.rand(-(-total // 128), width, generator=generator) + 0.5 for width in (n, k)]
    codes = [tensor.to(FP8) for tensor in (dy, x)]
    return opmux.scaled_grouped_weight_grad, [out, *codes, offsets, *scales, used], {}


CALLS: dict[str, Callable[[], Call]] = {
    "shares": lambda: paged(1, 8, 64, 64),
    "shares, lse, sinks, window": lambda: paged(2, 5, 80, 72, lse=True, sinks=True, window=(1100, -1)),
    "shares of codes": lambda: paged(1, 8, 128, 128, coded=True),
    "shares of codes, lse, softcap": lambda: paged(2, 40, 64, 24, coded=True, lse=True, softcap=20.0),
    "splits": lambda: paged(8, 4, 64, 64),
    "splits, lse, sinks": lambda: paged(4, 3, 40, 56, lse=True, sinks=True),
    "splits of codes": lambda: paged(8, 4, 128, 128, coded=True, lse=True),
    "splits, some new tokens": lambda: paged(4, 2, 64, 64, new=(3, 0, 2, 1)),
    "decode beside prefill": lambda: paged(4, 2, 64, 64, new=(90, 0, 19, 1), lse=True),
    "weight gradient": lambda: grouped("grouped_weight_grad", 136, 264, (70, 0, 1, 37)),
    "weight gradient, odd": lambda: grouped("grouped_weight_grad", 33, 79, (5, 64, 0, 130), sizes=True),
    "weight gradient of codes": lambda: grouped("scaled_grouped_weight_grad", 144, 272, (70, 0, 1, 200)),
    "weight gradient of codes, odd": lambda: grouped("scaled_grouped_weight_grad", 33, 79, (5, 64, 0, 130), sizes=True),
    "gradients": lambda: grouped("grouped_linear_backward", 136, 264, (70, 0, 1, 37)),
    "gradients, odd": lambda: grouped("grouped_linear_backward", 33, 79, (5, 64, 0, 130), sizes=True),
}


def results(call: Call, device: str, backend: str) -> list[Tensor]:
    """What a call gives on a device, back on the CPU; for an op that changes its first argument, that."""
    op, arguments, options = call
    given = [a.to(device) if isinstance(a, Tensor) else a for a in arguments]
    if device == "cpu":
        given = [a.clone() if isinstance(a, Tensor) else a for a in given]
    found = op(*given, **options, backend=backend)
    if found is None:
        found = given[0]
    return [r.cpu() for r in ([found] if isinstance(found, Tensor) else found)]


def apart(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference of two lists of results, over the norm of what was expected per element."""
    most = 0.0
    for got, right in zip(found, expected, strict=True):
        here = torch.isfinite(right)
        if not torch.equal(torch.isfinite(got), here):
            return float("inf")
        scale = float(right[here].float().square().mean().sqrt()) or 1.0
        most = max(most, float((got[here].float() - right[here].float()).abs().max()) / scale)
    return most


def run(names: list[str]) -> Iterator[tuple[str, float, set[str]]]:
    """(call, how far its results are from the reference's, kernels that it launched)."""
    launch, launched = launching._launch, set[str]()

    def noted(kernel: Any, *arguments: Any) -> None:
        launched.add(kernel.__name__)
        launch(kernel, *arguments)

    launching._launch = noted
    try:
        for name in names:
            launched.clear()
            call = CALLS[name]()
            yield name, apart(results(call, DEVICE, "triton"), results(call, "cpu", "reference")), set(launched)
    finally:
        launching._launch = launch


def main() -> int:
    """Run the calls that are named, or all."""
    wrong, every = 0, set[str]()
    for name, distance, kernels in run(sys.argv[1:] or [*CALLS]):
        every |= kernels
        wrong += not distance < 0.1
        print(f"{name}: apart {distance:.4f}; {', '.join(sorted(kernels))}", flush=True)
    print(f"kernels: {', '.join(sorted(every))}; {wrong} wrong", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
