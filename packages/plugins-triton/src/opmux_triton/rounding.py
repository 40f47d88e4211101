"""Rounding once, at the end, to a tensor's dtype."""

import triton
import triton.language as tl

from opmux_triton import interpreter

INTERPRETED = tl.constexpr(interpreter.INTERPRETED)


@triton.jit
def rounded(values, dtype: tl.constexpr):
    """``values`` in ``dtype``, to the nearest, ties to even.

    Compiled code does that by itself. The interpreter cuts float32 off where it makes bfloat16 of it, and gets tiny
    numbers wrong, so there the bits are rounded by hand.
    """
    if INTERPRETED and dtype == tl.bfloat16 and values.dtype == tl.float32:
        bits = values.to(tl.uint32, bitcast=True)
        nearest = bits + (0x7FFF + ((bits >> 16) & 1))
        high = tl.where(values == values, nearest, bits | 0x400000) >> 16  # a NaN stays one
        return high.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return values.to(dtype)
