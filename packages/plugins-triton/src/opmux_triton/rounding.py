"""Rounding results to a tensor's dtype, once, at the end."""

import triton
import triton.language as tl

from opmux_triton import interpreter

INTERPRETED = tl.constexpr(interpreter.INTERPRETED)


@triton.jit
def rounded(values, dtype: tl.constexpr):
    """``values`` in ``dtype``, to the nearest, ties to even.

    Compiled code does this itself. The interpreter truncates when it converts float32 to bfloat16, and gets tiny
    numbers wrong, so there the bits are rounded by hand.
    """
    if INTERPRETED and dtype == tl.bfloat16 and values.dtype == tl.float32:
        bits = values.to(tl.uint32, bitcast=True)
        nearest = bits + (0x7FFF + ((bits >> 16) & 1))
        high = tl.where(values == values, nearest, bits | 0x400000) >> 16  # a NaN stays a NaN
        return high.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return values.to(dtype)
