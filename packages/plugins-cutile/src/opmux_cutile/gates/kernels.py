"""Gated activations in CUDA Tile: a block computes ROWS rows and COLUMNS columns of the result, in float32.

`gate`, `up` and `y` have equally many columns; the first two may be halves of one tensor.
"""

import cuda.tile as ct


def indices(x, ROWS: ct.Constant[int], COLUMNS: ct.Constant[int]):
    """The block's rows of x as a column, and its columns as a row. Blocks of a row follow each other."""
    parts = ct.cdiv(x.shape[1], COLUMNS)
    rows = ct.bid(0) // parts * ROWS + ct.arange(ROWS, dtype=ct.int32)
    columns = ct.bid(0) % parts * COLUMNS + ct.arange(COLUMNS, dtype=ct.int32)
    return rows[:, None], columns[None, :]


def sigmoid(x, EXACT: ct.Constant[bool]):
    """The logistic function; its exponential does not overflow, so small results are not lost.

    Where results are rounded to 16 bits, the fast instructions for powers of two and reciprocals are near enough.
    """
    if EXACT:
        e = ct.exp(ct.minimum(x, -x, propagate_nan=True))
        return ct.where(x < 0.0, e, 1.0) / (1.0 + e)
    e = ct.exp2(ct.minimum(x, -x, propagate_nan=True) * 1.4426950408889634)
    share = ct.truediv(1.0, 1.0 + e, rounding_mode=ct.RoundingMode.APPROX, flush_to_zero=True)
    return ct.where(x < 0.0, e, 1.0) * share


@ct.kernel
def silu_mul(gate, up, y, ROWS: ct.Constant[int], COLUMNS: ct.Constant[int]):
    """y = gate * sigmoid(gate) * up."""
    place = indices(y, ROWS, COLUMNS)
    x = ct.gather(gate, place).astype(ct.float32)
    ct.scatter(
        y, place, (x * sigmoid(x, y.dtype == ct.float32) * ct.gather(up, place).astype(ct.float32)).astype(y.dtype)
    )


@ct.kernel
def gelu_tanh_mul(gate, up, y, ROWS: ct.Constant[int], COLUMNS: ct.Constant[int]):
    """y = gate * sigmoid(2 z) * up with z = sqrt(2 / pi) * (gate + 0.044715 * gate**3)."""
    place = indices(y, ROWS, COLUMNS)
    x = ct.gather(gate, place).astype(ct.float32)
    share = sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x), y.dtype == ct.float32)
    ct.scatter(y, place, (x * share * ct.gather(up, place).astype(ct.float32)).astype(y.dtype))


def silu_parts(x, EXACT: ct.Constant[bool]):
    """silu(x) and its slope."""
    share = sigmoid(x, EXACT)
    return x * share, share * (1.0 + x * (1.0 - share))


def gelu_parts(x, EXACT: ct.Constant[bool]):
    """gelu(x) in the tanh form, and its slope."""
    share = sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x), EXACT)
    inner = 1.5957691216057308 * (1.0 + 0.134145 * x * x)
    return x * share, share + x * (share * (1.0 - share) * inner)


@ct.kernel
def gate_backward(
    grad, gate, up, grad_gate, grad_up,
    ROWS: ct.Constant[int], COLUMNS: ct.Constant[int],
    GELU: ct.Constant[bool], GATE: ct.Constant[bool], UP: ct.Constant[bool],
):  # fmt: skip
    """grad_gate = grad * up * slope(gate) and grad_up = grad * activation(gate), each where it is wanted."""
    place = indices(grad, ROWS, COLUMNS)
    x = ct.gather(gate, place).astype(ct.float32)
    g = ct.gather(grad, place).astype(ct.float32)
    if GELU:
        value, slope = gelu_parts(x, grad.dtype == ct.float32)
    else:
        value, slope = silu_parts(x, grad.dtype == ct.float32)
    if GATE:
        found = g * ct.gather(up, place).astype(ct.float32) * slope
        ct.scatter(grad_gate, place, found.astype(grad_gate.dtype))
    if UP:
        ct.scatter(grad_up, place, (g * value).astype(grad_up.dtype))
