"""Matrix products from pointers, for every arch and any strides: ``C[m, n] = A[m, k] @ B[k, n]``.

An operand is stored as rows and columns: element (r, c) lies at ``r // inner * outer + r % inner * row + c * col``. Its
rows run along m (or n) and its columns along k, or, with ROWS_ARE_K, the other way round: so one kernel does the
product of `linear` (x by the rows of w), that of grad_x (grad by w) and that of grad_w (grad, transposed, by x).
"""

import triton
import triton.language as tl

from opmux_triton.dependent_launch import await_predecessor
from opmux_triton.rounding import rounded


@triton.jit
def row_starts(rows, inner, outer, stride, FOLDED: tl.constexpr):
    """Where rows begin, in 64 bits; two strides where the leading dims do not fold into one."""
    if FOLDED:
        return (rows // inner).to(tl.int64) * outer + (rows % inner).to(tl.int64) * stride
    else:
        return rows.to(tl.int64) * stride


@triton.jit
def tile_of(index, tiles_m, tiles_n, GROUP: tl.constexpr):
    """The tile that comes index-th: GROUP rows of tiles are walked together, column by column, to stay in the cache."""
    in_group = GROUP * tiles_n
    group = index // in_group
    height = tl.minimum(tiles_m - group * GROUP, GROUP)
    return group * GROUP + index % in_group % height, index % in_group // height


@triton.jit
def spread(index, count, XCDS: tl.constexpr):
    """Renumber programs so that neighbours run on one die: the hardware deals them out to XCDS dies in turn."""
    if XCDS > 1:
        die = index % XCDS
        index = die * (count // XCDS) + tl.minimum(die, count % XCDS) + index // XCDS
    return index


@triton.jit
def tile_product(
    a, b, tile_m, tile_n, m, n, k, first, last,
    a_inner, a_outer, a_row, a_col, b_inner, b_outer, b_row, b_col,
    A_ROWS_ARE_K: tl.constexpr, B_ROWS_ARE_K: tl.constexpr, A_FOLDED: tl.constexpr, B_FOLDED: tl.constexpr,
    EVEN_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """The float32 product of a tile over the blocks of k from first up to last.

    Rows past m or n read the last one, columns past them are masked: what they give is not stored. Past k both operands
    are 0, so nothing that lies behind a row gets in.
    """
    at_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    at_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    at_k = first * BLOCK_K + tl.arange(0, BLOCK_K)
    if A_ROWS_ARE_K:
        a_here = a + (at_m.to(tl.int64) * a_col)[:, None] + row_starts(at_k, a_inner, a_outer, a_row, A_FOLDED)[None, :]
        a_step = tl.cast(a_row, tl.int64) * BLOCK_K
        a_live = (at_m < m)[:, None]
    else:
        rows = row_starts(tl.minimum(at_m, m - 1), a_inner, a_outer, a_row, A_FOLDED)
        a_here = a + rows[:, None] + (at_k.to(tl.int64) * a_col)[None, :]
        a_step = tl.cast(a_col, tl.int64) * BLOCK_K
        a_live = tl.full([BLOCK_M, 1], True, tl.int1)
    if B_ROWS_ARE_K:
        b_here = b + row_starts(at_k, b_inner, b_outer, b_row, B_FOLDED)[:, None] + (at_n.to(tl.int64) * b_col)[None, :]
        b_step = tl.cast(b_row, tl.int64) * BLOCK_K
        b_live = (at_n < n)[None, :]
    else:
        rows = row_starts(tl.minimum(at_n, n - 1), b_inner, b_outer, b_row, B_FOLDED)
        b_here = b + (at_k.to(tl.int64) * b_col)[:, None] + rows[None, :]
        b_step = tl.cast(b_col, tl.int64) * BLOCK_K
        b_live = tl.full([1, BLOCK_N], True, tl.int1)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for block in range(first, last):
        if A_ROWS_ARE_K and A_FOLDED:
            rows = block * BLOCK_K + tl.arange(0, BLOCK_K)
            a_here = a + (at_m.to(tl.int64) * a_col)[:, None] + row_starts(rows, a_inner, a_outer, a_row, True)[None, :]
        if B_ROWS_ARE_K and B_FOLDED:
            rows = block * BLOCK_K + tl.arange(0, BLOCK_K)
            b_here = b + row_starts(rows, b_inner, b_outer, b_row, True)[:, None] + (at_n.to(tl.int64) * b_col)[None, :]
        if EVEN_K:
            if A_ROWS_ARE_K:
                a_tile = tl.load(a_here, mask=a_live, other=0.0)
            else:
                a_tile = tl.load(a_here)
            if B_ROWS_ARE_K:
                b_tile = tl.load(b_here, mask=b_live, other=0.0)
            else:
                b_tile = tl.load(b_here)
        else:
            inside = tl.arange(0, BLOCK_K) < k - block * BLOCK_K
            a_tile = tl.load(a_here, mask=a_live & inside[None, :], other=0.0)
            b_tile = tl.load(b_here, mask=b_live & inside[:, None], other=0.0)
        if UPCAST:
            a_tile = a_tile.to(tl.float32)
            b_tile = b_tile.to(tl.float32)
        total = tl.dot(a_tile, b_tile, total, input_precision="ieee")
        a_here += a_step
        b_here += b_step
    return total


@triton.jit
def store_tile(
    total, c, bias, first_m, first_n, m, n, c_row, c_col,
    HAS_BIAS: tl.constexpr, SWAPPED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Add the bias (along n; along m where the operands are swapped), round, and store what lies inside."""
    at_m = first_m + tl.arange(0, BLOCK_M)
    at_n = first_n + tl.arange(0, BLOCK_N)
    if HAS_BIAS:
        if SWAPPED:
            total += tl.load(bias + at_m, mask=at_m < m, other=0.0).to(tl.float32)[:, None]
        else:
            total += tl.load(bias + at_n, mask=at_n < n, other=0.0).to(tl.float32)[None, :]
    where = c + (at_m.to(tl.int64) * c_row)[:, None] + (at_n.to(tl.int64) * c_col)[None, :]
    tl.store(where, rounded(total, c.dtype.element_ty), mask=(at_m < m)[:, None] & (at_n < n)[None, :])


@triton.jit
def tiles(
    a, b, c, bias, m, n, k,
    a_inner, a_outer, a_row, a_col, b_inner, b_outer, b_row, b_col,
    c_row, c_col,
    A_ROWS_ARE_K: tl.constexpr, B_ROWS_ARE_K: tl.constexpr, A_FOLDED: tl.constexpr, B_FOLDED: tl.constexpr,
    EVEN_K: tl.constexpr, HAS_BIAS: tl.constexpr, SWAPPED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, XCDS: tl.constexpr,
    UPCAST: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One tile of C, whole, by each program."""
    await_predecessor(DEPENDENT)
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    tile_m, tile_n = tile_of(spread(tl.program_id(0), tiles_m * tiles_n, XCDS), tiles_m, tiles_n, GROUP)
    total = tile_product(
        a, b, tile_m, tile_n, m, n, k, 0, tl.cdiv(k, BLOCK_K),
        a_inner, a_outer, a_row, a_col, b_inner, b_outer, b_row, b_col,
        A_ROWS_ARE_K, B_ROWS_ARE_K, A_FOLDED, B_FOLDED, EVEN_K, BLOCK_M, BLOCK_N, BLOCK_K, UPCAST,
    )  # fmt: skip
    store_tile(
        total, c, bias, tile_m * BLOCK_M, tile_n * BLOCK_N, m, n, c_row, c_col, HAS_BIAS, SWAPPED, BLOCK_M, BLOCK_N
    )


@triton.jit
def shares(
    a, b, partial, m, n, k, share, length,
    a_inner, a_outer, a_row, a_col, b_inner, b_outer, b_row, b_col,
    A_ROWS_ARE_K: tl.constexpr, B_ROWS_ARE_K: tl.constexpr, A_FOLDED: tl.constexpr, B_FOLDED: tl.constexpr,
    EVEN_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    UPCAST: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """An equal share of all blocks of k of all tiles by each program: partial sums, which `sum_shares` adds up.

    The tiles' blocks of k lie behind one another on a line, of which program p has the blocks from ``p * share`` on. On
    it a tile takes ``length`` places, as many as it has blocks or more, so that all tiles can be cut alike. The part
    of tile t that program p computes goes to slot ``p + t``: along the line one of the two grows at each cut.
    """
    await_predecessor(DEPENDENT)
    program = tl.program_id(0)
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    blocks = tl.cdiv(k, BLOCK_K)
    start = program * share
    stop = tl.minimum(start + share, tiles_m * tiles_n * length)
    in_tile = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    for tile in range(start // length, tl.cdiv(stop, length)):
        tile_m, tile_n = tile_of(tile, tiles_m, tiles_n, GROUP)
        first = tl.maximum(start - tile * length, 0)
        last = tl.minimum(stop - tile * length, blocks)
        total = tile_product(
            a, b, tile_m, tile_n, m, n, k, first, last,
            a_inner, a_outer, a_row, a_col, b_inner, b_outer, b_row, b_col,
            A_ROWS_ARE_K, B_ROWS_ARE_K, A_FOLDED, B_FOLDED, EVEN_K, BLOCK_M, BLOCK_N, BLOCK_K, UPCAST,
        )  # fmt: skip
        tl.store(partial + (program + tile).to(tl.int64) * (BLOCK_M * BLOCK_N) + in_tile, total)


@triton.jit
def sum_columns(
    parts, c, bias, count, first_m, first_n, row, m, n, c_row, c_col,
    HAS_BIAS: tl.constexpr, SWAPPED: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Add up ROWS rows from ``row`` on of ``count`` parts, STEP values apart, of which a row has WIDTH; store them."""
    parts += (row + tl.arange(0, ROWS))[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    for part in range(0, count, 4):  # four loads are on their way at a time
        at = parts + tl.cast(part, tl.int64) * STEP
        left = count - part + tl.zeros([ROWS, 1], tl.int32)
        first = tl.load(at)
        second = tl.load(at + STEP, mask=left > 1, other=0.0)
        third = tl.load(at + 2 * STEP, mask=left > 2, other=0.0)
        fourth = tl.load(at + 3 * STEP, mask=left > 3, other=0.0)
        total = total + first + second + third + fourth
    store_tile(total, c, bias, first_m + row, first_n, m, n, c_row, c_col, HAS_BIAS, SWAPPED, ROWS, WIDTH)


@triton.jit
def sum_shares(
    partial, c, bias, m, n, first, length, share, c_row, c_col,
    HAS_BIAS: tl.constexpr, SWAPPED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    REST_N: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Add up the parts of ROWS rows of a tile in the order of k, add the bias, round; the first tile is ``first``.

    A tile is BLOCK_N columns wide and REST_N more, whose sums lie behind those of all its rows.
    """
    await_predecessor(DEPENDENT)
    tile = tl.program_id(0)
    tile_m, tile_n = tile_of(first + tile, tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N + REST_N), GROUP)
    row = tl.program_id(1) * ROWS
    begin = tile * length // share
    count = (tile * length + length - 1) // share + 1 - begin
    parts = partial + (begin + tile).to(tl.int64) * (BLOCK_M * (BLOCK_N + REST_N))
    at_m, at_n = tile_m * BLOCK_M, tile_n * (BLOCK_N + REST_N)
    if REST_N == 0:
        sum_columns(
            parts, c, bias, count, at_m, at_n, row, m, n, c_row, c_col,
            HAS_BIAS, SWAPPED, BLOCK_M * BLOCK_N, ROWS, BLOCK_N,
        )  # fmt: skip
    elif tl.program_id(2) == 0:
        sum_columns(
            parts, c, bias, count, at_m, at_n, row, m, n, c_row, c_col,
            HAS_BIAS, SWAPPED, BLOCK_M * (BLOCK_N + REST_N), ROWS, BLOCK_N,
        )  # fmt: skip
    else:
        sum_columns(
            parts + BLOCK_M * BLOCK_N, c, bias, count, at_m, at_n + BLOCK_N, row, m, n, c_row, c_col,
            HAS_BIAS, SWAPPED, BLOCK_M * (BLOCK_N + REST_N), ROWS, REST_N,
        )  # fmt: skip
