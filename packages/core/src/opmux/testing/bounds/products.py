"""Bounds of products and sums of products, and of copies."""

import math

import torch
from torch import Tensor

from opmux.testing.bounds.model import Allowance, Given, derives, roundings
from opmux.testing.oracle import scale_of_elements

# Rotary embedding: two products and a sum. Dims that are not rotated are copies and have no allowance.


@derives("apply_rope")
def _rope(given: Given) -> list[Allowance]:
    return [_rotation(given, given[name]) for name in ("q", "k")]


@derives("apply_rope_backward")
def _rope_backward(given: Given) -> list[Allowance]:
    return [_rotation(given, given[name]) for name in ("grad_q_out", "grad_k_out")]


def _rotation(given: Given, x: Tensor) -> Allowance:
    cos, sin = given["cos"].abs(), given["sin"].abs()
    positions = given.tensors.get("positions")
    rows = slice(0, x.shape[-3]) if positions is None else positions.to(torch.int64)
    cos, sin = cos[rows].unsqueeze(-2), sin[rows].unsqueeze(-2)
    half = cos.shape[-1]
    rotary, rest = x[..., : 2 * half].abs(), torch.zeros_like(x[..., 2 * half :])
    if given.options["interleaved"]:
        first, second = rotary[..., 0::2], rotary[..., 1::2]
    else:
        first, second = rotary.chunk(2, -1)
    turned = (first * cos + second * sin, second * cos + first * sin)
    size = torch.stack(turned, -1).flatten(-2) if given.options["interleaved"] else torch.cat(turned, -1)
    return Allowance(torch.cat((2 * size, rest), -1))


# Matrix products: |A| @ |B|.


@derives("linear")
def _linear(given: Given) -> list[Allowance]:
    x, w = given["x"].abs(), given["w"].abs()
    magnitude = (x @ w.T) * roundings(x.shape[-1])
    if given.tensors.get("bias") is not None:
        magnitude = magnitude + given["bias"].abs()
    return [Allowance(magnitude)]


@derives("linear_backward")
def _linear_backward(given: Given) -> list[Allowance]:
    grad, x, w = given["grad_out"].abs(), given["x"].abs(), given["w"].abs()
    tokens, (n, k) = math.prod(x.shape[:-1]), w.shape
    flat = grad.reshape(tokens, n)
    grad_w = flat.T @ x.reshape(tokens, k)
    return [
        Allowance((grad @ w) * roundings(n)),
        Allowance(grad_w * roundings(tokens)),
        Allowance(flat.sum(0) * roundings(tokens)),
    ]


# Products of codes: |A| @ |B| with every code multiplied by its scale.

PROMOTED = 2.0**11 * 32
"""The error of a sum of 8-bit floats on matrix units, in roundings of float32 and of the root of its squares.

Hopper's units keep 14 bits of the largest term of an addition. With sums of 128 terms that float32 adds up, the error
of each block is a few units of 2**-13 of its own sum, independent of the others'; without, it is one of the whole sum
at every addition, and all have its sign. The largest error in 30 products of 1e5 to 2e5 elements on an H200 was 14
units of 2**-13 of that root, which is also what cutting every term at 2**-13 of the largest gives; among more elements,
larger ones are found.
"""


REPEATED = 2.0**11 * 16
"""The same in roundings of the sum of sizes, where all terms of a sum are alike: each is cut in the same direction.

An addition of 32 terms to a sum of 96 cuts each at 2**-13 of that sum. On an H200 a sum of 128 such terms was 7.5 units
of 2**-13 of itself too small.
"""


@derives("scaled_linear")
def _scaled_linear(given: Given) -> list[Allowance]:
    magnitude = _scaled(given)
    if given.tensors.get("bias") is not None:
        magnitude = magnitude + given["bias"].abs()
    return [Allowance(magnitude)]


@derives("scaled_linear_accumulate")
def _scaled_linear_accumulate(given: Given) -> list[Allowance]:
    added = _scaled(given)
    return [Allowance(added + given["out"].abs() + given.expected[0].abs(), added=added)]


def _scaled(given: Given) -> Tensor:
    eight_bit_floats = given.raw["x"].dtype.is_floating_point
    return scaled_magnitude(given["x"], given["w"], given["x_scale"], given["w_scale"], eight_bit_floats)


def scaled_magnitude(x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, eight_bit_floats: bool) -> Tensor:
    """The magnitude of a product of codes with these scales, in float64."""
    x, w = x.to(torch.float64).abs(), w.to(torch.float64).abs()
    x, w = x * scale_of_elements(x_scale, *x.shape[-2:]), w * scale_of_elements(w_scale, *w.shape)
    sums = (x @ w.mT) * (roundings(x.shape[-1]) + 4)
    return sums + PROMOTED * (x.square() @ w.square().mT).sqrt() if eight_bit_floats else sums


# Copies.


@derives("write_kv_cache")
def _write(given: Given) -> list[Allowance]:
    """A conversion; float64 may be converted by way of float32. A quotient by a power of two is exact."""
    found = []
    for name, expected in zip(("k_scale", "v_scale"), given.expected, strict=True):
        magnitude, scale = expected.abs(), given.tensors.get(name)
        if scale is not None:
            exact = torch.frexp(scale).mantissa == 0.5
            magnitude = torch.where(exact[:, None], magnitude, 4 * magnitude)
        found.append(Allowance(magnitude))
    return found
