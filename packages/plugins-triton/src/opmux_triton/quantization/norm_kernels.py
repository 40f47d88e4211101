"""Kernels that norm rows and quantise what they computed, before it is rounded: a program holds ROWS whole rows."""

import triton
import triton.language as tl

from opmux_triton.addressing import load_tile, row_starts, store_tile
from opmux_triton.codes import magnitude
from opmux_triton.dependent_launch import await_predecessor
from opmux_triton.norm.kernels import normalised
from opmux_triton.quantization.scaling import quantized, scale_of, scale_places
from opmux_triton.rounding import rounded


@triton.jit
def _write_codes(
    values, q_rows, scale, row, columns, inside, live, m, step, column,
    FORMAT: tl.constexpr, HIDDEN: tl.constexpr, GROUP: tl.constexpr, TRANSPOSED: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """Quantise whole rows by blocks of GROUP columns, or by rows where GROUP is -1."""
    WHOLE: tl.constexpr = ROWS == 1 and BLOCK == HIDDEN
    if GROUP == -1:
        scales = scale_of(tl.max(magnitude(values, FP8), 1, keep_dims=True), FORMAT)
        store_tile(q_rows + columns, quantized(values, scales, FORMAT, FP8), inside, WHOLE)
        store_tile(scale + scale_places(row, 0, m, step, 0, 1, TRANSPOSED), scales, live, WHOLE)
    else:
        GROUPS: tl.constexpr = (HIDDEN + GROUP - 1) // GROUP
        blocks = tl.reshape(values, [ROWS, BLOCK // GROUP, GROUP])
        scales = scale_of(tl.max(magnitude(blocks, FP8), 2), FORMAT)
        codes = tl.reshape(quantized(blocks, scales[:, :, None], FORMAT, FP8), [ROWS, BLOCK])
        store_tile(q_rows + columns, codes, inside, WHOLE)
        group = tl.arange(0, BLOCK // GROUP)[None, :]
        places = scale_places(row, group, m, step, column, GROUPS, TRANSPOSED)
        store_tile(scale + places, scales, live & (group < GROUPS), WHOLE)


@triton.jit(do_not_specialize=["rows", "m"])
def norm_quantize(
    x, weight, q, scale, rows, eps, offset, m, step, column, inner, stride, outer,
    FORMAT: tl.constexpr, HIDDEN: tl.constexpr, GROUP: tl.constexpr, TRANSPOSED: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, OFFSET: tl.constexpr, STAGES: tl.constexpr, FP8: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """``quantize(normalised(x) * (weight + offset))``; q is contiguous, and rows fit into BLOCK columns.

    With STAGES a program takes every ``num_programs``-th tile of rows, and loads that many ahead to shared memory.
    Rows of 16 bits take as long as their instructions: OFFSET says that there is an offset to add.
    """
    await_predecessor(DEPENDENT)
    columns = tl.arange(0, BLOCK)[None, :]
    WHOLE: tl.constexpr = ROWS == 1 and BLOCK == HIDDEN
    if STAGES > 0:
        gain = load_tile(weight + columns, columns < HIDDEN, BLOCK == HIDDEN, "").to(tl.float32)
        if OFFSET:
            gain += offset
        for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
            row = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
            live = row < rows
            inside = live & (columns < HIDDEN)
            places = x + row_starts(row, inner, stride, outer, HIDDEN) + columns
            values = load_tile(places, inside, WHOLE, "").to(tl.float32)
            values = normalised(values, inside, eps, HIDDEN, WHOLE, False) * gain
            _write_codes(
                values, q + row * HIDDEN, scale, row, columns, inside, live, m, step, column,
                FORMAT, HIDDEN, GROUP, TRANSPOSED, BLOCK, ROWS, FP8,
            )  # fmt: skip
    else:
        row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
        live = row < rows
        inside = live & (columns < HIDDEN)
        places = x + row_starts(row, inner, stride, outer, HIDDEN) + columns
        values = load_tile(places, inside, WHOLE, "").to(tl.float32)
        gain = load_tile(weight + columns, columns < HIDDEN, BLOCK == HIDDEN, "").to(tl.float32)
        if OFFSET:
            gain += offset
        values = normalised(values, inside, eps, HIDDEN, WHOLE, False) * gain
        _write_codes(
            values, q + row * HIDDEN, scale, row, columns, inside, live, m, step, column,
            FORMAT, HIDDEN, GROUP, TRANSPOSED, BLOCK, ROWS, FP8,
        )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "m"])
def add_norm_quantize(
    x, residual, weight, q, scale, total, rows, eps, offset, m, step, column,
    inner, x_stride, residual_stride, x_outer, residual_outer,
    FORMAT: tl.constexpr, HIDDEN: tl.constexpr, GROUP: tl.constexpr, TRANSPOSED: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, FP8: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """``total = x + residual``, rounded; ``quantize(normalised(total) * (weight + offset))``."""
    await_predecessor(DEPENDENT)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    live = row < rows
    columns = tl.arange(0, BLOCK)[None, :]
    inside = live & (columns < HIDDEN)
    WHOLE: tl.constexpr = ROWS == 1 and BLOCK == HIDDEN
    values = load_tile(x + row_starts(row, inner, x_stride, x_outer, HIDDEN) + columns, inside, WHOLE, "").to(
        tl.float32
    )
    residual_rows = residual + row_starts(row, inner, residual_stride, residual_outer, HIDDEN)
    values += load_tile(residual_rows + columns, inside, WHOLE, "").to(tl.float32)
    gain = load_tile(weight + columns, columns < HIDDEN, BLOCK == HIDDEN, "").to(tl.float32) + offset
    kept = rounded(values, total.dtype.element_ty)
    store_tile(total + row * HIDDEN + columns, kept, inside, WHOLE)
    values = normalised(kept.to(tl.float32), inside, eps, HIDDEN, WHOLE, False) * gain
    _write_codes(
        values, q + row * HIDDEN, scale, row, columns, inside, live, m, step, column,
        FORMAT, HIDDEN, GROUP, TRANSPOSED, BLOCK, ROWS, FP8,
    )  # fmt: skip
