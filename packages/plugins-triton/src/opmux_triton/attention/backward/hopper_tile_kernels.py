"""Which keys a program of the Hopper kernels owns, and which blocks of queries they need."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from opmux_triton.scoring import masks

_limits = gluon.jit(masks.key_limits.fn)


@gluon.jit
def place_of(program, tiles, pairs, section):
    """(tile, pair) of a program: ``section`` pairs at a time, of each the first keys first."""
    block = program // (tiles * section)
    within = program % (tiles * section)
    present = gl.minimum(section, pairs - block * section)
    return within // present, block * section + within % present


@gluon.jit
def shared_place_of(program, tiles, pairs, shares, section):
    """(tile, pair, share) of a program, where ``shares`` programs divide the query blocks of a tile among them.

    ``section`` counts shares of pairs.
    """
    tile, place = place_of(program, tiles, pairs * shares, section)
    return tile, place // shares, place % shares


@gluon.jit
def share_of(steps, share, shares):
    """(first, count) of the steps of a share: all of them if there is only one."""
    first = steps * share // shares
    return first, steps * (share + 1) // shares - first


@gluon.jit
def query_blocks(
    tile, queries, keys, left, right,
    KEYS: gl.constexpr, ROWS: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr,
):  # fmt: skip
    """(begin, before, masked, full_begin, full_end, count): ``masked`` blocks, ``before`` of them left of the full."""
    start = tile * KEYS
    begin, full_begin, full_end, end = _limits(start, keys, queries, right, left, KEYS, ROWS, RIGHT, LEFT)
    if start + KEYS > keys:  # products of absent keys are not finite everywhere
        full_begin = begin
        full_end = begin
    before = (full_begin - begin) // ROWS
    masked = before + (end - full_end + ROWS - 1) // ROWS
    return begin, before, masked, full_begin, full_end, (full_end - full_begin) // ROWS


@gluon.jit
def masked_start(place, begin, before, full_end, ROWS: gl.constexpr):
    """The first query of one of the blocks that need a mask."""
    start = begin + place * ROWS
    if place >= before:
        start = full_end + (place - before) * ROWS
    return start
