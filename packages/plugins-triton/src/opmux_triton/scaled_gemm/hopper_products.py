"""One scaled product by the Gluon kernel for sm_90: descriptors, the order of work, the launch."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from opmux_triton.devices import units
from opmux_triton.gemm.cuts import even_shares, rest_of
from opmux_triton.gemm.operands import Operand, matrix_of
from opmux_triton.gemm.shares import sum_shares
from opmux_triton.launch import launch
from opmux_triton.repeats import scratch
from opmux_triton.scaled_gemm import hopper_kernels, products
from opmux_triton.scaled_gemm.hopper_configs import BLOCK_K, HopperScaledConfig
from opmux_triton.scaled_gemm.operands import codes_of, scales_of, weight_scales

_REGISTERS = {1: (232, 168), 2: (240, 168), 3: (160, 128)}
"""Of a thread that multiplies, and of one on average, by the number of multiplying warpgroups."""
MULTIPLIED = (torch.float8_e4m3fn, torch.float8_e5m2)


class Side(NamedTuple):
    """An operand and its scales: ``side`` rows share a row of them."""

    codes: Operand
    scale: Tensor
    side: int
    row: int
    col: int


def product(
    x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None, out: Tensor, added: bool,
    config: HopperScaledConfig,
) -> None:  # fmt: skip
    """Write the product, or add it; the arguments are those of `opmux_triton.scaled_gemm.products.product`."""
    _product(x, w, x_scale, w_scale, bias, out, added, True, config)


def fast_product(
    x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None, out: Tensor, added: bool,
    config: HopperScaledConfig,
) -> None:  # fmt: skip
    """Like `product`, with sums that stay in the matrix units; not for scales of blocks."""
    _product(x, w, x_scale, w_scale, bias, out, added, False, config)


def _product(
    x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None, out: Tensor, added: bool,
    promote: bool, config: HopperScaledConfig,
) -> None:  # fmt: skip
    rows, scales = codes_of(x), scales_of(x_scale, x.shape[-2])
    n = w.shape[0]
    weight = Side(matrix_of(w, False), w_scale, *weight_scales(w_scale, n))
    tokens = Side(rows, scales.tensor, 1, scales.row, scales.col)
    if rows.tensor is not x or scales.is_folded or not _fits(rows, weight.codes, out):
        products.product(x, w, x_scale, w_scale, bias, out, added, config.otherwise)
        return
    sides = (weight, tokens) if config.swap else (tokens, weight)
    _launch(*sides, bias, out, added, promote and x.dtype in MULTIPLIED, config)


def _fits(x: Operand, w: Operand, out: Tensor) -> bool:
    """Whether the operands and the result have descriptors."""
    size = out.element_size()
    stored = out.stride(-1) == 1 and out.data_ptr() % 16 == 0 and _row(out) * size % 16 == 0
    return x.fits_descriptor and w.fits_descriptor and stored and x.tensor.dtype in MULTIPLIED


def _row(out: Tensor) -> int:
    """The stride of the rows of a result: contiguous, or a matrix."""
    return out.stride(0) if out.dim() == 2 and out.shape[0] > 1 else out.shape[-1]


def _launch(
    a: Side, b: Side, bias: Tensor | None, out: Tensor, added: bool, promote: bool, c: HopperScaledConfig
) -> None:
    """Launch the kernel for operands that are swapped already where the config says so."""
    m, n, k = a.codes.rows, b.codes.rows, a.codes.columns
    tiles_m, tiles_n, blocks = -(-m // c.block_m), -(-n // c.block_n), -(-k // BLOCK_K)
    tiles, slots = tiles_m * tiles_n, units(out)
    rest = 0 if added else _rest(c, tiles, blocks, slots)
    whole = tiles - rest
    share, length = even_shares(rest, blocks, slots) if rest else (0, 1)
    sharing = -(-rest * length // share) if rest else 0
    rows, width = c.block_m // c.warpgroups, c.block_n // c.parts
    partial = scratch(((sharing + rest) * c.block_m * c.block_n,), out) if rest else None
    computing, average = _REGISTERS[c.warpgroups]
    arguments = (
        _operand(a.codes, rows), _operand(b.codes, c.block_n), _stored(out, m, n, rows, width, c), bias, partial,
        a.scale, b.scale, out if added else None, m, n, tiles_m, tiles_n, blocks, whole, rest, share, length,
        a.row, a.col, b.row, b.col, _row(out),
    )  # fmt: skip
    meta: dict[str, Any] = {
        "BLOCKWISE": a.scale.shape[-1] > 1,
        "PROMOTE": promote,
        "A_SIDE": a.side,
        "B_SIDE": b.side,
        "HAS_BIAS": bias is not None,
        "SWAPPED": c.swap,
        "ADDED": added,
        "AHEAD": c.ahead,
        "BLOCK_M": c.block_m,
        "BLOCK_N": c.block_n,
        "BLOCK_K": BLOCK_K,
        "GROUP": c.group,
        "STAGES": c.stages,
        "PARTS": c.parts,
        "SLOTS": c.slots,
        "WARPGROUPS": c.warpgroups,
        "REGISTERS": computing,
        "num_warps": 4,
        "maxnreg": average,
    }
    launch(hopper_kernels.scaled_products, (min(slots, max(whole, sharing)),), arguments, meta)
    if partial is not None:
        sum_shares(partial, out, bias, (m, n), (whole, rest), (share, length), c)


def _rest(c: HopperScaledConfig, tiles: int, blocks: int, slots: int) -> int:
    """How many tiles are cut along k: all only where each program has one part at most."""
    if c.cut == "none":
        return 0
    return tiles if c.cut == "all" and tiles <= slots else rest_of(tiles, blocks, slots)


def _operand(operand: Operand, block: int) -> TensorDescriptor:
    sizes, strides, shape = operand.described(block, BLOCK_K)
    return TensorDescriptor(operand.tensor, sizes, strides, shape, _layout(shape, 8))


def _stored(out: Tensor, m: int, n: int, rows: int, width: int, c: HopperScaledConfig) -> TensorDescriptor:
    """The result as blocks of ``rows`` of m by ``width`` of n."""
    sizes, shape = ([n, m], [width, rows]) if c.swap else ([m, n], [rows, width])
    return TensorDescriptor(out, sizes, [_row(out), 1], shape, _layout(shape, 8 * out.element_size()))


def _layout(shape: list[int], bits: int) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout(swizzle_byte_width=min(128, shape[1] * bits // 8), element_bitwidth=bits, rank=2)
