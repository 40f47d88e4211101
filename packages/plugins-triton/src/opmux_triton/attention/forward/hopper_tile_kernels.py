"""Which tiles a program of the Hopper kernel computes, and which blocks of keys each of them needs."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from opmux_triton.attention.forward import kernels
from opmux_triton.hopper.order import place_of
from opmux_triton.scoring import masks

_key_limits = gluon.jit(masks.key_limits.fn)
_tile_of = gluon.jit(kernels.tile_of.fn)


@gluon.jit
def visited_tile(visit, tiles, pairs, section, LONGEST_FIRST: gl.constexpr):
    """(tile, pair) of the program's ``visit``-th tile, see `tile_of`."""
    return _tile_of(place_of(visit), tiles, pairs, section, LONGEST_FIRST)


@gluon.jit
def block_ranges(
    tile, queries, keys, left, right,
    ROWS: gl.constexpr, BLOCK: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr,
):  # fmt: skip
    """(masked, blocks, begin, full_begin, full_end, lefts): how many blocks, masked and in all, and where they are.

    There is at least one block, entirely masked, so that a tile without keys is no special case.
    """
    begin, full_begin, full_end, end = _key_limits(tile * ROWS, queries, keys, left, right, ROWS, BLOCK, LEFT, RIGHT)
    most = (end + BLOCK - 1) // BLOCK * BLOCK
    lefts = (gl.minimum(full_begin, most) - begin) // BLOCK
    rights = (gl.maximum(most, full_end) - full_end) // BLOCK
    masked = lefts + rights
    blocks = masked + (full_end - full_begin) // BLOCK
    masked = gl.where(blocks == 0, 1, masked)
    blocks = gl.maximum(blocks, 1)
    return masked, blocks, begin, full_begin, full_end, lefts


@gluon.jit
def block_start(index, ranges, BLOCK: gl.constexpr):
    """The first key of a block: the masked blocks left of the full ones come first, then those right of them."""
    masked, _blocks, begin, full_begin, full_end, lefts = ranges
    start = full_begin + (index - masked) * BLOCK
    if index < masked:
        start = full_end + (index - lefts) * BLOCK
    if index < lefts:
        start = begin + index * BLOCK
    return start
