"""A norm around the mean of a sum in CUDA Tile: a block computes ROWS whole rows, as those of other norms do.

It has a file of its own so that the source of the other norms, and with it their machine code, stays as it is.
"""

import cuda.tile as ct

from opmux_cutile.norms.kernels import indices, of_columns


@ct.kernel
def add_layer_norm(
    x, residual, weight, bias, y, total, eps: float,
    ROWS: ct.Constant[int], COLUMNS: ct.Constant[int], BIASED: ct.Constant[bool],
):  # fmt: skip
    """total = x + residual, rounded; y = (total - mean(total)) / std(total) * weight + bias."""
    rows, columns = indices(ROWS, COLUMNS)
    added = ct.gather(x, (rows, columns)).astype(ct.float32) + ct.gather(residual, (rows, columns)).astype(ct.float32)
    rounded = added.astype(total.dtype)
    ct.scatter(total, (rows, columns), rounded)
    value = rounded.astype(ct.float32)
    mean = ct.sum(value, axis=1, keepdims=True) * (1.0 / x.shape[1])
    centred = ct.where(columns < x.shape[1], value - mean, 0.0)
    square = ct.sum(centred * centred, axis=1, keepdims=True) * (1.0 / x.shape[1])
    result = centred * ct.rsqrt(square + eps) * of_columns(weight, columns)
    if BIASED:
        result = result + of_columns(bias, columns)
    ct.scatter(y, (rows, columns), result.astype(y.dtype))
