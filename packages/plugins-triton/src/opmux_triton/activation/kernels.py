"""Kernels of the gated activations: one program holds a tile of ROWS rows and BLOCK of their N columns."""

import triton
import triton.language as tl

from opmux_triton.addressing import load_tile, row_starts, store_tile
from opmux_triton.dependent_launch import await_predecessor
from opmux_triton.rounding import rounded

SILU = tl.constexpr(0)
GELU = tl.constexpr(1)
GELU_TANH = tl.constexpr(2)

SQRT_HALF = tl.constexpr(0.7071067811865476)
TWO_SQRT_2_OVER_PI = tl.constexpr(1.5957691216057308)
INVERSE_SQRT_2_PI = tl.constexpr(0.3989422804014327)
TANH_CUBIC = tl.constexpr(0.044715)
"""The cubic coefficient of Hendrycks and Gimpel's tanh form."""


@triton.jit
def normal_tail(u):
    """The normal distribution function of -u, for u >= 0, with one exponential and eight multiply-adds.

    ``2 ** P(u)`` with the polynomial P of degree 8, ``P(0) = -1``, that is nearest to the logarithm on [0, 6.5] (a
    weighted minimax fit by Lawson's algorithm: C. L. Lawson, "Contributions to the theory of linear least maximum
    approximation", UCLA 1961). In float32 the error stays below 1.1e-7, and below 2e-3 of the value, half an ulp of
    bfloat16, down to 4e-11. Beyond that P falls for good: the value underflows to 0, and is 0 at infinity.
    """
    power = u * -9.595489700586768e-07 + 1.7083426428143866e-05
    power = power * u - 8.407622954109684e-05
    power = power * u - 3.6764200194738805e-04
    power = power * u + 7.336046081036329e-03
    power = power * u - 5.265993997454643e-02
    power = power * u - 4.5916396379470825e-01
    power = power * u - 1.151108980178833
    return tl.exp2(power * u - 1.0)


@triton.jit
def share(gate, KIND: tl.constexpr, EXACT: tl.constexpr):
    """``activation(gate) / gate``: the sigmoid, or the normal distribution function (of 16-bit gates not EXACT)."""
    if KIND == SILU:
        return tl.sigmoid(gate)
    elif KIND == GELU:
        if EXACT:
            return 0.5 + 0.5 * tl.erf(gate * SQRT_HALF)
        else:
            tail = normal_tail(tl.abs(gate))
            return tl.where(gate < 0.0, tail, 1.0 - tail)
    else:  # (1 + tanh(z)) / 2 is sigmoid(2 * z)
        return tl.sigmoid((gate + gate * gate * gate * TANH_CUBIC) * TWO_SQRT_2_OVER_PI)


@triton.jit
def slope_of(gate, part, KIND: tl.constexpr):
    """The activation's derivative, given its share."""
    if KIND == SILU:
        return part * (1.0 + gate * (1.0 - part))
    elif KIND == GELU:
        return part + gate * (tl.exp(gate * gate * -0.5) * INVERSE_SQRT_2_PI)
    else:
        inner = (gate * gate * (3.0 * TANH_CUBIC) + 1.0) * TWO_SQRT_2_OVER_PI
        return part + gate * (part * (1.0 - part) * inner)


@triton.jit(do_not_specialize=["rows"])
def gated(
    gate, out, rows, up, inner, gate_stride, up_stride, gate_outer, up_outer,
    N: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """``out = activation(gate) * up``; out is contiguous. Without ``up``, up follows the gate after N columns."""
    await_predecessor(DEPENDENT)
    CHUNKS: tl.constexpr = (N + BLOCK - 1) // BLOCK
    WHOLE: tl.constexpr = ROWS == 1 and N % BLOCK == 0
    program = tl.program_id(0)
    row = (program // CHUNKS).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = program % CHUNKS * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (columns < N)
    if up is None:
        gate_rows = gate + row_starts(row, inner, gate_stride, gate_outer, 2 * N)
        up_rows = gate_rows + N
    else:
        gate_rows = gate + row_starts(row, inner, gate_stride, gate_outer, N)
        up_rows = up + row_starts(row, inner, up_stride, up_outer, N)
    gates = load_tile(gate_rows + columns, inside, WHOLE, "").to(tl.float32)
    ups = load_tile(up_rows + columns, inside, WHOLE, "").to(tl.float32)
    result = gates * share(gates, KIND, gate.dtype.element_ty == tl.float32) * ups
    store_tile(out + row * N + columns, rounded(result, out.dtype.element_ty), inside, WHOLE)


@triton.jit(do_not_specialize=["rows"])
def gated_backward(
    grad, gate, rows, grad_gate, grad_up, up, inner,
    grad_stride, gate_stride, up_stride, grad_outer, gate_outer, up_outer,
    N: tl.constexpr, PACKED: tl.constexpr, KIND: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """``grad_gate = grad * up * slope``, ``grad_up = grad * activation(gate)``; both contiguous.

    PACKED: gate and up lie side by side, and so do their gradients in ``grad_gate``. Of two tensors, the one not
    wanted is None.
    """
    await_predecessor(DEPENDENT)
    CHUNKS: tl.constexpr = (N + BLOCK - 1) // BLOCK
    WHOLE: tl.constexpr = ROWS == 1 and N % BLOCK == 0
    WIDTH: tl.constexpr = 2 * N if PACKED else N
    program = tl.program_id(0)
    row = (program // CHUNKS).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = program % CHUNKS * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (columns < N)
    grad_rows = grad + row_starts(row, inner, grad_stride, grad_outer, N)
    gate_rows = gate + row_starts(row, inner, gate_stride, gate_outer, WIDTH)
    grads = load_tile(grad_rows + columns, inside, WHOLE, "").to(tl.float32)
    gates = load_tile(gate_rows + columns, inside, WHOLE, "").to(tl.float32)
    part = share(gates, KIND, gate.dtype.element_ty == tl.float32)
    if grad_gate is not None:
        if PACKED:
            up_rows = gate_rows + N
        else:
            up_rows = up + row_starts(row, inner, up_stride, up_outer, N)
        ups = load_tile(up_rows + columns, inside, WHOLE, "").to(tl.float32)
        of_gate = rounded(grads * ups * slope_of(gates, part, KIND), grad.dtype.element_ty)
        store_tile(grad_gate + row * WIDTH + columns, of_gate, inside, WHOLE)
    of_up = rounded(grads * (gates * part), grad.dtype.element_ty)
    if PACKED:
        store_tile(grad_gate + row * WIDTH + N + columns, of_up, inside, WHOLE)
    elif grad_up is not None:
        store_tile(grad_up + row * N + columns, of_up, inside, WHOLE)
