"""Kernels of `quantize`: a program holds whole blocks, or reads a long row, or a whole matrix, twice."""

import triton
import triton.language as tl

from opmux_triton.addressing import load_tile, row_starts, store_tile
from opmux_triton.codes import magnitude
from opmux_triton.dependent_launch import await_predecessor
from opmux_triton.quantization.scaling import quantized, scale_of, scale_places


@triton.jit(do_not_specialize=["rows", "m"])
def quantize_groups(
    x, q, scale, rows, m, step, column, inner, stride, outer,
    FORMAT: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr, TRANSPOSED: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, FP8: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Blocks of one row and GROUP columns; q is contiguous. A program holds ROWS rows and BLOCK columns."""
    await_predecessor(DEPENDENT)
    CHUNKS: tl.constexpr = (K + BLOCK - 1) // BLOCK
    GROUPS: tl.constexpr = (K + GROUP - 1) // GROUP
    WHOLE: tl.constexpr = ROWS == 1 and K % BLOCK == 0
    program = tl.program_id(0)
    row = (program // CHUNKS).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    group = program % CHUNKS * (BLOCK // GROUP) + tl.arange(0, BLOCK // GROUP)[None, :]
    columns = group[:, :, None] * GROUP + tl.arange(0, GROUP)[None, None, :]
    inside = (row[:, :, None] < rows) & (columns < K)
    starts = row_starts(row, inner, stride, outer, K)[:, :, None]
    values = load_tile(x + starts + columns, inside, WHOLE, "").to(tl.float32)
    scales = scale_of(tl.max(magnitude(values, FP8), 2), FORMAT)
    codes = quantized(values, scales[:, :, None], FORMAT, FP8)
    store_tile(q + row[:, :, None] * K + columns, codes, inside, WHOLE)
    places = scale_places(row, group, m, step, column, GROUPS, TRANSPOSED)
    store_tile(scale + places, scales, (row < rows) & (group < GROUPS), WHOLE)


@triton.jit(do_not_specialize=["rows", "m"])
def quantize_rows(
    x, q, scale, rows, m, step, inner, stride, outer,
    FORMAT: tl.constexpr, K: tl.constexpr, TRANSPOSED: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, FP8: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One scale for each row; q is contiguous. Rows longer than BLOCK are read twice."""
    await_predecessor(DEPENDENT)
    WHOLE: tl.constexpr = ROWS == 1 and K % BLOCK == 0
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    live = row < rows
    x_rows = x + row_starts(row, inner, stride, outer, K)
    q_rows = q + row * K
    places = scale_places(row, 0, m, step, 0, 1, TRANSPOSED)
    if BLOCK >= K:
        columns = tl.arange(0, BLOCK)[None, :]
        inside = live & (columns < K)
        values = load_tile(x_rows + columns, inside, WHOLE, "").to(tl.float32)
        scales = scale_of(tl.max(magnitude(values, FP8), 1, keep_dims=True), FORMAT)
        store_tile(q_rows + columns, quantized(values, scales, FORMAT, FP8), inside, WHOLE)
    else:
        largest = tl.zeros([ROWS, BLOCK], tl.float32)
        for start in range(0, K, BLOCK):
            at = start + tl.arange(0, BLOCK)[None, :]
            values = load_tile(x_rows + at, live & (at < K), WHOLE, "evict_last").to(tl.float32)
            largest = tl.maximum(largest, magnitude(values, FP8))
        scales = scale_of(tl.max(largest, 1, keep_dims=True), FORMAT)
        for start in range(0, K, BLOCK):
            at = start + tl.arange(0, BLOCK)[None, :]
            inside = live & (at < K)
            values = load_tile(x_rows + at, inside, WHOLE, "evict_first").to(tl.float32)
            store_tile(q_rows + at, quantized(values, scales, FORMAT, FP8), inside, WHOLE)
    store_tile(scale + places, scales, live, WHOLE)


@triton.jit(do_not_specialize=["m"])
def quantize_tiles(
    x, q, scale, m, step, column, batch_stride, stride,
    FORMAT: tl.constexpr, K: tl.constexpr, TRANSPOSED: tl.constexpr,
    SIDE: tl.constexpr, FP8: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Blocks of SIDE rows and columns of matrices ``(m, K)``, a program for each; q is contiguous."""
    await_predecessor(DEPENDENT)
    matrix = tl.program_id(1).to(tl.int64)
    GROUPS: tl.constexpr = (K + SIDE - 1) // SIDE
    block, group = tl.program_id(0) // GROUPS, tl.program_id(0) % GROUPS
    row = block.to(tl.int64) * SIDE + tl.arange(0, SIDE)[:, None]
    columns = group * SIDE + tl.arange(0, SIDE)[None, :]
    inside = (row < m) & (columns < K)
    values = tl.load(x + matrix * batch_stride + row * stride + columns, mask=inside, other=0.0).to(tl.float32)
    scales = scale_of(tl.max(tl.max(magnitude(values, FP8), 1, keep_dims=True), 0, keep_dims=True), FORMAT)
    codes = quantized(values, scales, FORMAT, FP8)
    tl.store(q + (matrix * m + row) * K + columns, codes, mask=inside)
    first = matrix * step + (block + group * column if TRANSPOSED else block * GROUPS + group)
    tl.store(scale + first + tl.zeros([1, 1], tl.int32), scales)


@triton.jit
def _tile(program, m, K: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Rows and columns of a matrix's tile, and which of them are inside."""
    CHUNKS: tl.constexpr = (K + BLOCK - 1) // BLOCK
    row = (program // CHUNKS * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    columns = program % CHUNKS * BLOCK + tl.arange(0, BLOCK)[None, :]
    return row, columns, (row < m) & (columns < K)


@triton.jit(do_not_specialize=["m", "tiles"])
def largest_of_tiles(
    x, largest, m, tiles, batch_stride, stride,
    K: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The largest magnitude of each program's tiles of a matrix ``(m, K)``: ``largest`` is (matrices, PARTS)."""
    await_predecessor(DEPENDENT)
    matrix = tl.program_id(1).to(tl.int64)
    found = tl.zeros([ROWS, BLOCK], tl.float32)
    for program in range(tl.program_id(0), tiles, PARTS):
        row, columns, inside = _tile(program, m, K, BLOCK, ROWS)
        values = tl.load(x + matrix * batch_stride + row * stride + columns, mask=inside, other=0.0)
        found = tl.maximum(found, magnitude(values.to(tl.float32), ""))
    tl.store(largest + matrix * PARTS + tl.program_id(0), tl.max(tl.max(found, 1), 0))


@triton.jit(do_not_specialize=["m"])
def quantize_matrices(
    x, largest, q, scale, m, step, batch_stride, stride,
    FORMAT: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr,
    FP8: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One scale for each matrix, from what `largest_of_tiles` found; q is contiguous."""
    await_predecessor(DEPENDENT)
    matrix = tl.program_id(1).to(tl.int64)
    row, columns, inside = _tile(tl.program_id(0), m, K, BLOCK, ROWS)
    values = tl.load(x + matrix * batch_stride + row * stride + columns, mask=inside, other=0.0).to(tl.float32)
    found = tl.load(largest + matrix * PARTS + tl.arange(0, PARTS))
    scales = scale_of(tl.max(found, 0, keep_dims=True), FORMAT)
    codes = quantized(values, scales[None, :], FORMAT, FP8)
    tl.store(q + (matrix * m + row) * K + columns, codes, mask=inside)
    if tl.program_id(0) == 0:
        tl.store(scale + matrix * step + tl.arange(0, 1), scales)
