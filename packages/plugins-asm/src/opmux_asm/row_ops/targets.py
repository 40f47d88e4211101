"""What the core calls for an op of rows."""

from dataclasses import replace

import torch
from torch import Tensor

from opmux_asm.kernels.quantizing import GROUP
from opmux_asm.kernels.recipes import Recipe
from opmux_asm.row_ops.configs import RowsConfig
from opmux_asm.row_ops.launches import CODES, run

DENSELY = torch.contiguous_format
RMS, ADDED, LAYER, GATED, PLAIN = (
    Recipe("", norm="rms"), Recipe("", adds=True, norm="rms"), Recipe("", norm="layer"), Recipe("", gates=True),
    Recipe(""),
)  # fmt: skip


def rms_norm(x: Tensor, weight: Tensor, *, eps: float, weight_offset: float, config: RowsConfig) -> Tensor:
    """The op `rms_norm`."""
    y = torch.empty_like(x, memory_format=DENSELY)
    run("rms_norm", RMS, weight.numel(), config, x, y, weight=weight, eps=eps, weight_offset=weight_offset)
    return y


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, weight_offset: float, config: RowsConfig
) -> tuple[Tensor, Tensor]:
    """The op `add_rms_norm`."""
    y, total = torch.empty_like(x, memory_format=DENSELY), torch.empty_like(residual, memory_format=DENSELY)
    run(
        "add_rms_norm", ADDED, weight.numel(), config, x, y, residual=residual, total=total, weight=weight, eps=eps,
        weight_offset=weight_offset,
    )  # fmt: skip
    return y, total


def add_rms_norm_(
    x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, weight_offset: float, config: RowsConfig
) -> None:
    """The op `add_rms_norm_`; a thread has read its elements when it overwrites them."""
    run(
        "add_rms_norm", ADDED, weight.numel(), config, x, x, residual=residual, total=residual, weight=weight, eps=eps,
        weight_offset=weight_offset,
    )  # fmt: skip


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float, config: RowsConfig) -> Tensor:
    """The op `layer_norm`."""
    y = torch.empty_like(x, memory_format=DENSELY)
    run("layer_norm", LAYER, weight.numel(), config, x, y, weight=weight, bias=bias, eps=eps)
    return y


def silu_and_mul(x: Tensor, *, config: RowsConfig) -> Tensor:
    """The op `silu_and_mul`."""
    columns = x.shape[-1] // 2
    y = x.new_empty((*x.shape[:-1], columns))
    run("silu_and_mul", GATED, columns, config, x, y)
    return y


def quantize(
    x: Tensor, *, dtype: torch.dtype, block: tuple[int, int], scale_major: str, config: RowsConfig
) -> tuple[Tensor, Tensor]:
    """The op `quantize`."""
    recipe, q, scales = _quantised(PLAIN, x, x.shape[-1], dtype, block)
    run("quantize", recipe, x.shape[-1], config, x, q, scales=scales)
    return q, scales


def silu_and_mul_quantize(
    x: Tensor, *, dtype: torch.dtype, block: tuple[int, int], scale_major: str, config: RowsConfig
) -> tuple[Tensor, Tensor]:
    """The op `silu_and_mul_quantize`."""
    columns = x.shape[-1] // 2
    recipe, q, scales = _quantised(GATED, x, columns, dtype, block)
    run("silu_and_mul_quantize", recipe, columns, config, x, q, scales=scales)
    return q, scales


def rms_norm_quantize(
    x: Tensor, weight: Tensor, *, dtype: torch.dtype, block: tuple[int, int], scale_major: str, eps: float,
    weight_offset: float, config: RowsConfig,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The op `rms_norm_quantize`."""
    columns = weight.numel()
    recipe, q, scales = _quantised(RMS, x, columns, dtype, block)
    run(
        "rms_norm_quantize", recipe, columns, config, x, q, scales=scales, weight=weight, eps=eps,
        weight_offset=weight_offset,
    )  # fmt: skip
    return q, scales


def add_rms_norm_quantize(
    x: Tensor, residual: Tensor, weight: Tensor, *, dtype: torch.dtype, block: tuple[int, int], scale_major: str,
    eps: float, weight_offset: float, config: RowsConfig,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The op `add_rms_norm_quantize`."""
    columns = weight.numel()
    recipe, q, scales = _quantised(ADDED, x, columns, dtype, block)
    total = torch.empty_like(residual, memory_format=DENSELY)
    run(
        "add_rms_norm_quantize", recipe, columns, config, x, q, residual=residual, total=total, scales=scales,
        weight=weight, eps=eps, weight_offset=weight_offset,
    )  # fmt: skip
    return q, scales, total


def _quantised(
    recipe: Recipe, x: Tensor, columns: int, dtype: torch.dtype, block: tuple[int, int]
) -> tuple[Recipe, Tensor, Tensor]:
    """The recipe with its codes, and room for codes and scales."""
    whole = block[1] == -1
    blocks = min(columns, 1) if whole else -(-columns // GROUP)
    q = x.new_empty((*x.shape[:-1], columns), dtype=dtype)
    scales = x.new_empty((*x.shape[:-1], blocks), dtype=torch.float32)
    return replace(recipe, codes=CODES[dtype], block="token" if whole else "block"), q, scales
