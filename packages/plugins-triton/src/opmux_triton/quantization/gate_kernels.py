"""The kernel of a gated activation that is quantised before it is rounded: a program holds whole blocks."""

import triton
import triton.language as tl

from opmux_triton.activation.kernels import SILU, share
from opmux_triton.addressing import load_tile, row_starts, store_tile
from opmux_triton.codes import magnitude
from opmux_triton.dependent_launch import await_predecessor
from opmux_triton.quantization.scaling import quantized, scale_of, scale_places


@triton.jit(do_not_specialize=["rows", "m"])
def gated_quantize(
    x, q, scale, rows, m, step, column, inner, stride, outer,
    FORMAT: tl.constexpr, N: tl.constexpr, GROUP: tl.constexpr, TRANSPOSED: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, FP8: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """``quantize(silu(gate) * up)`` by blocks of GROUP columns; gate and up lie side by side, and q is contiguous.

    For a scale of a whole row, GROUP and BLOCK are the power of two that a row fits into.
    """
    await_predecessor(DEPENDENT)
    CHUNKS: tl.constexpr = (N + BLOCK - 1) // BLOCK
    GROUPS: tl.constexpr = (N + GROUP - 1) // GROUP
    WHOLE: tl.constexpr = ROWS == 1 and N % BLOCK == 0
    program = tl.program_id(0)
    row = (program // CHUNKS).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    group = program % CHUNKS * (BLOCK // GROUP) + tl.arange(0, BLOCK // GROUP)[None, :]
    columns = group[:, :, None] * GROUP + tl.arange(0, GROUP)[None, None, :]
    inside = (row[:, :, None] < rows) & (columns < N)
    gate_rows = x + row_starts(row, inner, stride, outer, 2 * N)[:, :, None]
    gates = load_tile(gate_rows + columns, inside, WHOLE, "").to(tl.float32)
    ups = load_tile(gate_rows + N + columns, inside, WHOLE, "").to(tl.float32)
    values = gates * share(gates, SILU, True) * ups
    scales = scale_of(tl.max(magnitude(values, FP8), 2), FORMAT)
    codes = quantized(values, scales[:, :, None], FORMAT, FP8)
    store_tile(q + row[:, :, None] * N + columns, codes, inside, WHOLE)
    places = scale_places(row, group, m, step, column, GROUPS, TRANSPOSED)
    store_tile(scale + places, scales, (row < rows) & (group < GROUPS), WHOLE)
