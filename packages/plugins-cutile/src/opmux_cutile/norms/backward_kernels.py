"""Gradients of norms in CUDA Tile: blocks take turns at tiles of ROWS whole rows.

A block keeps the sums over its rows that the gradients of the vectors need, and writes them as a row of a matrix, which
is summed afterwards, always in the same order. All sums are in float32.
"""

import cuda.tile as ct


@ct.kernel
def norm_backward(
    grad, more, x, weight, grad_x, grad_more, of_weight, of_bias, eps: float, offset: float,
    ROWS: ct.Constant[int], COLUMNS: ct.Constant[int],
    CENTRED: ct.Constant[bool], ADDED: ct.Constant[bool],
    INPUT: ct.Constant[bool], MORE: ct.Constant[bool], WEIGHT: ct.Constant[bool], BIAS: ct.Constant[bool],
):  # fmt: skip
    """Gradients of a norm of x; where ADDED, x is a sum, `more` its own gradient, and both summands get theirs."""
    columns = ct.arange(COLUMNS, dtype=ct.int32)
    width = x.shape[1]
    share = 1.0 / width
    sums = ct.zeros((1, COLUMNS), dtype=ct.float32)
    shifts = ct.zeros((1, COLUMNS), dtype=ct.float32)
    for tile in range(ct.bid(0), ct.cdiv(x.shape[0], ROWS), ct.num_blocks(0)):
        rows = tile * ROWS + ct.arange(ROWS, dtype=ct.int32)
        place = rows[:, None], columns[None, :]
        value = ct.gather(x, place).astype(ct.float32)
        g = ct.gather(grad, place).astype(ct.float32)
        if CENTRED:
            mean = ct.sum(value, axis=1, keepdims=True) * share
            value = ct.where(columns[None, :] < width, value - mean, 0.0)
        scale = ct.rsqrt(ct.sum(value * value, axis=1, keepdims=True) * share + eps)
        value = value * scale
        if WEIGHT:
            sums = sums + ct.sum(g * value, axis=0, keepdims=True)
        if BIAS:
            shifts = shifts + ct.sum(g, axis=0, keepdims=True)
        if INPUT or MORE:
            h = g * (ct.gather(weight, (columns,)).astype(ct.float32)[None, :] + offset)
            found = h - value * (ct.sum(h * value, axis=1, keepdims=True) * share)
            if CENTRED:
                found = found - ct.sum(h, axis=1, keepdims=True) * share
            found = found * scale
            if ADDED:
                found = found + ct.gather(more, place).astype(ct.float32)
            if INPUT:
                ct.scatter(grad_x, place, found.astype(grad_x.dtype))
            if MORE:
                ct.scatter(grad_more, place, found.astype(grad_more.dtype))
    if WEIGHT:
        ct.scatter(of_weight, (ct.bid(0), columns[None, :]), sums)
    if BIAS:
        ct.scatter(of_bias, (ct.bid(0), columns[None, :]), shifts)
