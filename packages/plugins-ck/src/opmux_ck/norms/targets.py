"""What the core calls for a norm."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from opmux_ck.dtypes import SHORT
from opmux_ck.launching import MOST_BYTES, launch
from opmux_ck.norms.configs import NormConfig, QuantizedNormConfig
from opmux_ck.norms.instances import STRIDES, Norm

DENSELY = torch.contiguous_format
MOST_ROWS = 1 << 21
"""Of a launch: HIP wants fewer than 2**32 threads, and a row has up to 1024."""


def rms_norm(x: Tensor, weight: Tensor, *, eps: float, weight_offset: float, config: NormConfig) -> Tensor:
    """The op `rms_norm`; `weight_offset` is 0."""
    y = torch.empty_like(x, memory_format=DENSELY)
    _run("rms_norm", config, (x,), (weight,), (y,), eps)
    return y


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, weight_offset: float, config: NormConfig
) -> tuple[Tensor, Tensor]:
    """The op `add_rms_norm`; `weight_offset` is 0."""
    y, total = torch.empty_like(x, memory_format=DENSELY), torch.empty_like(residual, memory_format=DENSELY)
    _run("add_rms_norm", config, (x, residual), (weight,), (y, total), eps)
    return y, total


def add_rms_norm_(
    x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, weight_offset: float, config: NormConfig
) -> None:
    """The op `add_rms_norm_`: a thread has read its elements of x and residual when it overwrites them."""
    _run("add_rms_norm", config, (x, residual), (weight,), (x, residual), eps)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float, config: NormConfig) -> Tensor:
    """The op `layer_norm`, with a bias."""
    y = torch.empty_like(x, memory_format=DENSELY)
    _run("layer_norm", config, (x,), (weight, bias), (y,), eps)
    return y


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, *, eps: float, config: NormConfig
) -> tuple[Tensor, Tensor]:
    """The op `add_layer_norm`, with a bias."""
    y, total = torch.empty_like(x, memory_format=DENSELY), torch.empty_like(residual, memory_format=DENSELY)
    _run("add_layer_norm", config, (x, residual), (weight, bias), (y, total), eps)
    return y, total


def rms_norm_quantize(
    x: Tensor, weight: Tensor, *, dtype: torch.dtype, block: tuple[int, int], scale_major: str, eps: float,
    weight_offset: float, config: QuantizedNormConfig,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The op `rms_norm_quantize`; `weight_offset` is 0, and the scales are contiguous."""
    q, scales = _codes(x, dtype, block[1])
    _run("rms_norm_quantize", config, (x,), (weight,), (q, scales), eps, dtype, block[1])
    return q, scales


def add_rms_norm_quantize(
    x: Tensor, residual: Tensor, weight: Tensor, *, dtype: torch.dtype, block: tuple[int, int], scale_major: str,
    eps: float, weight_offset: float, config: QuantizedNormConfig,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The op `add_rms_norm_quantize`; `weight_offset` is 0, and the scales are contiguous."""
    (q, scales), total = _codes(x, dtype, block[1]), torch.empty_like(residual, memory_format=DENSELY)
    _run("add_rms_norm_quantize", config, (x, residual), (weight,), (q, scales, total), eps, dtype, block[1])
    return q, scales, total


def norm_of(
    op: str, x: torch.dtype, weight: torch.dtype, config: NormConfig, code: torch.dtype | None = None, block: int = 0
) -> Norm:
    """The instance that a call launches; a block of -1 is a row."""
    return Norm(op, SHORT[x], SHORT[weight], config, "" if code is None else SHORT[code], max(block, 0))


def _codes(x: Tensor, dtype: torch.dtype, block: int) -> tuple[Tensor, Tensor]:
    """Room for codes, and for a scale for each block of a row."""
    blocks = 1 if block == -1 else -(-x.shape[-1] // block)
    return x.new_empty(x.shape, dtype=dtype), x.new_empty((*x.shape[:-1], blocks), dtype=torch.float32)


def _run(
    op: str,
    config: NormConfig,
    given: tuple[Tensor, ...],
    gains: tuple[Tensor, ...],
    made: tuple[Tensor, ...],
    eps: float,
    code: torch.dtype | None = None,
    block: int = 0,
) -> None:
    """Launch a norm on matrices that are read, vectors, and contiguous matrices that are written.

    Scales have a length of their own, which the kernel knows; the stride of their rows is no argument.
    """
    if not made[0].numel():
        return
    columns = gains[0].numel()
    instance = norm_of(op, given[0].dtype, gains[0].dtype, config, code, block)
    matrices = (*(t.reshape(-1, columns) for t in given), *(t.view(-1, t.shape[-1]) for t in made))
    for parts in in_launches(*matrices):
        rows = len(parts[0])
        arguments: list[Any] = [*parts[: len(given)], *gains, *parts[len(given) :], eps, rows, columns]
        strided = [part for part in parts if part.shape[1] == columns]
        strides = [part.stride(0) if rows > 1 else columns for part in strided]  # that of one row may not fit 32 bits
        launch(instance, (-(-rows // config.rows), 1, 1), *arguments, *strides, *[0] * (STRIDES - len(strides)))


def in_launches(*matrices: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Matrices of equally many rows, in parts that a launch can address."""
    row_bytes = max(max(t.stride(0), 1) * t.element_size() for t in matrices)
    most = min(max(MOST_BYTES // row_bytes, 1), MOST_ROWS)
    for first in range(0, len(matrices[0]), most):
        yield tuple(t[first : first + most] for t in matrices)
