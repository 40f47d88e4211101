"""Launches of planted kernels on tensors without data, and facts of machine code to compare."""

import dataclasses
from typing import Any

import planted_kernels as planted
import torch

from opmux_triton.aot.build import Built
from opmux_triton.aot.facts import Facts
from opmux_triton.launch import Launch, launch, recording


def made(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """A contiguous tensor without data."""
    return torch.empty(*sizes, dtype=dtype, device="meta")


def launch_of(kernel: Any, *arguments: Any, **meta: Any) -> Launch:
    """A launch, noted and not made."""
    with recording("gfx942") as recorded:
        launch(kernel, (1,), arguments, meta)
    return recorded.launches[0]


def product(m: int, dtype: torch.dtype = torch.bfloat16, n: int = 64, **meta: Any) -> Launch:
    """A launch of the planted product."""
    tensors = made(m, 64, dtype=dtype), made(n, 64, dtype=dtype), made(m, n, dtype=dtype)
    return launch_of(planted.product, *tensors, 64, M=m, N=n, K=32, **{"num_warps": 4, **meta})


COPY = (planted.copy, made(4096), made(4096), 4096)
STRIDED = (planted.copy_strided, made(4096), made(4096), 7, 4096)


def facts_with(**changes: Any) -> Facts:
    """Facts of which nothing is wrong on gfx942, with changes."""
    good = Facts({"v_mfma_f32_32x32x8_bf16": 4}, {"vgpr": 100, "agpr": 16, "sgpr": 40}, 0, 0, 16384, 4, 4, 4, 4)
    return dataclasses.replace(good, **changes)


BUILT = Built("gfx942", "", b"", 0, 4, frozenset({"tall"}))
