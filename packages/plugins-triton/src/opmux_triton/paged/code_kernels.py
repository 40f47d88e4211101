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
        values = stored
    elif FORMAT == "int8":
        if INTERPRETED:  # the interpreter gets integers in bfloat16 wrong
            values = stored.to(tl.int8, bitcast=True).to(tl.float32).to(dtype)
        else:
            values = stored.to(tl.int8, bitcast=True).to(dtype)
    elif not is_multiplied(FORMAT, FP8):
        values = as_float16(stored, FORMAT).to(dtype)
    elif FORMAT == "float8_e4m3fn":
        values = stored.to(tl.float8e4nv, bitcast=True).to(dtype)
    elif FORMAT == "float8_e5m2":
        values = stored.to(tl.float8e5, bitcast=True).to(dtype)
    elif FORMAT == "float8_e4m3fnuz":
        values = stored.to(tl.float8e4b8, bitcast=True).to(dtype)
    else:
        values = stored.to(tl.float8e5b16, bitcast=True).to(dtype)
    return values


@triton.jit
def pairs(address):
    """A pointer to bytes as one to two of them, which lie in its lower and its upper half."""
    return address.to(tl.pointer_type(tl.uint16), bitcast=True)


@triton.jit
def of_pairs(stored, dtype: tl.constexpr, FORMAT: tl.constexpr):
    """(lower, upper): the values of loaded pairs of 8-bit floats, on NVIDIA from sm_89 on.

    The matrix units take the rows of a sum transposed, and shared memory transposes 16 bits, not 8: these would be read
    from there byte by byte. Two pairs of the same columns share a register, as their values do.
    """
    if FORMAT == "float8_e4m3fn":
        lower, upper = tl.inline_asm_elementwise(
            "{ .reg .b32 both; .reg .b16 low, high; prmt.b32 both, $2, 0, 0x3120; mov.b32 {low, high}, both; "
            "cvt.rn.f16x2.e4m3x2 $0, low; cvt.rn.f16x2.e4m3x2 $1, high; }",
            "=r,=r,r", [stored], dtype=(tl.float16, tl.float16), is_pure=True, pack=2,
        )  # fmt: skip
    else:
        lower, upper = tl.inline_asm_elementwise(
            "{ .reg .b32 both; .reg .b16 low, high; prmt.b32 both, $2, 0, 0x3120; mov.b32 {low, high}, both; "
            "cvt.rn.f16x2.e5m2x2 $0, low; cvt.rn.f16x2.e5m2x2 $1, high; }",
            "=r,=r,r", [stored], dtype=(tl.float16, tl.float16), is_pure=True, pack=2,
        )  # fmt: skip
    return lower.to(dtype), upper.to(dtype)


@triton.jit
def beside(even, odd):
    """Columns of two tiles by turns."""
    return tl.reshape(tl.join(even, odd), [even.shape[0], 2 * even.shape[1]])


@triton.jit
def scaled(number, scale, stride, kv_head):
    """A number times the scale of a kv head, where there is one."""
    if scale is not None:
        number = number * tl.load(scale + kv_head * stride)
    return number
