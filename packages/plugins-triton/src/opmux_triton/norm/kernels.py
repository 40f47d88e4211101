"""Kernels of the norms: a program holds ROWS rows, whole where they fit into BLOCK columns, else in several passes."""

import triton
import triton.language as tl

from opmux_triton.addressing import load_tile, row_starts, store_tile
from opmux_triton.dependent_launch import await_predecessor
from opmux_triton.rounding import rounded


@triton.jit
def normalised(values, inside, eps, HIDDEN: tl.constexpr, WHOLE: tl.constexpr, CENTRED: tl.constexpr):
    """Whole rows, 0 outside, divided by their root mean square; with CENTRED, after subtracting their mean."""
    if CENTRED:
        values = values - tl.sum(values, 1, keep_dims=True) / HIDDEN
        if not WHOLE:
            values = tl.where(inside, values, 0.0)
    return values * tl.rsqrt(tl.sum(values * values, 1, keep_dims=True) / HIDDEN + eps)


@triton.jit
def gain_and_shift(
    weight, bias, columns, offset, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, EVICT: tl.constexpr
):  # fmt: skip
    """``weight + offset`` and the bias (0 for None) of the columns given."""
    WHOLE: tl.constexpr = HIDDEN % BLOCK == 0
    gain = load_tile(weight + columns, columns < HIDDEN, WHOLE, EVICT).to(tl.float32) + offset
    shift = 0.0
    if bias is not None:
        shift = load_tile(bias + columns, columns < HIDDEN, WHOLE, EVICT).to(tl.float32)
    return gain, shift


