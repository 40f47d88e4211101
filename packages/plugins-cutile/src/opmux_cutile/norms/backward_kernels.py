"""Gradients of norms in CUDA Tile: blocks take turns at tiles of ROWS whole rows.

A block keeps the sums over its rows that the gradients of the vectors need, and writes them as a row of a matrix, which
is summed afterwards, always in the same order. All sums are in float32.
"""

import cuda.tile as ct


def of_rows(sums, ROWS: ct.Constant[int]):
    """The sums of all rows of a tile, once at the end: added up at each step they would pass through shared memory."""
    return ct.sum(sums, axis=0, keepdims=True) if ROWS > 1 else sums


def place_of(tile, columns, ROWS: ct.Constant[int]):
    """Indices of a tile's elements."""
    return (tile * ROWS + ct.arange(ROWS, dtype=ct.int32))[:, None], columns


def weighed(g, weight, columns, offset):
    """The gradient of what the weight multiplies."""
    return g * (ct.gather(weight, (columns,)).astype(ct.float32) + offset)


def joined(a, b, c, d):
    """Two sums that are taken at once."""
    return a + c, b + d


@ct.kernel
def norm_backward(
    grad, more, x, weight, grad_x, grad_more, of_weight, of_bias, eps: float, offset: float,
    ROWS: ct.Constant[int], COLUMNS: ct.Constant[int],
    CENTRED: ct.Constant[bool], ADDED: ct.Constant[bool],
    INPUT: ct.Constant[bool], MORE: ct.Constant[bool], WEIGHT: ct.Constant[bool], BIAS: ct.Constant[bool],
):  # fmt: skip
    """Gradients of a norm of x; where ADDED, x is a sum, `more` its own gradient, and both summands get theirs.

    The next tile is read before this one is computed. Sums of a row are taken two at once: each alone passes through
    shared memory, with barriers. Around a mean there are four, in two steps, as two need the mean; with all four at
    once these two are differences of sums, where one infinite number makes NaN of what is infinite. In float16, rows
    of more than 4096 take them one by one, as pairs spill registers on sm_120; one by one, rows of 4096 do on Hopper.
    """
    PAIRS = CENTRED and (INPUT or MORE) and (x.dtype != ct.float16 or COLUMNS <= 4096)
    columns = ct.arange(COLUMNS, dtype=ct.int32)[None, :]
    width = x.shape[1]
    share = 1.0 / width
    sums = ct.zeros((ROWS, COLUMNS), dtype=ct.float32)
    shifts = ct.zeros((ROWS, COLUMNS), dtype=ct.float32)
    place = place_of(ct.bid(0), columns, ROWS)
    next_x, next_grad = ct.gather(x, place), ct.gather(grad, place)
    for tile in range(ct.bid(0), ct.cdiv(x.shape[0], ROWS), ct.num_blocks(0)):
        value, g = next_x.astype(ct.float32), next_grad.astype(ct.float32)
        place = place_of(tile + ct.num_blocks(0), columns, ROWS)
        next_x, next_grad = ct.gather(x, place), ct.gather(grad, place)
        place = place_of(tile, columns, ROWS)
        if PAIRS:
            h = weighed(g, weight, columns, offset)
            mean, raised = ct.reduce((value, h), 1, joined, (0.0, 0.0), keepdims=True)
            value = ct.where(columns < width, value - mean * share, 0.0)
            squares, products = ct.reduce((value * value, h * value), 1, joined, (0.0, 0.0), keepdims=True)
            scale = ct.rsqrt(squares * share + eps)
        elif CENTRED:
            mean = ct.sum(value, axis=1, keepdims=True) * share
            value = ct.where(columns < width, value - mean, 0.0)
            scale = ct.rsqrt(ct.sum(value * value, axis=1, keepdims=True) * share + eps)
            if INPUT or MORE:
                h = weighed(g, weight, columns, offset)
                raised, products = ct.sum(h, axis=1, keepdims=True), ct.sum(h * value, axis=1, keepdims=True)
        elif INPUT or MORE:
            h = weighed(g, weight, columns, offset)
            squares, products = ct.reduce((value * value, h * value), 1, joined, (0.0, 0.0), keepdims=True)
            scale = ct.rsqrt(squares * share + eps)
        else:
            scale = ct.rsqrt(ct.sum(value * value, axis=1, keepdims=True) * share + eps)
        value = value * scale
        if WEIGHT:
            sums = sums + g * value
        if BIAS:
            shifts = shifts + g
        if INPUT or MORE:
            found = h - value * (products * scale * share)
            if CENTRED:
                found = found - raised * share
            found = found * scale
            if ADDED:
                found = found + ct.gather(more, place).astype(ct.float32)
            if INPUT:
                ct.scatter(grad_x, place, found.astype(grad_x.dtype))
            if MORE:
                ct.scatter(grad_more, place, found.astype(grad_more.dtype))
    if WEIGHT:
        ct.scatter(of_weight, (ct.bid(0), columns), of_rows(sums, ROWS))
    if BIAS:
        ct.scatter(of_bias, (ct.bid(0), columns), of_rows(shifts, ROWS))


@ct.kernel
def column_sums(
    parts, more_parts, total, more_total,
    ROWS: ct.Constant[int], COLUMNS: ct.Constant[int], FIRST: ct.Constant[bool], SECOND: ct.Constant[bool],
):  # fmt: skip
    """The sums over the rows of one matrix, or of two; a block has COLUMNS columns, and reads ROWS rows at a time."""
    columns = ct.bid(0) * COLUMNS + ct.arange(COLUMNS, dtype=ct.int32)
    if FIRST:
        add_up(parts, total, columns, ROWS)
    if SECOND:
        add_up(more_parts, more_total, columns, ROWS)


def add_up(parts, total, columns, ROWS: ct.Constant[int]):
    """Write the sums of some columns."""
    sums = ct.zeros((ROWS, columns.shape[0]), dtype=ct.float32)
    for step in range(ct.cdiv(parts.shape[0], ROWS)):
        rows = step * ROWS + ct.arange(ROWS, dtype=ct.int32)
        sums = sums + ct.gather(parts, (rows[:, None], columns[None, :]))
    ct.scatter(total, (columns,), ct.sum(sums, axis=0).astype(total.dtype))
