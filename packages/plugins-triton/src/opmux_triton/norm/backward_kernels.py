"""Kernels of the norms' gradients.

A program of `norm_backward` processes every ``num_programs``-th tile of rows and keeps its part of the weight's
gradient in float32; `sum_partials` adds the parts up in a fixed order.
"""

import triton
import triton.language as tl

from opmux_triton.addressing import load_tile, row_starts, store_tile
from opmux_triton.norm.kernels import statistics
from opmux_triton.rounding import INTERPRETED, rounded


@triton.jit
def _add_two(a, b, c, d):
    return a + c, b + d


@triton.jit
def _add_three(a, b, c, d, e, f):
    return a + d, b + e, c + f


@triton.jit
def _two_sums(a, b):
    """Two sums of each row in one reduction, with half the barriers of two; the interpreter is slow at these."""
    if INTERPRETED:
        return tl.sum(a, 1, keep_dims=True), tl.sum(b, 1, keep_dims=True)
    else:
        return tl.reduce((a, b), 1, _add_two, keep_dims=True)


@triton.jit
def _three_sums(a, b, c):
    """Three sums of each row, as in `_two_sums`."""
    if INTERPRETED:
        return tl.sum(a, 1, keep_dims=True), tl.sum(b, 1, keep_dims=True), tl.sum(c, 1, keep_dims=True)
    else:
        return tl.reduce((a, b, c), 1, _add_three, keep_dims=True)


@triton.jit
def _of_columns(x_rows, grad_rows, columns, live, HIDDEN: tl.constexpr, WHOLE: tl.constexpr, EVICT: tl.constexpr):
    """x and the gradient."""
    inside = live & (columns < HIDDEN)
    values = load_tile(x_rows + columns, inside, WHOLE, EVICT).to(tl.float32)
    grad = load_tile(grad_rows + columns, inside, WHOLE, EVICT).to(tl.float32)
    return values, grad


@triton.jit
def _centre(values, columns, live, mean_x, HIDDEN: tl.constexpr, WHOLE: tl.constexpr, CENTRED: tl.constexpr):
    """Values less their mean, 0 outside of the row."""
    if CENTRED:
        values -= mean_x
        if not WHOLE:
            values = tl.where(live & (columns < HIDDEN), values, 0.0)
    return values


