"""Tiles as operands of a matrix instruction: real numbers as they are, codes as the arch multiplies them."""

import triton
import triton.language as tl

from opmux_triton import interpreter

INTERPRETED = tl.constexpr(interpreter.INTERPRETED)


@triton.constexpr_function
def _native(form, flavour):
    """What Triton calls an 8-bit float that the arch multiplies itself; None for others."""
    of = {
        "ocp": {"float8_e4m3fn": tl.float8e4nv, "float8_e5m2": tl.float8e5},
        "fnuz": {"float8_e4m3fnuz": tl.float8e4b8, "float8_e5m2fnuz": tl.float8e5b16},
    }
    return of.get(flavour, {}).get(form)


@triton.constexpr_function
def _bias(form):
    return {"float8_e4m3fn": 7, "float8_e4m3fnuz": 8, "float8_e5m2": 15, "float8_e5m2fnuz": 16}[form]


@triton.constexpr_function
def _mantissa(form):
    return 3 if "e4m3" in form else 2


@triton.constexpr_function
def _is_fnuz(form):
    return form.endswith("fnuz")


@triton.constexpr_function
def _is_float8(form):
    return form.startswith("float8")


@triton.jit
def values_of(codes, FORMAT: tl.constexpr):
    """8-bit floats, given as bytes, in float32, by integer arithmetic: exact, NaN and infinities included."""
    MANTISSA: tl.constexpr = _mantissa(FORMAT)
    BIAS: tl.constexpr = _bias(FORMAT)
    SMALLEST: tl.constexpr = 2.0 ** (1 - BIAS - MANTISSA)
    bits = codes.to(tl.int32)
    size = bits & 0x7F
    normal = ((size << (23 - MANTISSA)) + ((127 - BIAS) << 23)).to(tl.float32, bitcast=True)
    found = tl.where(size < (1 << MANTISSA), size.to(tl.float32) * SMALLEST, normal)
    if FORMAT == "float8_e4m3fn":
        found = tl.where(size == 0x7F, float("nan"), found)
    elif FORMAT == "float8_e5m2":
        found = tl.where(size == 0x7C, float("inf"), tl.where(size > 0x7C, float("nan"), found))
    found = tl.where(bits >= 0x80, -found, found)
    if _is_fnuz(FORMAT):
        found = tl.where(bits == 0x80, float("nan"), found)
    return found


@triton.jit
def operand(tile, FORMAT: tl.constexpr, FP8: tl.constexpr):
    """A tile as an operand: codes that the arch does not multiply become bfloat16, which holds each of them.

    The interpreter multiplies 16-bit and 8-bit operands wrongly: they are float32 there.
    """
    if not _is_float8(FORMAT) or tile.dtype.is_fp8():
        if INTERPRETED:
            tile = tile.to(tl.float32)
    elif INTERPRETED:
        tile = values_of(tile, FORMAT)
    elif _native(FORMAT, FP8) is not None:
        tile = tile.to(_native(FORMAT, FP8), bitcast=True)
    else:
        tile = values_of(tile, FORMAT).to(tl.bfloat16)
    return tile
