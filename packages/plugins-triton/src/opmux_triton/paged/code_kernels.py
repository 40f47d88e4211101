"""What paged caches store as the factors of matrix products: real numbers as they are, 8-bit codes converted.

bfloat16 and float16 hold every value of the 8-bit formats, so converting is exact; scales go into the scores' factor
and into the sums of values.
"""

import triton
import triton.language as tl

from opmux_triton import interpreter
from opmux_triton.codes import largest_of
from opmux_triton.scaled_gemm.decoding import as_float16, is_multiplied

INTERPRETED = tl.constexpr(interpreter.INTERPRETED)

RAISED = tl.constexpr(15.0)
"""Weights in float16 are 2**15 of those in float32, which are 1 at most: none is lost above 2**-39."""


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
    elif FORMAT == "float8_e5m2" and dtype == tl.bfloat16:
        # Converted at once, Inf and NaN become finite: Triton multiplies the bits, read as a bfloat16, by a power of 2.
        values = stored.to(tl.float8e5, bitcast=True).to(tl.float16).to(dtype)
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
    if INTERPRETED:
        lower = values_of((stored & 0xFF).to(tl.uint8), tl.float16, FORMAT, "")
        upper = values_of((stored >> 8).to(tl.uint8), tl.float16, FORMAT, "")
    elif FORMAT == "float8_e4m3fn":
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
def as_halves(q, factor, cap, FORMAT: tl.constexpr, SOFTCAP: tl.constexpr):
    """(halves, new factor, fits): queries of another dtype as float16 times a power of 2, which the factor takes back.

    NVIDIA converts a pair of 8-bit floats to float16 in one instruction, to bfloat16 in four or five. ``fits`` says
    that every query is held exactly, which takes a range of 2**30 among them, and that no score, as an exponent of 2,
    passes 2**22: the weights, of up to `RAISED` bits above 1, then stay within float16 (see `scoring.online`).
    """
    wide = q.to(tl.float32)
    largest = tl.max(tl.max(tl.abs(wide), 1), 0)
    exponent = tl.minimum(tl.maximum(largest.to(tl.int32, bitcast=True) >> 23, 77), 205)
    power = ((268 - exponent) << 23).to(tl.float32, bitcast=True)
    inverse = ((exponent - 14) << 23).to(tl.float32, bitcast=True)
    halves = (wide * power).to(tl.float16)
    lost = tl.max(tl.max(tl.where(halves.to(tl.float32) * inverse == wide, 0, 1), 1), 0)
    if SOFTCAP:
        highest = cap
    else:
        highest = largest * tl.abs(factor) * (largest_of(FORMAT) * q.shape[1])
    return halves, factor * inverse, (lost == 0) & (highest < 4194304.0)


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
