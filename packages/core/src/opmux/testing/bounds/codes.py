"""Bounds of quantised values and of their scales.

Codes are compared with the exact values that they are rounded from, divided by the target's own scale. In an op that
computes a value and quantises it, that value has the error of the op before, and so has the largest one of a block.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from opmux.testing.bounds.activations import gated_allowance
from opmux.testing.bounds.model import SCALE_ULPS, Allowance, Given, derives
from opmux.testing.bounds.norms import norm_allowance
from opmux.testing.oracle import scale_of_elements

_QUOTIENT = 4.0
"""A code may be rounded from its value times the reciprocal of the scale: three roundings, and one more."""


@derives("quantize")
def _quantize(given: Given) -> list[Allowance]:
    return [Allowance(_QUOTIENT * given.expected[0].abs()), Allowance(ulps=SCALE_ULPS)]


@derives("static_quantize")
def _static_quantize(given: Given) -> list[Allowance]:
    """A quotient by a power of two is exact, however it is computed, and so is the choice between two codes."""
    scale = scale_of_elements(given["scale"], *given["x"].shape[-2:])
    exact = torch.frexp(scale).mantissa == 0.5
    return [Allowance(torch.where(exact, 0.0, _QUOTIENT * given.expected[0].abs()))]


@derives("dequantize")
def _dequantize(given: Given) -> list[Allowance]:
    """One product, rounded in float32 before it is rounded to the output."""
    return [Allowance(given.expected[0].abs())]


@derives("convert_scale", "pack_scale", "unpack_scale")
def _convert_scale(given: Given) -> list[Allowance]:
    return [Allowance()]


@derives("convert_fp8")
def _convert_fp8(given: Given) -> list[Allowance]:
    """A conversion is exact but for the rounding to the output, and so is a factor of two."""
    return [Allowance(), Allowance()]


@derives("rms_norm_quantize")
def _rms_norm_quantize(given: Given) -> list[Allowance]:
    return _of_values(given, norm_allowance(given, given["x"], centre=False))


@derives("add_rms_norm_quantize")
def _add_rms_norm_quantize(given: Given) -> list[Allowance]:
    total = given["x"] + given["residual"]
    return [*_of_values(given, norm_allowance(given, total, centre=False)), Allowance(total.abs())]


@derives("silu_and_mul_quantize")
def _silu_and_mul_quantize(given: Given) -> list[Allowance]:
    return _of_values(given, gated_allowance(given))


def _of_values(given: Given, values: Allowance) -> list[Allowance]:
    """The allowances of the codes and of the scales of values with this allowance."""
    error = torch.as_tensor(values.magnitude, dtype=torch.float64)
    dtype, (rows, columns) = given.options["dtype"], given.options["block"]
    worst = _largest_of_blocks(error, rows, columns)
    scale = given.expected[1]
    divisors = scale
    for dim, length in zip((-2, -1), (rows, columns), strict=True):
        size = error.shape[dim]
        divisors = divisors.repeat_interleave(size if length == -1 else length, dim).narrow(dim, 0, size)
    quotient = torch.where(divisors > 0, error / divisors, 0.0)
    return [
        Allowance(_QUOTIENT * given.expected[0].abs() + quotient),
        Allowance(worst / (torch.finfo(dtype).max if dtype.is_floating_point else 127.0), ulps=SCALE_ULPS),
    ]


def _largest_of_blocks(values: Tensor, rows: int, columns: int) -> Tensor:
    """The largest value of each block of matrices."""
    for dim, length in ((-2, rows), (-1, columns)):
        size = values.shape[dim]
        each = max(size, 1) if length == -1 else length
        count = -(-size // each)
        missing = (0, count * each - size) if dim == -1 else (0, 0, 0, count * each - size)
        values = pad(values, missing).unflatten(dim, (count, each)).amax(dim)
    return values
