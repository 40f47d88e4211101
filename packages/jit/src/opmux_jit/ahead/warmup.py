"""Brings a process to steady state: makes recorded calls until their kernels are loaded and their launches kept."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from opmux.plugin import registered_ops
from opmux.shapes import Point

CALLS = 3
"""The first call plans and compiles, the second notes its launches, the third repeats them."""


@dataclass
class Warmth:
    """What was done.

    Attributes:
        calls: how many different calls were made.
        seconds: how long that took.
        failures: the calls that failed, a line each.
    """

    calls: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)


def warmup(points: Sequence[Point], device: str | torch.device = "cuda") -> Warmth:
    """Make each call three times, on tensors of zeros.

    Call it before the first request is served, and before CUDA graphs are captured. Sizes and dtypes are those of the
    recorded calls; index data are zeros, so ops whose host work depends on their contents are prepared for those.

    Args:
        points: the calls, as `opmux.shapes.read_shapes` returns them.
        device: where to make them.
    """
    done, started, ops = Warmth(), time.perf_counter(), registered_ops()
    for point in points:
        try:
            tensors = [
                None if t is None else torch.zeros(t.shape, dtype=t.dtype, device=device)
                for t in point.tensors().values()
            ]
            with torch.no_grad():
                for _ in range(CALLS):
                    ops[point.op](*tensors, **point.options)
            done.calls += 1
        except Exception as error:  # one call's failure must not leave the others cold
            done.failures.append(f"{point.key}: {type(error).__name__}: {str(error).partition(chr(10))[0]}")
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    done.seconds = time.perf_counter() - started
    return done
