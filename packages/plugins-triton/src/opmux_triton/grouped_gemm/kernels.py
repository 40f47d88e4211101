"""Grouped products from pointers, for every arch and any strides, of real numbers or of codes with scales.

Each program finds its tiles itself: it reads how many rows each group has, all at once, and takes turns with the other
programs. So the grid depends on shapes and the device alone, and a captured launch serves any counts.
"""

import triton
import triton.language as tl

from opmux_triton import interpreter
from opmux_triton.dependent_launch import await_predecessor
from opmux_triton.gemm.kernels import tile_of
from opmux_triton.rounding import rounded
from opmux_triton.scaled_gemm.decoding import factors, typed

INTERPRETED = tl.constexpr(interpreter.INTERPRETED)


@triton.jit
def read_groups(
    offsets, sizes, groups, max_m, MASKED: tl.constexpr, PADDED: tl.constexpr, GROUPS: tl.constexpr
):  # fmt: skip
    """(first, count): the first row of each group and how many it has; none for those past ``groups``.

    With MASKED, ``offsets`` are the counts of groups that each have room for ``max_m`` rows, numbered from 0 on. GROUPS
    is a power of two.
    """
    index = tl.arange(0, GROUPS)
    live = index < groups
    first = tl.load(offsets + index, mask=live, other=0)
    if MASKED:
        count = tl.minimum(first, max_m)
        first = tl.zeros_like(first)
    elif PADDED:
        count = tl.load(sizes + index, mask=live, other=0)
    else:
        count = tl.load(offsets + index + 1, mask=live, other=0) - first
    return first, tl.maximum(count, 0)


@triton.jit
def of_group(values, group, GROUPS: tl.constexpr):
    """The value of one group."""
    return tl.sum(tl.where(tl.arange(0, GROUPS) == group, values, 0), 0)


