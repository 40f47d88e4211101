"""Values as codes of 8-bit formats, and codes as values: 8-bit floats in the OCP and the fnuz flavours, and int8.

An arch converts the flavours that its instructions know; the others are converted by integer arithmetic, and so is
everything under the interpreter, which does not round 8-bit floats to the nearest.
"""

import triton
import triton.language as tl

from opmux_triton import interpreter
from opmux_triton.archs import SATURATING

INTERPRETED = tl.constexpr(interpreter.INTERPRETED)

ROUNDING_MAGIC = tl.constexpr(12582912.0)
"""1.5 * 2**23: added to a small number, it leaves the nearest integer in the mantissa, ties to even."""


@triton.constexpr_function
def ignores_nan(flavour):
    """Whether the largest of some numbers is that of those which are not NaN, as NVIDIA's maximum of two is."""
    return flavour.endswith(SATURATING)


@triton.constexpr_function
def largest_of(form):
    """The largest value that is stored in a format, by the name of its dtype; int8 is symmetric."""
    return {"float8_e4m3fn": 448.0, "float8_e4m3fnuz": 240.0, "int8": 127.0}.get(form, 57344.0)


@triton.constexpr_function
def _is_native(form, flavour):
    """Whether an arch that knows this flavour converts between this format and float32 itself."""
    return form != "int8" and flavour != "" and form.endswith("fnuz") == (flavour == "fnuz")


@triton.constexpr_function
def _saturates(form, flavour):
    """Whether the conversion to a format clamps by itself, infinities too, and keeps NaN."""
    return form == "float8_e4m3fn" and flavour.endswith(SATURATING)


@triton.jit
def without_nan(values):
    """``values`` with 0 for NaN."""
    return tl.where(values == values, values, 0.0)


@triton.jit
def magnitude(values, FP8: tl.constexpr):
    """The absolute values, to take the largest of: a NaN does not count."""
    if not ignores_nan(FP8):
        values = without_nan(values)
    return tl.abs(values)


@triton.jit
def _encoded_by_hand(values, BIAS: tl.constexpr, MANTISSA: tl.constexpr, FNUZ: tl.constexpr):
    """Codes of an 8-bit float with this exponent bias and this many bits of mantissa; the values are within its range.

    A float32 has 23 bits of mantissa, and its exponent a bias of 127.
    """
    SHIFT: tl.constexpr = 23 - MANTISSA
    # Added to a number below the smallest normal one, its last bit is worth the format's smallest step.
    MAGIC_EXPONENT: tl.constexpr = 23 + 1 - BIAS - MANTISSA
    MAGIC: tl.constexpr = (MAGIC_EXPONENT + 127) << 23
    bits = values.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    odd = (size >> SHIFT) & 1
    normal = ((size + ((1 << (SHIFT - 1)) - 1) + odd) >> SHIFT) - ((127 - BIAS) << MANTISSA)
    magic = tl.full(size.shape, MAGIC, tl.int32).to(tl.float32, bitcast=True)
    tiny = (size.to(tl.float32, bitcast=True) + magic).to(tl.int32, bitcast=True) - MAGIC
    code = tl.where(size < ((128 - BIAS) << 23), tiny, normal)
    sign = (bits >> 24) & 0x80
    if FNUZ:  # there is no negative zero: its code is NaN
        code = tl.where(values == values, tl.where(code == 0, 0, code | sign), 0x80)
    else:
        code = tl.where(values == values, code, 0x7F) | sign
    return code.to(tl.uint8)


@triton.jit
def encoded(values, FORMAT: tl.constexpr, FP8: tl.constexpr):
    """float32 values as 8-bit codes: to the nearest, ties to even, saturating; NaN stays NaN, and is 0 in int8.

    Codes are uint8: Triton refuses pointers to the 8-bit floats that an arch does not know.
    """
    LARGEST: tl.constexpr = largest_of(FORMAT)
    if FORMAT == "int8":
        within = tl.clamp(without_nan(values), -LARGEST, LARGEST)
        codes = (within + ROUNDING_MAGIC).to(tl.int32, bitcast=True).to(tl.uint8)
    else:
        if _saturates(FORMAT, FP8):
            within = values
        else:
            within = tl.clamp(values, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
        if FORMAT == "float8_e4m3fn":
            if _is_native(FORMAT, FP8):
                codes = within.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
            else:
                codes = _encoded_by_hand(within, 7, 3, False)
        elif FORMAT == "float8_e4m3fnuz":
            if _is_native(FORMAT, FP8):
                codes = within.to(tl.float8e4b8).to(tl.uint8, bitcast=True)
            else:
                codes = _encoded_by_hand(within, 8, 3, True)
        elif FORMAT == "float8_e5m2":
            if _is_native(FORMAT, FP8):
                codes = within.to(tl.float8e5).to(tl.uint8, bitcast=True)
            else:
                codes = _encoded_by_hand(within, 15, 2, False)
        elif _is_native(FORMAT, FP8):
            codes = within.to(tl.float8e5b16).to(tl.uint8, bitcast=True)
        else:
            codes = _encoded_by_hand(within, 16, 2, True)
    return codes
