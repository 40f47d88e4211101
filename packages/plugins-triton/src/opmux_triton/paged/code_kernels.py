"""What paged caches store as the factors of matrix products: real numbers as they are, 8-bit codes converted.

bfloat16 and float16 hold every value of the 8-bit formats, so converting is exact; scales go into the scores' factor
and into the sums of values.
"""

import triton
import triton.language as tl

from opmux_triton import interpreter
from opmux_triton.scaled_gemm.decoding import as_float16, is_multiplied

INTERPRETED = tl.constexpr(interpreter.INTERPRETED)


@triton.jit
def values_of(stored, dtype: tl.constexpr, FORMAT: tl.constexpr, FP8: tl.constexpr):
    """Loaded bytes of an 8-bit FORMAT as values in ``dtype``; without a FORMAT, what was loaded."""
    if FORMAT == "":
        return stored
    if FORMAT == "int8":
        if INTERPRETED:  # the interpreter gets integers in bfloat16 wrong
            return stored.to(tl.int8, bitcast=True).to(tl.float32).to(dtype)
        return stored.to(tl.int8, bitcast=True).to(dtype)
    if not is_multiplied(FORMAT, FP8):
        return as_float16(stored, FORMAT).to(dtype)
    if FORMAT == "float8_e4m3fn":
        return stored.to(tl.float8e4nv, bitcast=True).to(dtype)
    if FORMAT == "float8_e5m2":
        return stored.to(tl.float8e5, bitcast=True).to(dtype)
    if FORMAT == "float8_e4m3fnuz":
        return stored.to(tl.float8e4b8, bitcast=True).to(dtype)
    return stored.to(tl.float8e5b16, bitcast=True).to(dtype)


@triton.jit
def scaled(number, scale, stride, kv_head):
    """A number times the scale of a kv head, where there is one."""
    if scale is not None:
        number = number * tl.load(scale + kv_head * stride)
    return number
