"""The work of a call, and the ceilings of the device."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from opmux.bench.clocks import Timed, clock_for
from opmux.bench.data import Arguments
from opmux.bench.results import Ceilings
from opmux.callpath.op import Op
from opmux.signatures.validation import check_call, numel

_COPY_BYTES = {"cpu": 128 * 2**20, "cuda": 2 * 2**30}
_MATMUL = {"cpu": 1024, "cuda": 8192}
_ROUNDS = 7


def flops_of(op: Op, arguments: Arguments) -> float | None:
    """Floating-point operations: the case's own count, or the op's expression over its dims."""
    if arguments.flops is not None:
        return arguments.flops
    dims, _ = _dims(op, arguments)
    counted = op.count_flops({name: numel(dims, name) for name in dims})
    return None if counted is None else counted * arguments.share


def moved_of(op: Op, arguments: Arguments) -> int:
    """Bytes that must be read and written: every input once, every output once, mutated tensors twice."""
    if arguments.moved is not None:
        return arguments.moved
    dims, options = _dims(op, arguments)
    named = op.names(arguments.tensors)
    read = sum(_size(t.shape, t.dtype) for t in arguments.tensors if t is not None)
    written = sum(_size(named[name].shape, named[name].dtype) for name in op.signature.mutates)
    shapes, dtypes = op.signature.output_shapes(dims, options), op.signature.output_dtypes(named, options)
    return read + written + sum(_size(s, d) for s, d in zip(shapes, dtypes, strict=True))


def all_options(op: Op, arguments: Arguments) -> dict[str, Any]:
    """The call's options with the defaults filled in."""
    return {o.name: arguments.options.get(o.name, o.default) for o in op.signature.options}


def _dims(op: Op, arguments: Arguments) -> tuple[dict[str, Any], dict[str, Any]]:
    return check_call(op.signature, op.names(arguments.tensors), all_options(op, arguments))


def _size(shape: Sequence[int], dtype: torch.dtype) -> int:
    total = dtype.itemsize
    for size in shape:
        total *= size
    return total


def measure_ceilings(device: torch.device, dtype: torch.dtype) -> Ceilings:
    """The best rate of a large copy, and of a large matrix product in ``dtype``, in a few rounds."""
    source = torch.ones(_COPY_BYTES[device.type] // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    copy_us = _best(device, lambda: target.copy_(source))
    size = _MATMUL[device.type]
    a, b = (torch.randn(size, size, device=device, dtype=torch.float32).to(dtype) for _ in range(2))
    matmul_us = _best(device, lambda: a @ b)
    moved = 2 * source.numel() * source.element_size()
    return Ceilings(moved / copy_us / 1e3, 2 * size**3 / matmul_us / 1e6)


def _best(device: torch.device, run: Any) -> float:
    clock, timed = clock_for(device), Timed(run)
    clock.warm_up("ceiling", timed)
    return min(clock.sample("ceiling", timed) for _ in range(_ROUNDS))


def least_time(flops: float | None, moved: int, ceilings: Ceilings) -> tuple[float, str]:
    """The time in microseconds that the ceilings allow, and which of them sets it."""
    memory = moved / ceilings.copy_gbps / 1e3
    compute = (flops or 0.0) / ceilings.matmul_tflops / 1e6
    return (compute, "compute") if compute > memory else (memory, "memory")


def difference(ours: Sequence[Tensor], reference: Sequence[Tensor]) -> float:
    """The largest difference of any result, as a fraction of the reference's largest magnitude; infinite for a NaN."""
    worst = 0.0
    for mine, theirs in zip(ours, reference, strict=True):
        if theirs.numel() == 0:
            continue
        a, b = mine.to(torch.float32), theirs.to(torch.float32)
        apart = torch.nan_to_num((a - b).abs(), nan=float("inf")).max().item()
        scale = torch.nan_to_num(b.abs(), posinf=0.0).max().item()
        if apart > 0:
            worst = max(worst, apart / scale if scale > 0 else float("inf"))
    return worst