@triton.jit
def products(
    a, b, out, a_scale, b_scale, offsets, sizes, groups, n, k, max_m,
    a_group, a_row, a_col, b_group, b_row, b_col, out_group, out_row, out_col,
    a_scale_group, a_scale_row, a_scale_col, b_scale_group, b_scale_row, b_scale_col,
    MASKED: tl.constexpr, PADDED: tl.constexpr, FORMAT: tl.constexpr, SCALED: tl.constexpr, WEIGHT_ROWS: tl.constexpr,
    DESCRIPTORS: tl.constexpr, ALONG_N: tl.constexpr, EVEN_K: tl.constexpr, GROUPS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, DEPENDENT: tl.constexpr,
    FP8: tl.constexpr,
):  # fmt: skip
    """``out[rows of g] = a[rows of g] @ b[g].T``, b being ``(groups, n, k)``, for every group.

    Rows past the end of a group read its last one, columns past n the last one: what they give is not stored. With
    ALONG_N, neighbours in b are neighbours in n, and columns past n are masked, so that loads stay wide. Past k both
    operands are 0. SCALED is ``once`` where rows and columns have one scale, ``blocks`` where they have one for
    every 128 of k, and empty without scales; WEIGHT_ROWS rows of a weight share a scale. FORMAT is that of the codes,
    of which a and b are the bytes; empty for real numbers. With DESCRIPTORS, a and b are descriptors of all rows one
    below the other, of what the arch multiplies, and groups of a are ``a_group`` rows apart. With ALONG_N too, the rows
    of b are those of k, of which a group has whole blocks: behind them lie the next group's.
    """
    await_predecessor(DEPENDENT)
    if FORMAT != "" and not DESCRIPTORS:
        a = typed(a, FORMAT, FP8)
        b = typed(b, FORMAT, FP8)
    first, count = read_groups(offsets, sizes, groups, max_m, MASKED, PADDED, GROUPS)
    tiles = (count + BLOCK_M - 1) // BLOCK_M
    ends = tl.cumsum(tiles, 0)
    tiles_n = tl.cdiv(n, BLOCK_N)
    for tile in range(tl.program_id(0), tl.sum(tiles, 0) * tiles_n, tl.num_programs(0)):
        group = tl.sum((ends * tiles_n <= tile).to(tl.int32), 0)
        rows = of_group(count, group, GROUPS)
        tiles_m = of_group(tiles, group, GROUPS)
        before = (of_group(ends, group, GROUPS) - tiles_m) * tiles_n
        tile_m, tile_n = tile_of(tile - before, tiles_m, tiles_n, GROUP)
        start = of_group(first, group, GROUPS).to(tl.int64)
        wide_group = group.to(tl.int64)

        in_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
        in_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        at_m = start + tl.minimum(in_m, rows - 1)
        at_n = tl.minimum(in_n, n - 1)
        at_k = tl.arange(0, BLOCK_K).to(tl.int64)
        if DESCRIPTORS:
            from_m = (start + wide_group * a_group).to(tl.int32) + tile_m * BLOCK_M
            if ALONG_N:
                from_n = group * k
            else:
                from_n = group * n + tile_n * BLOCK_N
        else:
            a_here = a + wide_group * a_group + (at_m * a_row)[:, None] + (at_k * a_col)[None, :]
            of_n = in_n if ALONG_N else at_n
            b_here = b + wide_group * b_group + (at_k * b_col)[:, None] + (of_n.to(tl.int64) * b_row)[None, :]
        if SCALED != "":
            a_scales = a_scale + wide_group * a_scale_group + at_m * a_scale_row
            b_scales = b_scale + wide_group * b_scale_group + (at_n // WEIGHT_ROWS).to(tl.int64) * b_scale_row
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for block in range(tl.cdiv(k, BLOCK_K)):
            if DESCRIPTORS:
                a_tile = a.load([from_m, block * BLOCK_K])
                if ALONG_N:
                    b_tile = b.load([from_n + block * BLOCK_K, tile_n * BLOCK_N])
                else:
                    b_tile = b.load([from_n, block * BLOCK_K]).T
            else:
                inside = tl.arange(0, BLOCK_K) < k - block * BLOCK_K
                if EVEN_K:
                    a_tile = tl.load(a_here)
                else:
                    a_tile = tl.load(a_here, mask=inside[None, :], other=0.0)
                if ALONG_N and EVEN_K:
                    b_tile = tl.load(b_here, mask=(in_n < n)[None, :], other=0.0)
                elif ALONG_N:
                    b_tile = tl.load(b_here, mask=inside[:, None] & (in_n < n)[None, :], other=0.0)
                elif EVEN_K:
                    b_tile = tl.load(b_here)
                else:
                    b_tile = tl.load(b_here, mask=inside[:, None], other=0.0)
            if FORMAT != "":
                a_tile = factors(a_tile, FORMAT, FP8)
                b_tile = factors(b_tile, FORMAT, FP8)
            if INTERPRETED:  # it multiplies 16-bit and 8-bit operands wrongly
                a_tile = a_tile.to(tl.float32)
                b_tile = b_tile.to(tl.float32)
            if FORMAT == "":
                total = tl.dot(a_tile, b_tile, total, input_precision="ieee")
            else:
                if FORMAT == "int8" and not INTERPRETED:
                    part = tl.dot(a_tile, b_tile, out_dtype=tl.int32).to(tl.float32)
                else:
                    part = tl.dot(a_tile, b_tile, input_precision="ieee")
                if SCALED == "blocks":
                    of_k = block * BLOCK_K // 128
                    part = part * tl.load(a_scales + of_k * a_scale_col)[:, None]
                    part = part * tl.load(b_scales + of_k * b_scale_col)[None, :]
                total += part
            if not DESCRIPTORS:
                a_here += tl.cast(a_col, tl.int64) * BLOCK_K
                b_here += tl.cast(b_col, tl.int64) * BLOCK_K
        if SCALED == "once":
            total = total * tl.load(a_scales)[:, None] * tl.load(b_scales)[None, :]
        where = out + wide_group * out_group
        where += ((start + in_m) * out_row)[:, None] + (in_n.to(tl.int64) * out_col)[None, :]
        tl.store(where, rounded(total, out.dtype.element_ty), mask=(in_m < rows)[:, None] & (in_n < n)[None, :])


@triton.jit
def _sums_at(out, group, in_m, in_n, n, k, out_group, out_row, out_col):
    """Where a tile of a weight's gradient lies, and which of it is inside."""
    where = out + group.to(tl.int64) * out_group
    where += (in_m.to(tl.int64) * out_row)[:, None] + (in_n.to(tl.int64) * out_col)[None, :]
    return where, (in_m < n)[:, None] & (in_n < k)[None, :]


@triton.jit
def weight_sums(
    dy, x, dy_rows, x_rows, out, offsets, sizes, n, k, dy_row, dy_col, x_row, x_col, out_group, out_row, out_col,
    PADDED: tl.constexpr, ACCUMULATE: tl.constexpr, EARLY: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """``out[g] = dy[rows of g].T @ x[rows of g]``, a tile of BLOCK_M of n by BLOCK_N of k in each program.

    With ACCUMULATE it is added to ``out``, which is then not touched for a group without rows. EARLY loads what is
    there first, so that it comes together with the operands; it takes as many registers as the sums. Where there are
    descriptors ``dy_rows`` and ``x_rows``, whole blocks of rows come by these; the last one, behind whose rows the next
    group's lie, by pointers.
    """
    await_predecessor(DEPENDENT)
    tiles_m, tiles_n = tl.cdiv(n, BLOCK_M), tl.cdiv(k, BLOCK_N)
    group = tl.program_id(0) // (tiles_m * tiles_n)
    tile_m, tile_n = tile_of(tl.program_id(0) % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP)
    start = tl.load(offsets + group)
    if PADDED:
        rows = tl.load(sizes + group)
    else:
        rows = tl.load(offsets + group + 1) - start
    in_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    in_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    at_row = start.to(tl.int64) + tl.arange(0, BLOCK_K)
    whole = 0
    if dy_rows is not None:
        whole = rows // BLOCK_K
        at_row += whole.to(tl.int64) * BLOCK_K
    dy_here = dy + (at_row * dy_row)[None, :] + (in_m.to(tl.int64) * dy_col)[:, None]
    x_here = x + (at_row * x_row)[:, None] + (in_n.to(tl.int64) * x_col)[None, :]
    stored = n
    if ACCUMULATE:
        stored = tl.where(rows > 0, n, 0)
    if ACCUMULATE and EARLY:
        where, live = _sums_at(out, group, in_m, in_n, stored, k, out_group, out_row, out_col)
        before = tl.load(where, mask=live, other=0.0)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    if dy_rows is not None:
        for block in range(whole):
            dy_tile = dy_rows.load([start + block * BLOCK_K, tile_m * BLOCK_M]).T
            x_tile = x_rows.load([start + block * BLOCK_K, tile_n * BLOCK_N])
            if INTERPRETED:
                dy_tile = dy_tile.to(tl.float32)
                x_tile = x_tile.to(tl.float32)
            total = tl.dot(dy_tile, x_tile, total, input_precision="ieee")
    # Of the last block alone a pipeline hides nothing, and would take shared memory.
    for block in tl.range(whole, tl.cdiv(rows, BLOCK_K), num_stages=None if dy_rows is None else 1):
        inside = tl.arange(0, BLOCK_K) < rows - block * BLOCK_K
        dy_tile = tl.load(dy_here, mask=(in_m < n)[:, None] & inside[None, :], other=0.0)
        x_tile = tl.load(x_here, mask=inside[:, None] & (in_n < k)[None, :], other=0.0)
        if INTERPRETED:
            dy_tile = dy_tile.to(tl.float32)
            x_tile = x_tile.to(tl.float32)
        total = tl.dot(dy_tile, x_tile, total, input_precision="ieee")
        dy_here += tl.cast(dy_row, tl.int64) * BLOCK_K
        x_here += tl.cast(x_row, tl.int64) * BLOCK_K
    where, live = _sums_at(out, group, in_m, in_n, stored, k, out_group, out_row, out_col)
    if ACCUMULATE and EARLY:
        total += before
    elif ACCUMULATE:
        total += tl.load(where, mask=live, other=0.0)
    tl.store(where, rounded(total, out.dtype.element_ty), mask=live)


@triton.jit
def scaled_weight_sums(
    dy, x, out, dy_scale, x_scale, offsets, sizes, n, k, dy_row, dy_col, x_row, x_col, out_group, out_row, out_col,
    dy_scale_row, dy_scale_col, x_scale_row, x_scale_col,
    PADDED: tl.constexpr, FORMAT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr, DEPENDENT: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """``out[g] += dy[rows of g].T @ x[rows of g]`` of codes, whose columns have a scale for every 128 rows.

    Blocks of BLOCK_K rows, which divides 128, are counted from row 0, so that each has one scale: rows of the first and
    the last block that are not the group's count as 0. FORMAT is that of the codes, of which dy and x are the bytes.
    """
    await_predecessor(DEPENDENT)
    dy = typed(dy, FORMAT, FP8)
    x = typed(x, FORMAT, FP8)
    tiles_m, tiles_n = tl.cdiv(n, BLOCK_M), tl.cdiv(k, BLOCK_N)
    group = tl.program_id(0) // (tiles_m * tiles_n)
    tile_m, tile_n = tile_of(tl.program_id(0) % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP)
    start = tl.load(offsets + group)
    if PADDED:
        stop = start + tl.load(sizes + group)
    else:
        stop = tl.load(offsets + group + 1)
    in_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    in_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    of_dy = dy_scale + tl.minimum(in_m, n - 1).to(tl.int64) * dy_scale_col
    of_x = x_scale + tl.minimum(in_n, k - 1).to(tl.int64) * x_scale_col
    first = start // BLOCK_K
    row = first * BLOCK_K + tl.arange(0, BLOCK_K)
    at_row = row.to(tl.int64)
    dy_here = dy + (at_row * dy_row)[None, :] + (in_m.to(tl.int64) * dy_col)[:, None]
    x_here = x + (at_row * x_row)[:, None] + (in_n.to(tl.int64) * x_col)[None, :]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for block in range(first, tl.where(stop > start, tl.cdiv(stop, BLOCK_K), first)):
        row = block * BLOCK_K + tl.arange(0, BLOCK_K)
        inside = (row >= start) & (row < stop)
        dy_tile = factors(tl.load(dy_here, mask=(in_m < n)[:, None] & inside[None, :], other=0.0), FORMAT, FP8)
        x_tile = factors(tl.load(x_here, mask=inside[:, None] & (in_n < k)[None, :], other=0.0), FORMAT, FP8)
        if INTERPRETED:
            dy_tile = dy_tile.to(tl.float32)
            x_tile = x_tile.to(tl.float32)
        if FORMAT == "int8" and not INTERPRETED:
            part = tl.dot(dy_tile, x_tile, out_dtype=tl.int32).to(tl.float32)
        else:
            part = tl.dot(dy_tile, x_tile, input_precision="ieee")
        scales = block * BLOCK_K // 128
        part = part * tl.load(of_dy + tl.cast(dy_scale_row, tl.int64) * scales)[:, None]
        total += part * tl.load(of_x + tl.cast(x_scale_row, tl.int64) * scales)[None, :]
        dy_here += tl.cast(dy_row, tl.int64) * BLOCK_K
        x_here += tl.cast(x_row, tl.int64) * BLOCK_K
    stored = tl.where(stop > start, n, 0)
    where, live = _sums_at(out, group, in_m, in_n, stored, k, out_group, out_row, out_col)
    total += tl.load(where, mask=live, other=0.0)
    tl.store(where, total, mask=live)


@triton.jit
def zero_unused(
    out, offsets, sizes, groups, m, width,
    PADDED: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Write 0 into the rows of ``out``, contiguous rows of ``width``, that belong to no group."""
    await_predecessor(DEPENDENT)
    first, count = read_groups(offsets, sizes, groups, 0, False, PADDED, GROUPS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = (row[:, None] >= first[None, :]) & (row[:, None] < (first + count)[None, :])
    unused = (tl.sum(inside.to(tl.int32), 1) == 0) & (row < m)
    column = tl.arange(0, BLOCK)
    if tl.sum(unused.to(tl.int32), 0) > 0:
        for begin in range(0, width, BLOCK):
            where = out + (row.to(tl.int64) * width)[:, None] + (begin + column)[None, :]
            zeros = tl.zeros([ROWS, BLOCK], tl.float32).to(out.dtype.element_ty)
            tl.store(where, zeros, mask=unused[:, None] & (begin + column < width)[None, :])
