"""Which tiles a program of the Gluon kernel computes, and in which order."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from opmux_triton.attention import forward_kernels

_tile_of = gluon.jit(forward_kernels.tile_of.fn)


@gluon.jit
def place_of(visit):
    """Programs take turns, and every other time in the opposite order: the first one gets the longest tile first."""
    count = gl.num_programs(0)
    program = gl.program_id(0)
    if visit & 1:
        program = count - 1 - program
    return visit * count + program


@gluon.jit
def visits(tiles):
    """How many of all tiles this program computes."""
    whole = tiles // gl.num_programs(0)
    return gl.where(place_of(whole) < tiles, whole + 1, whole)


@gluon.jit
def visited_tile(visit, tiles, pairs, section, LONGEST_FIRST: gl.constexpr):
    """(tile, pair) of the program's ``visit``-th tile, see `tile_of`."""
    return _tile_of(place_of(visit), tiles, pairs, section, LONGEST_FIRST)
