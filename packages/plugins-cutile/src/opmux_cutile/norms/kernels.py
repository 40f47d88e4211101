"""Norms in CUDA Tile: a block computes ROWS whole rows, in a tile of ROWS x COLUMNS, a power of two each.

Sums are in float32. The width may be compiled in, as the arrays' constant shape: whole vectors are then read without
masks.
"""

import cuda.tile as ct


def indices(ROWS: ct.Constant[int], COLUMNS: ct.Constant[int]):
    """The block's rows as a column, and its columns as a row."""
    rows = ct.bid(0) * ROWS + ct.arange(ROWS, dtype=ct.int32)
    return rows[:, None], ct.arange(COLUMNS, dtype=ct.int32)[None, :]


def of_columns(vector, columns):
    """A vector's elements for the columns, as a row."""
    return ct.gather(vector, (columns,)).astype(ct.float32)


@ct.kernel
def rms_norm(
    x, weight, y, eps: float, offset: float,
    ROWS: ct.Constant[int], COLUMNS: ct.Constant[int],
):  # fmt: skip
    """y = x / rms(x) * (weight + offset)."""
    rows, columns = indices(ROWS, COLUMNS)
    value = ct.gather(x, (rows, columns)).astype(ct.float32)
    square = ct.sum(value * value, axis=1, keepdims=True) * (1.0 / x.shape[1])
    gain = of_columns(weight, columns) + offset
    ct.scatter(y, (rows, columns), (value * ct.rsqrt(square + eps) * gain).astype(y.dtype))


@ct.kernel
def add_rms_norm(
    x, residual, weight, y, total, eps: float, offset: float,
    ROWS: ct.Constant[int], COLUMNS: ct.Constant[int],
):  # fmt: skip
    """total = x + residual, rounded; y is the norm of that."""
    rows, columns = indices(ROWS, COLUMNS)
    added = ct.gather(x, (rows, columns)).astype(ct.float32) + ct.gather(residual, (rows, columns)).astype(ct.float32)
    rounded = added.astype(total.dtype)
    ct.scatter(total, (rows, columns), rounded)
    value = rounded.astype(ct.float32)
    square = ct.sum(value * value, axis=1, keepdims=True) * (1.0 / x.shape[1])
    gain = of_columns(weight, columns) + offset
    ct.scatter(y, (rows, columns), (value * ct.rsqrt(square + eps) * gain).astype(y.dtype))


@ct.kernel
def layer_norm(
    x, weight, bias, y, eps: float,
    ROWS: ct.Constant[int], COLUMNS: ct.Constant[int], BIASED: ct.Constant[bool],
):  # fmt: skip
    """y = (x - mean(x)) / std(x) * weight + bias."""
    rows, columns = indices(ROWS, COLUMNS)
    value = ct.gather(x, (rows, columns)).astype(ct.float32)
    mean = ct.sum(value, axis=1, keepdims=True) * (1.0 / x.shape[1])
    centred = ct.where(columns < x.shape[1], value - mean, 0.0)
    square = ct.sum(centred * centred, axis=1, keepdims=True) * (1.0 / x.shape[1])
    result = centred * ct.rsqrt(square + eps) * of_columns(weight, columns)
    if BIASED:
        result = result + of_columns(bias, columns)
    ct.scatter(y, (rows, columns), result.astype(y.dtype))
