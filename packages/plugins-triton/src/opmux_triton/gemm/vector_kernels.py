"""Kernels that use what they read once: a matrix by a few vectors, sums of columns, rows packed behind one another."""

import triton
import triton.language as tl

from opmux_triton.dependent_launch import await_predecessor
from opmux_triton.gemm.kernels import row_starts
from opmux_triton.rounding import rounded


@triton.jit
def vector_product(
    w, x, out, bias, n, k, w_row, w_col, x_col,
    HAS_BIAS: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """``out[j] = bias[j] + sum over i of x[i] * w[j, i]`` for ROWS rows of w; read once, products in float32."""
    await_predecessor(DEPENDENT)
    at_n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at_k = tl.arange(0, BLOCK_K)
    here = w + (tl.minimum(at_n, n - 1).to(tl.int64) * w_row)[:, None] + (at_k.to(tl.int64) * w_col)[None, :]
    x_here = x + at_k.to(tl.int64) * x_col
    total = tl.zeros([ROWS, BLOCK_K], tl.float32)
    for start in range(0, k, BLOCK_K):
        if EVEN:
            values = tl.load(here, eviction_policy="evict_first")
            factors = tl.load(x_here)
        else:
            inside = at_k < k - start
            values = tl.load(here, mask=inside[None, :], other=0.0, eviction_policy="evict_first")
            factors = tl.load(x_here, mask=inside, other=0.0)
        total += values.to(tl.float32) * factors.to(tl.float32)[None, :]
        here += tl.cast(w_col, tl.int64) * BLOCK_K
        x_here += tl.cast(x_col, tl.int64) * BLOCK_K
    result = tl.sum(total, 1)
    if HAS_BIAS:
        result += tl.load(bias + at_n, mask=at_n < n, other=0.0).to(tl.float32)
    tl.store(out + at_n, rounded(result, out.dtype.element_ty), mask=at_n < n)


@triton.jit
def vector_products(
    w, x, out, bias, n, k, w_row, x_row,
    HAS_BIAS: tl.constexpr, EVEN: tl.constexpr, VECTORS: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCKS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """``out[v, j] = bias[j] + sum over i of x[v, i] * w[j, i]`` for ROWS rows of w by VECTORS rows of x, columns unit.

    BLOCKS blocks of each row of w are under way at a time. Every tensor has one dim, so that all have one layout: in
    two, a row of x would go through shared memory before it meets the rows of w.
    """
    await_predecessor(DEPENDENT)
    first = tl.program_id(0) * ROWS
    at_k = tl.arange(0, BLOCK_K)
    starts = ()
    for row in tl.static_range(ROWS):
        starts += (w + tl.minimum(first + row, n - 1).to(tl.int64) * w_row + at_k,)
    totals = ()
    for _ in tl.static_range(VECTORS * ROWS):
        totals += (tl.zeros([BLOCK_K], tl.float32),)
    for start in range(0, k, BLOCKS * BLOCK_K):
        values = ()
        for block in tl.static_range(BLOCKS):
            at = start + block * BLOCK_K
            for row in tl.static_range(ROWS):
                if EVEN:
                    value = tl.load(starts[row] + at, eviction_policy="evict_first")
                else:
                    inside = at + at_k < k
                    value = tl.load(starts[row] + at, mask=inside, other=0.0, eviction_policy="evict_first")
                values += (value,)
        for block in tl.static_range(BLOCKS):
            at = start + block * BLOCK_K + at_k
            sums = ()
            for vector in tl.static_range(VECTORS):
                here = x + tl.cast(x_row, tl.int64) * vector + at
                if EVEN:
                    factors = tl.load(here).to(tl.float32)
                else:
                    factors = tl.load(here, mask=at < k, other=0.0).to(tl.float32)
                for row in tl.static_range(ROWS):
                    products = values[block * ROWS + row].to(tl.float32) * factors
                    sums += (totals[vector * ROWS + row] + products,)
            totals = sums
    for row in tl.static_range(ROWS):
        if first + row < n:
            for vector in tl.static_range(VECTORS):
                result = tl.sum(totals[vector * ROWS + row], 0)
                if HAS_BIAS:
                    result += tl.load(bias + first + row).to(tl.float32)
                to = out + tl.cast(n, tl.int64) * vector + first + row
                tl.store(to, rounded(result, out.dtype.element_ty))


@triton.jit
def column_sums(
    x, out, rows, columns, rows_each, inner, outer, row, col,
    FOLDED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``out[part, c]`` is the sum of column c over the rows of part ``part``, rows_each of them."""
    part = tl.program_id(1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first = part * rows_each
    stop = tl.minimum(first + rows_each, rows)
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(first, stop, ROWS):
        here = start + tl.arange(0, ROWS)
        where = x + row_starts(here, inner, outer, row, FOLDED)[:, None] + (at.to(tl.int64) * col)[None, :]
        total += tl.load(where, mask=(here < stop)[:, None] & (at < columns)[None, :], other=0.0).to(tl.float32)
    result = rounded(tl.sum(total, 0), out.dtype.element_ty)
    tl.store(out + part.to(tl.int64) * columns + at, result, mask=at < columns)


@triton.jit
def pack_rows(
    x, out, rows, columns, inner, outer, row, col,
    FOLDED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write rows behind one another, for leading dims of more strides than the products take."""
    here = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = (here < rows)[:, None] & (at < columns)[None, :]
    where = x + row_starts(here, inner, outer, row, FOLDED)[:, None] + (at.to(tl.int64) * col)[None, :]
    values = tl.load(where, mask=live, other=0.0)
    tl.store(out + here.to(tl.int64)[:, None] * columns + at[None, :], values, mask=live)
