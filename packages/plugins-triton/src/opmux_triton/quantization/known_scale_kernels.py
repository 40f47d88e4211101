"""Kernels of ops whose scales are known: `static_quantize`, `dequantize`, `convert_fp8`.

The tile of a program is cut into GROUP columns that share a scale; SIDE rows of a matrix share one too. Where a dim has
one block only, its step is 0.
"""

import triton
import triton.language as tl

from opmux_triton.addressing import load_tile, row_starts, store_tile
from opmux_triton.codes import encoded
from opmux_triton.dependent_launch import await_predecessor
from opmux_triton.paged.code_kernels import values_of
from opmux_triton.quantization.scaling import quantized
from opmux_triton.rounding import rounded


@triton.jit
def _tile(rows, K: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """(row, group, columns, inside) of a program: rows as a column, groups beside each other, columns within them."""
    CHUNKS: tl.constexpr = (K + BLOCK - 1) // BLOCK
    program = tl.program_id(0)
    row = (program // CHUNKS).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    group = program % CHUNKS * (BLOCK // GROUP) + tl.arange(0, BLOCK // GROUP)[None, :]
    columns = group[:, :, None] * GROUP + tl.arange(0, GROUP)[None, None, :]
    return row, group, columns, (row[:, :, None] < rows) & (columns < K)


@triton.jit
def _scales(
    scale, row, group, rows, m, step, row_step, column_step,
    K: tl.constexpr, GROUP: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """The scales of a tile, one for each row and group."""
    places = row // m * step + row % m // SIDE * row_step + group.to(tl.int64) * column_step
    return tl.load(scale + places, mask=(row < rows) & (group * GROUP < K), other=1.0)


@triton.jit(do_not_specialize=["rows", "m"])
def static_quantize(
    x, scale, q, rows, m, step, row_step, column_step, inner, stride, outer,
    FORMAT: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr, SIDE: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, FP8: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """``q = round(x / scale)``; q is contiguous."""
    await_predecessor(DEPENDENT)
    WHOLE: tl.constexpr = ROWS == 1 and K % BLOCK == 0
    row, group, columns, inside = _tile(rows, K, GROUP, BLOCK, ROWS)
    starts = row_starts(row, inner, stride, outer, K)[:, :, None]
    values = load_tile(x + starts + columns, inside, WHOLE, "").to(tl.float32)
    scales = _scales(scale, row, group, rows, m, step, row_step, column_step, K, GROUP, SIDE)
    codes = quantized(values, scales[:, :, None], FORMAT, FP8)
    store_tile(q + row[:, :, None] * K + columns, codes, inside, WHOLE)


@triton.jit(do_not_specialize=["rows", "m"])
def dequantize(
    q, scale, out, rows, m, step, row_step, column_step, inner, stride, outer,
    FORMAT: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr, SIDE: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, FP8: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """``out = q * scale``, in float32 before it is rounded; out is contiguous."""
    await_predecessor(DEPENDENT)
    WHOLE: tl.constexpr = ROWS == 1 and K % BLOCK == 0
    row, group, columns, inside = _tile(rows, K, GROUP, BLOCK, ROWS)
    starts = row_starts(row, inner, stride, outer, K)[:, :, None]
    codes = values_of(load_tile(q + starts + columns, inside, WHOLE, ""), tl.float32, FORMAT, FP8)
    scales = _scales(scale, row, group, rows, m, step, row_step, column_step, K, GROUP, SIDE)
    values = rounded(codes * scales[:, :, None], out.dtype.element_ty)
    store_tile(out + row[:, :, None] * K + columns, values, inside, WHOLE)


@triton.jit(do_not_specialize=["rows"])
def convert_fp8(
    q, out, rows, factor, inner, stride, outer,
    FORMAT: tl.constexpr, TO: tl.constexpr, K: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, FP8: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Codes of one format, times a factor, as codes of another one; out is contiguous."""
    await_predecessor(DEPENDENT)
    WHOLE: tl.constexpr = ROWS == 1 and K % BLOCK == 0
    row, _, columns, inside = _tile(rows, K, BLOCK, BLOCK, ROWS)
    starts = row_starts(row, inner, stride, outer, K)[:, :, None]
    values = values_of(load_tile(q + starts + columns, inside, WHOLE, ""), tl.float32, FORMAT, FP8)
    store_tile(out + row[:, :, None] * K + columns, encoded(values * factor, TO, FP8), inside, WHOLE)
