"""Quantisation in CUDA Tile: a block computes ROWS rows and COLUMNS columns, in float32.

GROUP columns share a scale; where a whole row does, COLUMNS covers the row. Codes of 8-bit floats are rounded by the
conversion; those of int8 by adding and taking away 1.5 * 2**23, which leaves no fraction.
"""

import cuda.tile as ct

TINY, RAISE = 2.0**-100, 2.0**64
"""Scales below the first have a reciprocal that may be infinite, so they and what they scale are raised before."""


def encode(value, factor, q, scale, rows, begin, LARGEST: ct.Constant[float], GROUP: ct.Constant[int],
           INTEGER: ct.Constant[bool]):  # fmt: skip
    """Write the codes and the scales of a tile of values times a factor of each row, from column `begin` on.

    A block divides once, and its values are multiplied: a division of each value takes longer than moving it. No code
    is larger than LARGEST by more than a rounding, so none is cut off. The largest magnitude leaves NaN out.
    """
    height, width = value.shape[0], value.shape[1]
    groups = ct.reshape(value, (height, width // GROUP, GROUP))
    factor = ct.reshape(factor, (height, 1, 1))
    unit = ct.maximum(ct.max(ct.abs(groups), axis=2, keepdims=True), 0.0) * factor * (1.0 / LARGEST)
    unit = ct.where(unit > 0.0, unit, 1.0)  # a factor that is no number makes codes that are none, with scale 1
    up = ct.where(unit < TINY, RAISE, 1.0)
    inverse = ct.truediv(1.0, unit * up, rounding_mode=ct.RoundingMode.APPROX, flush_to_zero=True)
    code = groups * up * (factor * inverse)
    if INTEGER:
        code = ct.where(ct.isnan(code), 0.0, code)
        code = (code + 12582912.0) - 12582912.0
    columns = begin + ct.arange(width, dtype=ct.int32)
    ct.scatter(q, (rows[:, None], columns[None, :]), ct.reshape(code, (height, width)).astype(q.dtype))
    blocks = begin // GROUP + ct.arange(width // GROUP, dtype=ct.int32)
    ct.scatter(scale, (rows[:, None], blocks[None, :]), ct.reshape(unit, (height, width // GROUP)))


def place_of(x, ROWS: ct.Constant[int], COLUMNS: ct.Constant[int], GROUP: ct.Constant[int]):
    """The rows of a block and its first column.

    Blocks of several groups follow each other along a row. Those of one group, as whole rows, have their place along it
    from the grid: with a quotient the kernel of gated rows of 8192 was 0.93 times as fast on an H200.
    """
    if GROUP == COLUMNS:
        rows, begin = ct.bid(0) * ROWS + ct.arange(ROWS, dtype=ct.int32), ct.bid(1) * COLUMNS
    else:
        across = ct.cdiv(x.shape[1], COLUMNS)
        rows, begin = ct.bid(0) // across * ROWS + ct.arange(ROWS, dtype=ct.int32), ct.bid(0) % across * COLUMNS
    return rows, begin


@ct.kernel
def quantize(
    x, q, scale,
    ROWS: ct.Constant[int], COLUMNS: ct.Constant[int], GROUP: ct.Constant[int], LARGEST: ct.Constant[float],
    INTEGER: ct.Constant[bool],
):  # fmt: skip
    """Codes and scales of x."""
    rows, begin = place_of(x, ROWS, COLUMNS, GROUP)
    columns = begin + ct.arange(COLUMNS, dtype=ct.int32)
    value = ct.gather(x, (rows[:, None], columns[None, :])).astype(ct.float32)
    encode(value, ct.full((ROWS, 1), 1.0, dtype=ct.float32), q, scale, rows, begin, LARGEST, GROUP, INTEGER)


@ct.kernel
def silu_mul_quantize(
    gate, up, q, scale,
    ROWS: ct.Constant[int], COLUMNS: ct.Constant[int], GROUP: ct.Constant[int], LARGEST: ct.Constant[float],
    INTEGER: ct.Constant[bool],
):  # fmt: skip
    """Codes and scales of gate * sigmoid(gate) * up."""
    rows, begin = place_of(gate, ROWS, COLUMNS, GROUP)
    columns = begin + ct.arange(COLUMNS, dtype=ct.int32)
    place = rows[:, None], columns[None, :]
    x = ct.gather(gate, place).astype(ct.float32)
    # Below -87 the share is zero, where a code would be of something near the least number that there is.
    e = ct.exp2(x * -1.4426950408889634, flush_to_zero=True)
    share = ct.truediv(1.0, 1.0 + e, rounding_mode=ct.RoundingMode.APPROX, flush_to_zero=True)
    ones = ct.full((ROWS, 1), 1.0, dtype=ct.float32)
    encode(x * share * ct.gather(up, place).astype(ct.float32), ones, q, scale, rows, begin, LARGEST, GROUP, INTEGER)


def gain_of(weight, columns, offset, SHIFTED: ct.Constant[bool]):
    """What a norm multiplies the columns by."""
    gain = ct.gather(weight, (columns,)).astype(ct.float32)[None, :]
    return gain + offset if SHIFTED else gain


def encode_normed(value, weight, columns, eps, offset, q, scale, rows, LARGEST: ct.Constant[float],
                  GROUP: ct.Constant[int], INTEGER: ct.Constant[bool], SHIFTED: ct.Constant[bool]):  # fmt: skip
    """Write the codes and the scales of the norm of whole rows."""
    square = ct.sum(value * value, axis=1, keepdims=True) * (1.0 / q.shape[1])
    # Past the row's end the value is 0, and so is the result, unless the offset is infinite.
    value = value * gain_of(weight, columns, offset, SHIFTED)
    encode(value, ct.rsqrt(square + eps), q, scale, rows, 0, LARGEST, GROUP, INTEGER)


@ct.kernel
def rms_norm_quantize(
    x, weight, q, scale, eps: float, offset: float,
    ROWS: ct.Constant[int], COLUMNS: ct.Constant[int], GROUP: ct.Constant[int], LARGEST: ct.Constant[float],
    INTEGER: ct.Constant[bool], SHIFTED: ct.Constant[bool], AHEAD: ct.Constant[bool],
):  # fmt: skip
    """Codes and scales of x / rms(x) * (weight + offset). A block has whole rows.

    Where AHEAD, blocks take turns at tiles of rows, and read the next one before they compute one.
    """
    columns = ct.arange(COLUMNS, dtype=ct.int32)
    rows = ct.bid(0) * ROWS + ct.arange(ROWS, dtype=ct.int32)
    following = ct.gather(x, (rows[:, None], columns[None, :]))
    if AHEAD:
        for tile in range(ct.bid(0), ct.cdiv(x.shape[0], ROWS), ct.num_blocks(0)):
            value = following.astype(ct.float32)
            rows = (tile + ct.num_blocks(0)) * ROWS + ct.arange(ROWS, dtype=ct.int32)
            following = ct.gather(x, (rows[:, None], columns[None, :]))
            rows = tile * ROWS + ct.arange(ROWS, dtype=ct.int32)
            encode_normed(value, weight, columns, eps, offset, q, scale, rows, LARGEST, GROUP, INTEGER, SHIFTED)
    else:
        value = following.astype(ct.float32)
        encode_normed(value, weight, columns, eps, offset, q, scale, rows, LARGEST, GROUP, INTEGER, SHIFTED)


@ct.kernel
def add_rms_norm_quantize(
    x, residual, weight, q, scale, total, eps: float, offset: float,
    ROWS: ct.Constant[int], COLUMNS: ct.Constant[int], GROUP: ct.Constant[int], LARGEST: ct.Constant[float],
    INTEGER: ct.Constant[bool], SHIFTED: ct.Constant[bool],
):  # fmt: skip
    """total = x + residual, rounded; codes and scales of its norm. A block has whole rows."""
    rows, columns = ct.bid(0) * ROWS + ct.arange(ROWS, dtype=ct.int32), ct.arange(COLUMNS, dtype=ct.int32)
    place = rows[:, None], columns[None, :]
    added = ct.gather(x, place).astype(ct.float32) + ct.gather(residual, place).astype(ct.float32)
    rounded = added.astype(total.dtype)
    ct.scatter(total, place, rounded)
    value = rounded.astype(ct.float32)
    encode_normed(value, weight, columns, eps, offset, q, scale, rows, LARGEST, GROUP, INTEGER, SHIFTED)
