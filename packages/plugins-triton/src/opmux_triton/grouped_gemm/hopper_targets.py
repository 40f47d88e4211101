"""What the core calls for grouped products of codes on sm_90 where the Gluon kernel computes them."""

from typing import Any

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from opmux_triton.devices import units
from opmux_triton.grouped_gemm import hopper_kernels, targets
from opmux_triton.grouped_gemm.hopper_configs import HopperGroupedConfig
from opmux_triton.launch import launch
from opmux_triton.repeats import kept, repeated

BLOCK_K = 128
"""Columns of a block of the operands: those that share a scale."""
MULTIPLIED = (torch.float8_e4m3fn, torch.float8_e5m2)
_REGISTERS = {1: (232, 168), 2: (240, 168), 3: (160, 128)}
"""Of a thread that multiplies, and of one on average, by the number of multiplying warpgroups."""


def scaled_grouped_linear(
    x: Tensor, w: Tensor, group_offsets: Tensor, x_scale: Tensor, w_scale: Tensor, group_sizes: Tensor | None,
    *, out_dtype: torch.dtype, config: HopperGroupedConfig, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The op `scaled_grouped_linear`."""
    if config.few or not fits(x, w):
        return targets.scaled_grouped_linear(
            x, w, group_offsets, x_scale, w_scale, group_sizes, out_dtype=out_dtype, config=config.otherwise, out=out
        )
    out = x.new_empty((x.shape[0], w.shape[1]), dtype=out_dtype) if out is None else out
    if out.numel() and w.shape[0]:
        _noted("scaled_grouped_linear", (x, w, group_offsets, x_scale, w_scale), group_sizes, out, config)
    return out


def scaled_masked_grouped_linear(
    x: Tensor, w: Tensor, masked_m: Tensor, x_scale: Tensor, w_scale: Tensor,
    *, expected_m: int, out_dtype: torch.dtype, config: HopperGroupedConfig, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The op `scaled_masked_grouped_linear`."""
    if config.few or not fits(x, w):
        return targets.scaled_masked_grouped_linear(
            x, w, masked_m, x_scale, w_scale, expected_m=expected_m, out_dtype=out_dtype, config=config.otherwise,
            out=out,
        )  # fmt: skip
    out = x.new_empty((*x.shape[:2], w.shape[1]), dtype=out_dtype) if out is None else out
    if out.numel():
        _noted("scaled_masked_grouped_linear", (x, w, masked_m, x_scale, w_scale), None, out, config)
    return out


def fits(x: Tensor, w: Tensor) -> bool:
    """Whether the kernel can take these operands: rows that descriptors reach, with numbers of 32 bits."""
    rows = x.numel() // x.shape[-1], w.shape[0] * w.shape[1]
    return x.dtype in MULTIPLIED and targets.have_descriptors(x, w) and max(rows) < 1 << 31


def _noted(op: str, given: tuple[Tensor, ...], sizes: Tensor | None, out: Tensor, config: HopperGroupedConfig) -> None:
    """A product, launched as before where a call comes again."""
    every = given if sizes is None else (*given, sizes)
    key = (op, "hopper", id(config), given[0].shape, sizes is None, out.dtype, out.stride())  # it may be the caller's
    if repeated(key, every, (out,)):
        return
    with kept(key, every, (out,), config):
        _product(given, sizes, out, config)


def _product(given: tuple[Tensor, ...], sizes: Tensor | None, out: Tensor, c: HopperGroupedConfig) -> None:
    x, w, groups, x_scale, w_scale = given
    groups, sizes = targets.dense(groups, sizes)
    count, n, k = w.shape
    masked, rows = x.dim() == 3, x.shape[-2]
    step = targets.step
    heights = -(-rows // c.block_m)
    most = -(-n // c.block_n) * (count * heights if masked else heights + count - 1)
    computing, average = _REGISTERS[c.warpgroups]
    arguments = (
        _described(x, [x.numel() // k, k], 64), _described(w, [count * n, k], c.block_n), out, x_scale, w_scale,
        groups, sizes, count, n, rows, most, -(-k // BLOCK_K),
        x_scale.stride(0) if masked else 0, step(x_scale, -2), x_scale.stride(-1),
        w_scale.stride(0), step(w_scale, 1), w_scale.stride(2),
        out.stride(0) if masked else 0, out.stride(-2), out.stride(-1),
    )  # fmt: skip
    meta: dict[str, Any] = {
        "MASKED": masked,
        "PADDED": sizes is not None,
        "BLOCKWISE": w_scale.shape[2] > 1,
        "SIDE": 1 if w_scale.shape[1] in (1, n) else 128,
        "BLOCK_M": c.block_m,
        "BLOCK_N": c.block_n,
        "BLOCK_K": BLOCK_K,
        "GROUP": c.group,
        "STAGES": c.stages,
        "WARPGROUPS": c.warpgroups,
        "REGISTERS": computing,
        "num_warps": 4,
        "maxnreg": average,
    }
    launch(hopper_kernels.grouped_products, (max(1, min(most, units(out))),), arguments, meta)


def _described(matrix: Tensor, sizes: list[int], block: int) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8, rank=2)
    return TensorDescriptor(matrix, sizes, [matrix.stride(-2), 1], [block, BLOCK_K], layout)
