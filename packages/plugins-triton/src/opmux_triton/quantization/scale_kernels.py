"""Kernels of `convert_scale`, `pack_scale` and `unpack_scale`.

They work on the bits of the scales: float32 as int32, float8_e8m0fnu as uint8, four of these in an int32.
"""

import triton
import triton.language as tl

from opmux_triton.dependent_launch import await_predecessor

_FRACTION = tl.constexpr(0x7FFFFF)
_NAN = tl.constexpr(0x7FC00000)
_SMALLEST = tl.constexpr(0x400000)
"""2**-127 in float32, a subnormal number: code 0 of float8_e8m0fnu."""


@triton.jit
def _code_of(bits):
    """The bits of float32 as a code of float8_e8m0fnu: rounded up; 255 for what is no finite number of at least 0."""
    exponent, fraction = (bits >> 23) & 0xFF, bits & _FRACTION
    above = tl.where(exponent == 0, fraction > _SMALLEST, fraction > 0).to(tl.int32)
    code = tl.minimum(exponent + above, 254)
    negative = (bits < 0) & ((bits & 0x7FFFFFFF) != 0)
    return tl.where(negative | (exponent == 255), 255, code)


@triton.jit
def _bits_of(code):
    """A code of float8_e8m0fnu as the bits of float32."""
    return tl.where(code == 255, _NAN, tl.where(code == 0, _SMALLEST, code << 23))


@triton.jit
def _tile(padded, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The matrix, the rows and the columns of this program."""
    chunks = tl.cdiv(padded, ROWS)
    matrix = (tl.program_id(0) // chunks).to(tl.int64)
    row = tl.program_id(0) % chunks * ROWS + tl.arange(0, ROWS)[:, None]
    return matrix, row, tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]


@triton.jit
def _put(out, values, matrix, row, column, rows, columns, padded, TRANSPOSED: tl.constexpr):
    """Store a tile; what is past ``rows`` is 0."""
    values = tl.where(row < rows, values, 0)
    place = matrix * padded * columns + (column.to(tl.int64) * padded + row if TRANSPOSED else row * columns + column)
    tl.store(out + place, values.to(out.dtype.element_ty), mask=(row < padded) & (column < columns))


@triton.jit(do_not_specialize=["rows", "columns", "padded", "step"])
def convert_scale(
    scale, out, rows, columns, padded, step, row_step, column_step,
    FROM_CODES: tl.constexpr, TO_CODES: tl.constexpr, TRANSPOSED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A tile of one matrix of scales. TRANSPOSED: ``padded`` rows of out follow one another, zero from ``rows`` on."""
    await_predecessor(DEPENDENT)
    matrix, row, column = _tile(padded, ROWS, COLUMNS)
    read = scale + matrix * step + row.to(tl.int64) * row_step + column.to(tl.int64) * column_step
    values = tl.load(read, mask=(row < rows) & (column < columns), other=0).to(tl.int32)
    if FROM_CODES and not TO_CODES:
        values = _bits_of(values)
    if TO_CODES and not FROM_CODES:
        values = _code_of(values)
    _put(out, values, matrix, row, column, rows, columns, padded, TRANSPOSED)


@triton.jit(do_not_specialize=["rows", "blocks", "columns", "padded", "step"])
def pack_scale(
    scale, out, rows, blocks, columns, padded, step, row_step, column_step,
    FROM_CODES: tl.constexpr, TRANSPOSED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A tile of one matrix of integers, ``columns`` in a row, from ``blocks`` scales in a row; the rest as above."""
    await_predecessor(DEPENDENT)
    matrix, row, column = _tile(padded, ROWS, COLUMNS)
    read = scale + matrix * step + row.to(tl.int64) * row_step
    words = tl.zeros((ROWS, COLUMNS), tl.int32)
    for place in tl.static_range(4):
        block = column * 4 + place
        there = (row < rows) & (block < blocks)
        code = tl.load(read + block.to(tl.int64) * column_step, mask=there, other=0).to(tl.int32)
        if not FROM_CODES:
            code = _code_of(code)
        words = words | (code << (8 * place))
    _put(out, words, matrix, row, column, rows, columns, padded, TRANSPOSED)


@triton.jit(do_not_specialize=["rows", "columns", "padded", "step"])
def unpack_scale(
    packed, out, rows, columns, padded, step, row_step, column_step,
    TO_CODES: tl.constexpr, TRANSPOSED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A tile of one matrix of scales, ``columns`` in a row; each integer of packed has four of them."""
    await_predecessor(DEPENDENT)
    matrix, row, column = _tile(padded, ROWS, COLUMNS)
    read = packed + matrix * step + row.to(tl.int64) * row_step + (column // 4).to(tl.int64) * column_step
    words = tl.load(read, mask=(row < rows) & (column < columns), other=0)
    values = (words >> (8 * (column % 4))) & 0xFF
    if not TO_CODES:
        values = _bits_of(values)
    _put(out, values, matrix, row, column, rows, columns, padded, TRANSPOSED)
