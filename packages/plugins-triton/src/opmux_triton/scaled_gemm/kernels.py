"""Scaled products from pointers, for every arch: rows of codes by rows of a weight's codes.

A row of x begins, as its scales do, at ``r // inner * outer + r % inner * row``; W_SIDE rows of the weight share a row
of scales. With BLOCKWISE there is a scale for every 128 columns; without, the sums are scaled once, at the end.
"""

import triton
import triton.language as tl

from opmux_triton.dependent_launch import await_predecessor
from opmux_triton.gemm.kernels import row_starts, spread, tile_of
from opmux_triton.rounding import rounded
from opmux_triton.scaled_gemm.decoding import factors, typed

SCALED_COLUMNS = tl.constexpr(128)
"""Columns that share a scale, and after which float32 takes over a sum of 8-bit floats."""


@triton.jit
def _outer(x, w, SWAPPED: tl.constexpr):
    """What belongs to rows of x and rows of w, in the shape of a tile that has either as its rows."""
    if SWAPPED:
        return x[None, :], w[:, None]
    else:
        return x[:, None], w[None, :]


@triton.jit
def _weight_rows(at_n, n, W_SIDE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Which rows of scales the rows of a tile have; a single one where they all share it."""
    if W_SIDE % BLOCK_N == 0 and W_SIDE > 1:
        return tl.min(at_n, 0, keep_dims=True) // W_SIDE
    else:
        return tl.minimum(at_n, n - 1) // W_SIDE


@triton.jit
def tile_product(
    x, w, x_scale, w_scale, tile_m, tile_n, m, n, k, first, last,
    x_inner, x_outer, x_row, w_row, xs_inner, xs_outer, xs_row, xs_col, ws_row, ws_col,
    FORMAT: tl.constexpr, X_FOLDED: tl.constexpr, XS_FOLDED: tl.constexpr, W_SIDE: tl.constexpr,
    BLOCKWISE: tl.constexpr, PROMOTE: tl.constexpr, EVEN_K: tl.constexpr, SWAPPED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """The scaled float32 product of a tile over the blocks of k from first up to last.

    With PROMOTE, float32 takes over the sum of every block of k. Without, the matrix units keep it over all blocks: for
    units that sum in float32, and for int8, whose int32 sums are exact.
    """
    at_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    at_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    at_k = first * BLOCK_K + tl.arange(0, BLOCK_K)
    rows = tl.minimum(at_m, m - 1)
    x_here = typed(x, FORMAT, FP8) + row_starts(rows, x_inner, x_outer, x_row, X_FOLDED)[:, None] + at_k[None, :]
    w_here = typed(w, FORMAT, FP8) + (tl.minimum(at_n, n - 1).to(tl.int64) * w_row)[:, None] + at_k[None, :]
    xs_here = x_scale + row_starts(rows, xs_inner, xs_outer, xs_row, XS_FOLDED)
    ws_here = w_scale + _weight_rows(at_n, n, W_SIDE, BLOCK_N).to(tl.int64) * ws_row
    SUM: tl.constexpr = tl.int32 if FORMAT == "int8" else tl.float32
    KEPT: tl.constexpr = tl.float32 if PROMOTE or BLOCKWISE else SUM
    if SWAPPED:
        total = tl.zeros([BLOCK_N, BLOCK_M], KEPT)
    else:
        total = tl.zeros([BLOCK_M, BLOCK_N], KEPT)
    for block in range(first, last):
        if EVEN_K:
            x_tile = tl.load(x_here)
            w_tile = tl.load(w_here)
        else:
            inside = (tl.arange(0, BLOCK_K) < k - block * BLOCK_K)[None, :]
            x_tile = tl.load(x_here, mask=inside, other=0.0)
            w_tile = tl.load(w_here, mask=inside, other=0.0)
        x_tile = factors(x_tile, FORMAT, FP8)
        w_tile = factors(w_tile, FORMAT, FP8)
        if SWAPPED:
            a_tile, b_tile = w_tile, x_tile.T
        else:
            a_tile, b_tile = x_tile, w_tile.T
        if BLOCKWISE:
            at = tl.cast(block * BLOCK_K // SCALED_COLUMNS, tl.int64)
            xs, ws = _outer(tl.load(xs_here + at * xs_col), tl.load(ws_here + at * ws_col), SWAPPED)
            total += tl.dot(a_tile, b_tile, out_dtype=SUM).to(tl.float32) * xs * ws
        elif PROMOTE:
            total += tl.dot(a_tile, b_tile, out_dtype=SUM).to(tl.float32)
        else:
            total = tl.dot(a_tile, b_tile, total, out_dtype=SUM)
        x_here += BLOCK_K
        w_here += BLOCK_K
    if BLOCKWISE:
        return total
    else:
        xs, ws = _outer(tl.load(xs_here), tl.load(ws_here), SWAPPED)
        return total.to(tl.float32) * xs * ws


@triton.jit
def store_tile(
    total, out, bias, first_m, first_n, m, n, out_row, out_col,
    HAS_BIAS: tl.constexpr, ADDED: tl.constexpr, SWAPPED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Add the bias, or what is there (ADDED); round, and store what lies inside."""
    at_m = first_m + tl.arange(0, BLOCK_M)
    at_n = first_n + tl.arange(0, BLOCK_N)
    rows, columns = _outer(at_m.to(tl.int64) * out_row, at_n.to(tl.int64) * out_col, SWAPPED)
    row_inside, column_inside = _outer(at_m < m, at_n < n, SWAPPED)
    where = out + rows + columns
    inside = row_inside & column_inside
    if HAS_BIAS:
        added = tl.load(bias + at_n, mask=at_n < n, other=0.0).to(tl.float32)
        total += added[:, None] if SWAPPED else added[None, :]
    if ADDED:
        total += tl.load(where, mask=inside, other=0.0)
    tl.store(where, rounded(total, out.dtype.element_ty), mask=inside)


@triton.jit
def scaled_tiles(
    x, w, x_scale, w_scale, out, bias, m, n, k, blocks_each,
    x_inner, x_outer, x_row, w_row, xs_inner, xs_outer, xs_row, xs_col, ws_row, ws_col, out_row, out_col,
    FORMAT: tl.constexpr, X_FOLDED: tl.constexpr, XS_FOLDED: tl.constexpr, W_SIDE: tl.constexpr,
    BLOCKWISE: tl.constexpr, PROMOTE: tl.constexpr, EVEN_K: tl.constexpr, SWAPPED: tl.constexpr,
    HAS_BIAS: tl.constexpr, ADDED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, XCDS: tl.constexpr,
    FP8: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A tile of the result by each program; with several in the second dim, each a part of k, and results of its own.

    A part has ``blocks_each`` blocks of k. The results of parts lie behind one another, ``m * n`` values each.
    """
    await_predecessor(DEPENDENT)
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    tile_m, tile_n = tile_of(spread(tl.program_id(0), tiles_m * tiles_n, XCDS), tiles_m, tiles_n, GROUP)
    part = tl.program_id(1)
    first = part * blocks_each
    last = tl.minimum(first + blocks_each, tl.cdiv(k, BLOCK_K))
    total = tile_product(
        x, w, x_scale, w_scale, tile_m, tile_n, m, n, k, first, last,
        x_inner, x_outer, x_row, w_row, xs_inner, xs_outer, xs_row, xs_col, ws_row, ws_col,
        FORMAT, X_FOLDED, XS_FOLDED, W_SIDE, BLOCKWISE, PROMOTE, EVEN_K, SWAPPED, BLOCK_M, BLOCK_N, BLOCK_K, FP8,
    )  # fmt: skip
    out += part.to(tl.int64) * m * n
    store_tile(
        total, out, bias, tile_m * BLOCK_M, tile_n * BLOCK_N, m, n, out_row, out_col,
        HAS_BIAS, ADDED, SWAPPED, BLOCK_M, BLOCK_N,
    )  # fmt: skip


@triton.jit
def sum_parts(
    partial, out, bias, parts, m, n, out_row, out_col,
    HAS_BIAS: tl.constexpr, ADDED: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Add up the results of the parts in the order of k, then the bias, or what is there (ADDED); round."""
    await_predecessor(DEPENDENT)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    size = tl.cast(m, tl.int64) * n
    inside = at < size
    total = tl.zeros([BLOCK], tl.float32)
    for part in range(parts):
        total += tl.load(partial + part * size + at, mask=inside, other=0.0)
    row, column = at // n, at % n
    where = out + row * out_row + column * out_col
    if HAS_BIAS:
        total += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    if ADDED:
        total += tl.load(where, mask=inside, other=0.0)
    tl.store(where, rounded(total, out.dtype.element_ty), mask=inside)
