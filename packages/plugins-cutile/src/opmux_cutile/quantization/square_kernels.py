"""Quantisation in CUDA Tile with one scale for blocks of 128 x 128 or for a matrix, in float32.

A block of 128 x 128 is read twice by the block that has it, a few rows at a time; the second time it is in the cache.
Of a matrix, blocks first find the largest magnitude of their tiles each, and a second kernel the largest of these.
"""

import cuda.tile as ct

SIDE = 128
TINY, RAISE = 2.0**-100, 2.0**64
"""Scales below the first have a reciprocal that may be infinite, so they and what they scale are raised before."""


def largest_of(x, batch, m, n, ROWS: ct.Constant[int], COLUMNS: ct.Constant[int]):
    """The largest magnitude of a tile, which leaves NaN out, as a tile of one element."""
    value = ct.load(x, (batch, m, n), (1, ROWS, COLUMNS), padding_mode=ct.PaddingMode.ZERO)
    size = ct.reshape(ct.abs(value.astype(ct.float32)), (1, ROWS * COLUMNS))
    return ct.maximum(ct.max(size, axis=1, keepdims=True), 0.0)


def unit_of(largest, LARGEST: ct.Constant[float]):
    """The scale of a block with a largest magnitude."""
    unit = largest * (1.0 / LARGEST)
    return ct.where(unit == 0.0, 1.0, unit)


def write_codes(x, q, unit, batch, m, n, ROWS: ct.Constant[int], COLUMNS: ct.Constant[int],
                INTEGER: ct.Constant[bool]):  # fmt: skip
    """Write the codes of a tile. Codes of int8 are rounded by adding and taking away 1.5 * 2**23."""
    value = ct.load(x, (batch, m, n), (1, ROWS, COLUMNS), padding_mode=ct.PaddingMode.ZERO)
    up = ct.where(unit < TINY, RAISE, 1.0)
    inverse = ct.truediv(1.0, unit * up, rounding_mode=ct.RoundingMode.APPROX, flush_to_zero=True)
    code = ct.reshape(value.astype(ct.float32), (ROWS, COLUMNS)) * up * inverse
    if INTEGER:
        code = ct.where(ct.isnan(code), 0.0, code)
        code = (code + 12582912.0) - 12582912.0
    ct.store(q, (batch, m, n), ct.reshape(code.astype(q.dtype), (1, ROWS, COLUMNS)))


@ct.kernel
def quantize_squares(
    x, q, scale,
    ROWS: ct.Constant[int], LARGEST: ct.Constant[float], INTEGER: ct.Constant[bool],
):  # fmt: skip
    """Codes and scales of blocks of 128 x 128, ROWS rows at a time."""
    n, block, batch = ct.bid(0), ct.bid(1), ct.bid(2)
    first = block * (SIDE // ROWS)
    end = min(first + SIDE // ROWS, ct.cdiv(x.shape[1], ROWS))
    largest = ct.zeros((1, 1), dtype=ct.float32)
    for m in range(first, end):
        largest = ct.maximum(largest, largest_of(x, batch, m, n, ROWS, SIDE))
    unit = unit_of(largest, LARGEST)
    for m in range(first, end):
        write_codes(x, q, unit, batch, m, n, ROWS, SIDE, INTEGER)
    ct.scatter(scale, (batch, block, n), ct.reshape(unit, (1,)).item())


@ct.kernel
def find_largest(x, parts, ROWS: ct.Constant[int], COLUMNS: ct.Constant[int]):
    """The largest magnitude of the tiles of each block: tiles of a matrix are dealt out in turns."""
    batch = ct.bid(1)
    across = ct.cdiv(x.shape[2], COLUMNS)
    largest = ct.zeros((1, 1), dtype=ct.float32)
    for tile in range(ct.bid(0), ct.cdiv(x.shape[1], ROWS) * across, ct.num_blocks(0)):
        largest = ct.maximum(largest, largest_of(x, batch, tile // across, tile % across, ROWS, COLUMNS))
    ct.scatter(parts, (batch, ct.bid(0)), ct.reshape(largest, (1,)).item())


@ct.kernel
def quantize_matrix(
    x, q, scale, parts,
    ROWS: ct.Constant[int], COLUMNS: ct.Constant[int], PARTS: ct.Constant[int], LARGEST: ct.Constant[float],
    INTEGER: ct.Constant[bool],
):  # fmt: skip
    """Codes and the scale of a matrix, whose largest magnitude is that of `parts`."""
    batch = ct.bid(1)
    across = ct.cdiv(x.shape[2], COLUMNS)
    found = ct.gather(parts, (batch, ct.arange(PARTS, dtype=ct.int32)))
    unit = unit_of(ct.reshape(ct.max(found, axis=0), (1, 1)), LARGEST)
    for tile in range(ct.bid(0), ct.cdiv(x.shape[1], ROWS) * across, ct.num_blocks(0)):
        write_codes(x, q, unit, batch, tile // across, tile % across, ROWS, COLUMNS, INTEGER)
    if ct.bid(0) == 0:
        ct.scatter(scale, (batch, 0, 0), ct.reshape(unit, (1,)).item())
