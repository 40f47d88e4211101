"""Which tiles a program of a persistent Gluon kernel computes, and in which order."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def place_of(visit):
    """The place of a program's ``visit``-th tile among all tiles.

    Programs take turns, in the opposite order every other time: the one that had the longest tile gets the shortest
    next.
    """
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
