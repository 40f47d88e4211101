"""Bounds of the norms and their gradients.

The statistics of a row are sums of `hidden` terms of one sign; every element of the row inherits their error.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from opmux.testing.bounds.model import Allowance, Given, derives, roundings, row_means


@dataclass(frozen=True)
class _Normed:
    """A normed row: n = centred * r, and the roundings in n and r, relative to ``spread`` and to r."""

    n: Tensor
    spread: Tensor
    r: Tensor
    relative: Tensor


def _normed(x: Tensor, eps: float, centre: bool) -> _Normed:
    """``spread`` is |n|, plus the mean of |x| for a layer norm: the mean's error shifts the whole row.

    The variance's error is relative to the mean square, so that one pass over E[x**2] - E[x]**2 passes as well. An
    error in the mean square counts half in its root, and less if eps dominates it.
    """
    sums = roundings(x.shape[-1])
    mean = row_means(x) if centre else torch.zeros_like(row_means(x))
    centred = x - mean
    square, variance = row_means(x.square()), row_means(centred.square())
    r = torch.rsqrt(variance + eps)
    relative = 0.5 * (sums + 2) * square / (variance + eps) + 3
    spread = centred.abs() + (row_means(x.abs()) * sums if centre else 0.0)
    return _Normed(centred * r, spread * r, r, relative)


def norm_allowance(given: Given, x: Tensor, centre: bool) -> Allowance:
    """The allowance of the norm of rows, with the weight and the bias of the call."""
    gain = _gain(given)
    normed = _normed(x, given.options["eps"], centre)
    magnitude = gain.abs() * (normed.n.abs() * (normed.relative + 3) + normed.spread)
    if given.tensors.get("bias") is not None:
        magnitude = magnitude + given["bias"].abs()
    return Allowance(magnitude)


def _gain(given: Given) -> Tensor:
    offset: float = given.options.get("weight_offset", 0.0)
    return given["weight"] + offset


@derives("rms_norm")
def _rms_norm(given: Given) -> list[Allowance]:
    return [norm_allowance(given, given["x"], centre=False)]


@derives("layer_norm")
def _layer_norm(given: Given) -> list[Allowance]:
    return [norm_allowance(given, given["x"], centre=True)]


@derives("add_rms_norm", "add_layer_norm")
def _add_norm(given: Given) -> list[Allowance]:
    """The sum of two operands is one addition, exact or rounded once before the rounding to the output."""
    total = given["x"] + given["residual"]
    centre = given.op.name == "add_layer_norm"
    return [norm_allowance(given, total, centre), Allowance(total.abs())]


@derives("rms_norm_backward", "layer_norm_backward", "add_rms_norm_backward", "add_layer_norm_backward")
def _norm_backward(given: Given) -> list[Allowance]:
    """grad_x = r (g - [mean(g)] - n mean(g n)) [+ grad_residual_out]; the others are sums of grad_y n and of grad_y."""
    centre, added = "layer_norm" in given.op.name, given.op.name.startswith("add")
    grad_y = given["grad_y"]
    x = given["residual_out" if added else "x"]
    sums, normed = roundings(x.shape[-1]), _normed(x, given.options["eps"], centre)
    size = normed.spread * (normed.relative + 1)  # |n| and its error, in u
    g = (grad_y * _gain(given)).abs()
    g_n = g * normed.spread
    inner = g * (normed.relative + 4)
    inner = (
        inner
        + normed.spread * row_means(g_n) * (sums + 4)
        + size * row_means(g_n)
        + normed.spread * row_means(g * size)
    )
    if centre:
        inner = inner + row_means(g) * (sums + normed.relative + 4)
    grad_x = normed.r * inner
    if added:
        grad_x = grad_x + given["grad_residual_out"].abs()
    tokens = roundings(math.prod(x.shape[:-1]))
    over_tokens = tuple(range(x.dim() - 1))
    found = [Allowance(grad_x)] * (2 if added else 1)
    by_token = grad_y.abs() * (size + normed.spread * (tokens + 2))
    found.append(Allowance(by_token.sum(over_tokens) if over_tokens else by_token))
    if centre:
        sized = grad_y.abs() * tokens
        found.append(Allowance(sized.sum(over_tokens) if over_tokens else sized))
    return found
