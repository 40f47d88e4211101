"""Bounds of products and sums of products, and of copies."""

import math

import torch
from torch import Tensor

from opmux.testing.bounds.model import Allowance, Given, derives, roundings

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


# Copies.


@derives("write_kv_cache")
def _write(given: Given) -> list[Allowance]:
    """A conversion; float64 may be converted by way of float32."""
    return [Allowance(e.abs()) for e in given.expected]