@triton.jit
def _folded(wide, narrow):
    """The columns of both tiles, added up to the width of the narrow one: sums within a thread, one reduction less."""
    ROWS: tl.constexpr = narrow.shape[0]
    WIDTH: tl.constexpr = narrow.shape[1]
    return tl.sum(tl.reshape(wide, [ROWS, wide.shape[1] // WIDTH, WIDTH]), 1) + narrow


@triton.jit
def _write(
    values, grad, gain, inverse, slope, shift, grad_total, grad_x, grad_residual, total_rows, to_x, columns, live,
    HIDDEN: tl.constexpr, WHOLE: tl.constexpr, CENTRED: tl.constexpr,
):  # fmt: skip
    """``inverse * (g - shift - values * slope) + grad_total``, into each of the results that is not None."""
    inside = live & (columns < HIDDEN)
    g = grad * gain - values * slope
    if CENTRED:
        g -= shift
    g *= inverse
    if grad_total is not None:
        g += load_tile(total_rows + columns, inside, WHOLE, "").to(tl.float32)
    if grad_x is not None:
        store_tile(grad_x + to_x + columns, rounded(g, grad_x.dtype.element_ty), inside, WHOLE)
    if grad_residual is not None:
        store_tile(grad_residual + to_x + columns, rounded(g, grad_residual.dtype.element_ty), inside, WHOLE)


@triton.jit
def _write_share(partial_row, share, columns, HIDDEN: tl.constexpr, WHOLE: tl.constexpr):
    store_tile(partial_row + columns, tl.sum(share, 0, keep_dims=True), columns < HIDDEN, WHOLE)


@triton.jit(do_not_specialize=["rows"])
def norm_backward(
    grad_y, x, weight, rows, eps, offset, grad_x, partial, kinds_apart,
    grad_total, grad_residual, inner, grad_y_stride, x_stride, total_stride, grad_y_outer, x_outer, total_outer,
    HIDDEN: tl.constexpr, CENTRED: tl.constexpr, OF_WEIGHT: tl.constexpr, OF_BIAS: tl.constexpr,
    BLOCK: tl.constexpr, TAIL: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr, AGAIN: tl.constexpr,
):  # fmt: skip
    """The gradient of the normed rows, and the program's row of partial sums.

    With n the normalised rows, r the reciprocal of their root mean square and ``g = grad_y * (weight + offset)``:
    ``grad = r * (g - [mean(g)] - n * mean(g * n)) [+ grad_total]``; ``partial[0] += grad_y * n`` (OF_WEIGHT) and
    ``partial[-1] += grad_y`` (OF_BIAS), which lie ``kinds_apart`` elements from one another.

    Rows are held whole where they fit into BLOCK + TAIL columns: tiles are powers of two wide, and a row of 5120 in two
    of 4096 and 1024 leaves no lane empty. Where a row takes too many registers, what the sums have read is not held but
    read AGAIN, from the cache: ``"weight"`` alone, or ``"all"`` (without a tail).
    """
    FIRST: tl.constexpr = "evict_last" if AGAIN == "all" else ""
    OF_ROWS: tl.constexpr = (grad_x is not None) or (grad_residual is not None)
    program = tl.program_id(0).to(tl.int64)
    partial_row = partial
    if OF_WEIGHT or OF_BIAS:
        partial_row = partial + program * HIDDEN
    if BLOCK + TAIL >= HIDDEN:
        columns = tl.arange(0, BLOCK)[None, :]
        FULL: tl.constexpr = BLOCK <= HIDDEN
        WHOLE: tl.constexpr = ROWS == 1 and FULL
        TAIL_FULL: tl.constexpr = BLOCK + TAIL == HIDDEN
        TAIL_WHOLE: tl.constexpr = ROWS == 1 and TAIL_FULL
        gain = tl.zeros([1, BLOCK], tl.float32)
        if OF_ROWS and AGAIN == "":
            gain = load_tile(weight + columns, columns < HIDDEN, FULL, "").to(tl.float32) + offset
        of_weight = tl.zeros([ROWS, BLOCK], tl.float32)
        of_bias = tl.zeros([ROWS, BLOCK], tl.float32)
        if TAIL > 0:
            behind = BLOCK + tl.arange(0, TAIL)[None, :]
            tail_gain = tl.zeros([1, TAIL], tl.float32)
            if OF_ROWS and AGAIN == "":
                tail_gain = load_tile(weight + behind, behind < HIDDEN, TAIL_FULL, "").to(tl.float32) + offset
            tail_of_weight = tl.zeros([ROWS, TAIL], tl.float32)
            tail_of_bias = tl.zeros([ROWS, TAIL], tl.float32)
        for first in tl.range(program * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
            row = first + tl.arange(0, ROWS)[:, None].to(tl.int64)
            live = row < rows
            x_rows = x + row_starts(row, inner, x_stride, x_outer, HIDDEN)
            grad_rows = grad_y + row_starts(row, inner, grad_y_stride, grad_y_outer, HIDDEN)
            values, grad = _of_columns(x_rows, grad_rows, columns, live, HIDDEN, WHOLE, FIRST)
            if TAIL > 0:
                tail, tail_grad = _of_columns(x_rows, grad_rows, behind, live, HIDDEN, TAIL_WHOLE, FIRST)
            mean_x = 0.0
            if CENTRED:
                held = values
                if TAIL > 0:
                    held = _folded(values, tail)
                mean_x = tl.sum(held, 1, keep_dims=True) / HIDDEN
            values = _centre(values, columns, live, mean_x, HIDDEN, WHOLE, CENTRED)
            if AGAIN != "" and OF_ROWS:
                gain = load_tile(weight + columns, columns < HIDDEN, FULL, "").to(tl.float32) + offset
            squares = values * values
            totals = grad * gain
            alongs = totals * values
            if TAIL > 0:
                tail = _centre(tail, behind, live, mean_x, HIDDEN, TAIL_WHOLE, CENTRED)
                if AGAIN != "" and OF_ROWS:
                    tail_gain = load_tile(weight + behind, behind < HIDDEN, TAIL_FULL, "").to(tl.float32) + offset
                squares = _folded(squares, tail * tail)
                alongs = _folded(alongs, tail_grad * tail_gain * tail)
                totals = _folded(totals, tail_grad * tail_gain)
            if CENTRED:
                square, along, total = _three_sums(squares, alongs, totals)
            else:
                square, along = _two_sums(squares, alongs)
                total = along
            if AGAIN == "all":
                values, grad = _of_columns(x_rows, grad_rows, columns, live, HIDDEN, WHOLE, "evict_first")
                if CENTRED:
                    values -= mean_x
            if AGAIN != "" and OF_ROWS:
                gain = load_tile(weight + columns, columns < HIDDEN, FULL, "evict_last").to(tl.float32) + offset
                if TAIL > 0:
                    tail_gain = load_tile(weight + behind, behind < HIDDEN, TAIL_FULL, "evict_last").to(tl.float32)
                    tail_gain += offset
            inverse = tl.rsqrt(square / HIDDEN + eps)
            if ROWS > 1:  # rows past the end: with eps = 0 their reciprocal is NaN or Inf
                inverse = tl.where(live, inverse, 0.0)
            values *= inverse
            if OF_WEIGHT:
                of_weight += grad * values
            if OF_BIAS:
                of_bias += grad
            if TAIL > 0:
                tail *= inverse
                if OF_WEIGHT:
                    tail_of_weight += tail_grad * tail
                if OF_BIAS:
                    tail_of_bias += tail_grad
            if OF_ROWS:
                slope = along * inverse / HIDDEN
                shift = total / HIDDEN
                total_rows = grad_total
                if grad_total is not None:
                    total_rows = grad_total + row_starts(row, inner, total_stride, total_outer, HIDDEN)
                _write(
                    values, grad, gain, inverse, slope, shift, grad_total, grad_x, grad_residual, total_rows,
                    row * HIDDEN, columns, live, HIDDEN, WHOLE, CENTRED,
                )  # fmt: skip
                if TAIL > 0:
                    _write(
                        tail, tail_grad, tail_gain, inverse, slope, shift, grad_total, grad_x, grad_residual,
                        total_rows, row * HIDDEN, behind, live, HIDDEN, TAIL_WHOLE, CENTRED,
                    )  # fmt: skip
        to_bias = partial_row
        if OF_BIAS:
            to_bias = partial_row + (kinds_apart if OF_WEIGHT else 0)
        if OF_WEIGHT:
            _write_share(partial_row, of_weight, columns, HIDDEN, FULL)
        if OF_BIAS:
            _write_share(to_bias, of_bias, columns, HIDDEN, FULL)
        if TAIL > 0:
            if OF_WEIGHT:
                _write_share(partial_row, tail_of_weight, behind, HIDDEN, TAIL_FULL)
            if OF_BIAS:
                _write_share(to_bias, tail_of_bias, behind, HIDDEN, TAIL_FULL)
    else:
        _in_passes(
            grad_y, x, weight, rows, eps, offset, grad_x, partial_row, kinds_apart, grad_total, grad_residual,
            inner, grad_y_stride, x_stride, total_stride, grad_y_outer, x_outer, total_outer,
            HIDDEN, CENTRED, OF_WEIGHT, OF_BIAS, OF_ROWS, BLOCK,
        )  # fmt: skip


@triton.jit
def _in_passes(
    grad_y, x, weight, rows, eps, offset, grad_x, partial_row, kinds_apart, grad_total, grad_residual,
    inner, grad_y_stride, x_stride, total_stride, grad_y_outer, x_outer, total_outer,
    HIDDEN: tl.constexpr, CENTRED: tl.constexpr, OF_WEIGHT: tl.constexpr, OF_BIAS: tl.constexpr,
    OF_ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`norm_backward` of rows longer than BLOCK, one row at a time; the partial sums are kept in memory."""
    program = tl.program_id(0).to(tl.int64)
    for place in range(program, rows, tl.num_programs(0)):
        row = tl.full([1, 1], 0, tl.int64) + place
        x_rows = x + row_starts(row, inner, x_stride, x_outer, HIDDEN)
        grad_rows = grad_y + row_starts(row, inner, grad_y_stride, grad_y_outer, HIDDEN)
        mean, inverse = statistics(x_rows, row < rows, eps, HIDDEN, BLOCK, 1, CENTRED, "")
        along = tl.zeros([1, BLOCK], tl.float32)
        total = tl.zeros([1, BLOCK], tl.float32)
        if OF_ROWS:
            for start in range(0, HIDDEN, BLOCK):
                at = start + tl.arange(0, BLOCK)[None, :]
                inside = at < HIDDEN
                gain = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32) + offset
                g = tl.load(grad_rows + at, mask=inside, other=0.0).to(tl.float32) * gain
                values = tl.load(x_rows + at, mask=inside, other=0.0).to(tl.float32)
                along += tl.where(inside, g * ((values - mean) * inverse), 0.0)
                total += g
        slope = tl.sum(along, 1, keep_dims=True) / HIDDEN
        shift = tl.sum(total, 1, keep_dims=True) / HIDDEN
        for start in range(0, HIDDEN, BLOCK):
            at = start + tl.arange(0, BLOCK)[None, :]
            inside = at < HIDDEN
            grad = tl.load(grad_rows + at, mask=inside, other=0.0).to(tl.float32)
            values = (tl.load(x_rows + at, mask=inside, other=0.0).to(tl.float32) - mean) * inverse
            again = inside & (row > program)  # the first row finds nothing there yet
            if OF_WEIGHT:
                share = tl.load(partial_row + at, mask=again, other=0.0)
                tl.store(partial_row + at, share + grad * values, mask=inside)
            if OF_BIAS:
                to_bias = partial_row + at + (kinds_apart if OF_WEIGHT else 0)
                share = tl.load(to_bias, mask=again, other=0.0)
                tl.store(to_bias, share + grad, mask=inside)
            if OF_ROWS:
                gain = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32) + offset
                g = grad * gain - values * slope
                if CENTRED:
                    g -= shift
                g *= inverse
                if grad_total is not None:
                    total_rows = grad_total + row_starts(row, inner, total_stride, total_outer, HIDDEN)
                    g += tl.load(total_rows + at, mask=inside, other=0.0).to(tl.float32)
                to_x = row * HIDDEN + at
                if grad_x is not None:
                    tl.store(grad_x + to_x, rounded(g, grad_x.dtype.element_ty), mask=inside)
                if grad_residual is not None:
                    tl.store(grad_residual + to_x, rounded(g, grad_residual.dtype.element_ty), mask=inside)
        tl.debug_barrier()  # what one thread wrote to the partial sums another may read for the next row


@triton.jit(do_not_specialize=["count"])
def sum_partials(
    partial, first, second, count,
    HIDDEN: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """``first = sum over rows of partial[0]``; the programs of the grid's second row do likewise for ``second``."""
    kind = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    pointers = partial + kind * count * HIDDEN + columns
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, count, ROWS):
        row = start + tl.arange(0, ROWS)[:, None].to(tl.int64)
        total += tl.load(pointers + row * HIDDEN, mask=(row < count) & (columns < HIDDEN), other=0.0)
    result = tl.sum(total, 0, keep_dims=True)
    if second is None:
        tl.store(first + columns, rounded(result, first.dtype.element_ty), mask=columns < HIDDEN)
    elif kind == 0:
        tl.store(first + columns, rounded(result, first.dtype.element_ty), mask=columns < HIDDEN)
    else:
        tl.store(second + columns, rounded(result, second.dtype.element_ty), mask=columns < HIDDEN)
