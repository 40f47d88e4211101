"""Scales of blocks, and where they lie: what the kernels that quantise share."""

import triton
import triton.language as tl

from opmux_triton.codes import encoded, largest_of

SMALLEST_NORMAL = tl.constexpr(1.1754943508222875e-38)
RAISED = tl.constexpr(16777216.0)
"""2**24: lifts a subnormal scale, whose reciprocal would overflow, and the values that it divides."""


@triton.jit
def scale_of(largest, FORMAT: tl.constexpr):
    """The scale of blocks with these largest magnitudes; 1 for a block of zeros, of NaN, and where it underflows."""
    scale = tl.div_rn(largest, tl.full(largest.shape, largest_of(FORMAT), tl.float32))
    return tl.where(scale > 0.0, scale, 1.0)


@triton.jit
def quantized(values, scale, FORMAT: tl.constexpr, FP8: tl.constexpr):
    """``values / scale`` as codes; the scale has the values' shape, or broadcasts to it."""
    raised = tl.where(scale < SMALLEST_NORMAL, RAISED, 1.0)
    inverse = tl.div_rn(tl.full(scale.shape, 1.0, tl.float32), scale * raised)
    return encoded(values * raised * inverse, FORMAT, FP8)


@triton.jit
def scale_places(row, group, m, step, column, GROUPS: tl.constexpr, TRANSPOSED: tl.constexpr):
    """The offsets of scales by row of blocks and block in it: contiguous, or a column of blocks after the other.

    TRANSPOSED: ``m`` rows of blocks belong to a matrix, and ``column`` and ``step`` are the strides of columns of
    blocks and of matrices.
    """
    return row // m * step + row % m + group * column if TRANSPOSED else row * GROUPS + group
