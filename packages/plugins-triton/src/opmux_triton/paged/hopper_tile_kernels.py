"""Which tiles of queries a program of the Gluon prefill computes, and which blocks of keys each needs."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from opmux_triton.hopper.order import place_of
from opmux_triton.scoring import masks

_key_limits = gluon.jit(masks.key_limits.fn)


@gluon.jit
def tile_at(
    visit, offsets, lengths, offsets_stride, lengths_stride, heads, batch, steps, places, fewest, ROWS: gl.constexpr
):  # fmt: skip
    """(sequence, tile, head, first token, queries, keys, live) of the program's ``visit``-th tile.

    Sequence ``b`` has its tiles from place ``(offsets[b] + b * (ROWS - 1)) // ROWS`` on; between two there may be a
    place that is no tile. ``steps`` halvings of the batch leave one sequence. Later tiles, which see more keys, come
    first.
    """
    index = place_of(visit)
    head = index % heads
    place = places - 1 - index // heads
    low = 0
    high = batch - 1
    for _step in range(steps):
        middle = (low + high + 1) // 2
        before = (gl.load(offsets + middle * offsets_stride) + middle * (ROWS - 1)) // ROWS <= place
        low = gl.where(before, middle, low)
        high = gl.where(before, high, middle - 1)
    sequence = gl.maximum(low, 0)
    first = gl.load(offsets + sequence * offsets_stride)
    queries = gl.load(offsets + (sequence + 1) * offsets_stride) - first
    keys = gl.load(lengths + sequence * lengths_stride)
    tile = place - (first + sequence * (ROWS - 1)) // ROWS
    return sequence, tile, head, first, queries, keys, (queries > fewest) & (tile * ROWS < queries) & (keys > 0)


@gluon.jit
def block_ranges(
    tile, queries, keys, left, right,
    ROWS: gl.constexpr, BLOCK: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr,
):  # fmt: skip
    """(masked, blocks, rights, begin, full_begin, most): how many blocks, masked and in all, and where they are.

    Those of [begin, full_begin) and the last ``rights`` before ``most`` need a mask. At least one block, so that a
    tile without keys needs no case of its own.
    """
    begin, full_begin, full_end, end = _key_limits(tile * ROWS, queries, keys, left, right, ROWS, BLOCK, LEFT, RIGHT)
    most = (end + BLOCK - 1) // BLOCK * BLOCK
    lefts = (gl.minimum(full_begin, most) - begin) // BLOCK
    rights = (gl.maximum(most, full_end) - full_end) // BLOCK
    masked = lefts + rights
    blocks = gl.maximum(masked + (full_end - full_begin) // BLOCK, 1)
    return masked, blocks, rights, begin, full_begin, most


@gluon.jit
def block_start(index, ranges, BLOCK: gl.constexpr):
    """The first key of a block: the masked ones first, from the last one down, so that past the end is block 0's."""
    masked, _blocks, rights, begin, full_begin, most = ranges
    start = full_begin + (index - masked) * BLOCK
    if index < masked:
        start = begin + (masked - 1 - index) * BLOCK
    if index < rights:
        start = most - (index + 1) * BLOCK
    return start
