"""8-bit codes as the factors of a matrix product: the codes themselves where an arch multiplies them, else float16.

float16 holds every value of the four 8-bit floats, so that a product of converted codes is exact before it is summed.
"""

import triton
import triton.language as tl

from opmux_triton import interpreter

INTERPRETED = tl.constexpr(interpreter.INTERPRETED)


@triton.constexpr_function
def is_multiplied(form, flavour):
    """Whether an arch that knows this flavour of 8-bit floats multiplies matrices of this format itself."""
    return form == "int8" or (flavour != "" and form.endswith("fnuz") == (flavour == "fnuz"))


@triton.jit
def as_float16(codes, FORMAT: tl.constexpr):
    """Codes of an 8-bit float, as bytes, in float16: by integer arithmetic, for archs that do not know the format."""
    bits = codes.to(tl.int32)
    size = bits & 0x7F
    if FORMAT == "float8_e5m2":  # the upper half of a float16
        magnitude = (size << 8).to(tl.uint16).to(tl.float16, bitcast=True)
        nan = size > 0x7F
    elif FORMAT == "float8_e5m2fnuz":
        # The exponent's bias is 16, that of float16 is 15: one less, and two binades of subnormals.
        magnitude = tl.where(size < 8, size << 7, (size - 4) << 8).to(tl.uint16).to(tl.float16, bitcast=True)
        nan = bits == 0x80
    elif FORMAT == "float8_e4m3fnuz":
        magnitude = (size << 7).to(tl.uint16).to(tl.float16, bitcast=True) * 128.0
        nan = bits == 0x80
    else:
        magnitude = (size << 7).to(tl.uint16).to(tl.float16, bitcast=True) * 256.0
        nan = size == 0x7F
    sign = ((bits & 0x80) << 8) | tl.where(nan, 0x7E00, 0)
    return (magnitude.to(tl.int16, bitcast=True) | sign.to(tl.int16)).to(tl.float16, bitcast=True)


@triton.jit
def factors(codes, FORMAT: tl.constexpr, FP8: tl.constexpr):
    """Codes, read through a pointer that `typed` made, as factors."""
    if FORMAT == "int8" or is_multiplied(FORMAT, FP8):
        found = codes
    elif INTERPRETED:  # the interpreter multiplies float32 best
        found = as_float16(codes, FORMAT).to(tl.float32)
    else:
        found = as_float16(codes, FORMAT)
    return found


@triton.jit
def typed(pointer, FORMAT: tl.constexpr, FP8: tl.constexpr):
    """A pointer to bytes as one to what the arch multiplies: a load then goes to the matrix units as it is."""
    if FORMAT == "int8":
        found = pointer.to(tl.pointer_type(tl.int8), bitcast=True)
    elif not is_multiplied(FORMAT, FP8):
        found = pointer
    elif FORMAT == "float8_e4m3fn":
        found = pointer.to(tl.pointer_type(tl.float8e4nv), bitcast=True)
    elif FORMAT == "float8_e5m2":
        found = pointer.to(tl.pointer_type(tl.float8e5), bitcast=True)
    elif FORMAT == "float8_e4m3fnuz":
        found = pointer.to(tl.pointer_type(tl.float8e4b8), bitcast=True)
    else:
        found = pointer.to(tl.pointer_type(tl.float8e5b16), bitcast=True)
    return found
