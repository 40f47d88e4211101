"""Bounds of the gated activations and their gradients.

An activation's roundings are relative to its terms; the argument of the exponential adds its own.
"""

import math

import torch
from torch import Tensor

from opmux.testing.bounds.model import Allowance, Given, derives

_ACTIVATION = 8.0  # exp, a reciprocal, a few products: two ulp each in the usual libraries


@derives("silu_and_mul", "silu_mul", "gelu_and_mul", "gelu_mul")
def _gated(given: Given) -> list[Allowance]:
    return [gated_allowance(given)]


def gated_allowance(given: Given) -> Allowance:
    """The allowance of an activated gate times the up projection."""
    gate, up = _gate_and_up(given)
    value, _ = _activation(given, gate)
    return Allowance(value * up.abs())


@derives("silu_and_mul_backward", "silu_mul_backward", "gelu_and_mul_backward", "gelu_mul_backward")
def _gated_backward(given: Given) -> list[Allowance]:
    gate, up = _gate_and_up(given)
    value, slope = _activation(given, gate)
    grad = given["grad_out"].abs()
    grad_gate, grad_up = grad * up.abs() * slope, grad * value
    if "x" in given.tensors:
        return [Allowance(torch.cat((grad_gate, grad_up), -1))]
    return [Allowance(grad_gate), Allowance(grad_up)]


def _gate_and_up(given: Given) -> tuple[Tensor, Tensor]:
    if "x" in given.tensors:
        gate, up = given["x"].chunk(2, -1)
        return gate, up
    return given["gate"], given["up"]


def _activation(given: Given, gate: Tensor) -> tuple[Tensor, Tensor]:
    """The magnitudes of the activation and of its slope, with their roundings."""
    size = gate.abs()
    if given.op.name.startswith("silu"):
        share = torch.sigmoid(gate)
        # The rounding of exp's argument g is g * u, which sigmoid passes on as g * (1 - sigmoid).
        rounds = _ACTIVATION + 2 * size * (1 - share)
        # A sigmoid below the smallest normal number may be flushed to zero, which shows after a large factor.
        flushed = torch.where(share < 2 * given.smallest, given.smallest / given.unit, 0.0)
        # 1 - sigmoid cancels: its error is that of 1.
        slope = share * ((1 + 2 * size * (1 - share)) * (rounds + 2) + 4 * size)
        return size * (share * rounds + flushed), slope + (1 + size) * flushed
    if given.options["approximate"] == "tanh":
        inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
        inner_slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * gate.square())
        # (1 + tanh) / 2 as written cancels below zero: its error is that of 1, not of the small difference.
        share = 0.5 * (1 + torch.tanh(inner).abs())
        swing = 0.5 * (1 - torch.tanh(inner).square())
        rounds = share + 4 * swing * inner.abs()
        turn = size * inner_slope * (4 * share + _ACTIVATION * swing * (1 + inner.abs()))
        return _ACTIVATION * size * rounds, _ACTIVATION * rounds + turn
    share = 0.5 * (1 + torch.erf(gate / math.sqrt(2)).abs())
    density = torch.exp(-0.5 * gate.square()) / math.sqrt(2 * math.pi)
    rounds = share + size * density
    return _ACTIVATION * size * rounds, _ACTIVATION * (rounds + size * density * (1 + gate.square()))