@triton.jit
def statistics(
    x_rows, live, eps, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, CENTRED: tl.constexpr,
    EVICT: tl.constexpr,
):  # fmt: skip
    """The mean (0 where not CENTRED) and the reciprocal of the root mean square of rows that are longer than BLOCK.

    With CENTRED, each column of a block has a running mean, and a sum of squares about it (Welford, Technometrics 4:3,
    1962), which are joined at the end: the row is read once, and nothing cancels where its mean is large.
    """
    WHOLE: tl.constexpr = ROWS == 1 and HIDDEN % BLOCK == 0
    means = tl.zeros([ROWS, BLOCK], tl.float32)
    square = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(0, HIDDEN, BLOCK):
        at = start + tl.arange(0, BLOCK)[None, :]
        inside = live & (at < HIDDEN)
        values = load_tile(x_rows + at, inside, WHOLE, EVICT).to(tl.float32)
        if CENTRED:
            apart = values - means
            if not WHOLE:
                apart = tl.where(inside, apart, 0.0)
            means += apart * (1.0 / (start // BLOCK + 1))
            square += apart * (values - means)
        else:
            square += values * values
    mean = tl.zeros([ROWS, 1], tl.float32)
    if CENTRED:
        count = (HIDDEN + BLOCK - 1 - tl.arange(0, BLOCK)) // BLOCK
        mean = tl.sum(means * count, 1, keep_dims=True) / HIDDEN
        square += (means - mean) * (means - mean) * count
    return mean, tl.rsqrt(tl.sum(square, 1, keep_dims=True) / HIDDEN + eps)


@triton.jit
def write_in_passes(
    x_rows, y_rows, weight, bias, live, eps, offset,
    HIDDEN: tl.constexpr, CENTRED: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Norm rows that are longer than BLOCK: what is read first stays in the caches until it is read again."""
    WHOLE: tl.constexpr = ROWS == 1 and HIDDEN % BLOCK == 0
    mean, inverse = statistics(x_rows, live, eps, HIDDEN, BLOCK, ROWS, CENTRED, "evict_last")
    for start in range(0, HIDDEN, BLOCK):
        at = start + tl.arange(0, BLOCK)[None, :]
        inside = live & (at < HIDDEN)
        values = load_tile(x_rows + at, inside, WHOLE, "evict_first").to(tl.float32)
        if CENTRED:
            values -= mean
        gain, shift = gain_and_shift(weight, bias, at, offset, HIDDEN, BLOCK, "evict_last")
        values = values * inverse * gain
        if bias is not None:
            values += shift
        store_tile(y_rows + at, rounded(values, y_rows.dtype.element_ty), inside, WHOLE)


@triton.jit(do_not_specialize=["rows"])
def norm(
    x, weight, y, rows, eps, offset, bias, inner, stride, outer,
    HIDDEN: tl.constexpr, CENTRED: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """``y = normalised(x) * (weight + offset) + bias``; y is contiguous."""
    await_predecessor(DEPENDENT)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    live = row < rows
    x_rows = x + row_starts(row, inner, stride, outer, HIDDEN)
    y_rows = y + row * HIDDEN
    if BLOCK >= HIDDEN:
        columns = tl.arange(0, BLOCK)[None, :]
        WHOLE: tl.constexpr = ROWS == 1 and BLOCK == HIDDEN
        inside = live & (columns < HIDDEN)
        values = load_tile(x_rows + columns, inside, WHOLE, "").to(tl.float32)
        # Loaded before the sum over the row: after its barriers nothing would hide the latency.
        gain, shift = gain_and_shift(weight, bias, columns, offset, HIDDEN, BLOCK, "")
        values = normalised(values, inside, eps, HIDDEN, WHOLE, CENTRED) * gain
        if bias is not None:
            values += shift
        store_tile(y_rows + columns, rounded(values, y.dtype.element_ty), inside, WHOLE)
    else:
        write_in_passes(x_rows, y_rows, weight, bias, live, eps, offset, HIDDEN, CENTRED, BLOCK, ROWS)


@triton.jit(do_not_specialize=["rows"])
def add_norm(
    x, residual, weight, y, total, rows, eps, offset, bias, inner, x_stride, residual_stride, x_outer, residual_outer,
    HIDDEN: tl.constexpr, CENTRED: tl.constexpr, IN_PLACE: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """``total = x + residual``, rounded; ``y = normalised(total) * (weight + offset) + bias``.

    y and total are contiguous; IN_PLACE they are x and residual.
    """
    await_predecessor(DEPENDENT)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    live = row < rows
    x_rows = x + row_starts(row, inner, x_stride, x_outer, HIDDEN)
    residual_rows = residual + row_starts(row, inner, residual_stride, residual_outer, HIDDEN)
    if IN_PLACE:
        y_rows = x_rows
        total_rows = residual_rows
    else:
        y_rows = y + row * HIDDEN
        total_rows = total + row * HIDDEN
    if BLOCK >= HIDDEN:
        columns = tl.arange(0, BLOCK)[None, :]
        WHOLE: tl.constexpr = ROWS == 1 and BLOCK == HIDDEN
        inside = live & (columns < HIDDEN)
        values = load_tile(x_rows + columns, inside, WHOLE, "").to(tl.float32)
        values += load_tile(residual_rows + columns, inside, WHOLE, "").to(tl.float32)
        gain, shift = gain_and_shift(weight, bias, columns, offset, HIDDEN, BLOCK, "")
        kept = rounded(values, total.dtype.element_ty)
        store_tile(total_rows + columns, kept, inside, WHOLE)
        values = normalised(kept.to(tl.float32), inside, eps, HIDDEN, WHOLE, CENTRED) * gain
        if bias is not None:
            values += shift
        store_tile(y_rows + columns, rounded(values, y.dtype.element_ty), inside, WHOLE)
    else:
        for start in range(0, HIDDEN, BLOCK):
            at = start + tl.arange(0, BLOCK)[None, :]
            inside = live & (at < HIDDEN)
            values = tl.load(x_rows + at, mask=inside, other=0.0).to(tl.float32)
            values += tl.load(residual_rows + at, mask=inside, other=0.0).to(tl.float32)
            tl.store(total_rows + at, rounded(values, total.dtype.element_ty), mask=inside)
        tl.debug_barrier()  # what one thread wrote above another may read below
        write_in_passes(total_rows, y_rows, weight, bias, live, eps, offset, HIDDEN, CENTRED, BLOCK, ROWS)
