"""Errors of probabilities whose exponents are not exact, however large these errors are.

An error ``e`` of the exponent x makes ``exp(x)`` wrong by ``e exp(x)``, to first order. With large scores ``e`` is no
small number, and the probability is anything between ``exp(x - e)`` and ``exp(x + e)``: then these ends are the bound.
"""

import math

import torch
from torch import Tensor

FIRST_ORDER = 2.0**-10
"""Errors of an exponent up to which the first order is taken; the ends of an interval so short would cancel."""

LARGEST = math.log(torch.finfo(torch.float32).max)
"""The largest exponent: the exponential of a larger one is infinite in float32."""


def exponential_errors(x: Tensor, error: Tensor, smallest: float) -> Tensor:
    """The absolute errors of ``exp(x)`` for errors of x; what is below ``smallest`` may be flushed to zero."""
    value = torch.exp(x)
    if not _large(error):
        return _flushed(value * error, value, smallest)
    highest, lowest = torch.exp((x + error).clamp(max=LARGEST)), torch.exp(x - error)
    return _flushed(_of_ends(value, error, lowest, highest, smallest), value, smallest)


def softmax_errors(x: Tensor, error: Tensor, smallest: float) -> tuple[Tensor, Tensor]:
    """The absolute errors of a softmax over the last dim, and of its log-sum-exp.

    Args:
        x: the scores less their log-sum-exp; -inf where masked out.
        error: their errors, 0 where masked out.
        smallest: probabilities below it may be flushed to zero.
    """
    value = torch.exp(x)
    common = (value * error).sum(-1, keepdim=True)
    if not _large(error):
        return _flushed(value * (error + common), value, smallest), common
    lower, higher = (torch.logsumexp(x + side * error, -1, keepdim=True).abs() for side in (-1, 1))
    moved = torch.maximum(lower, higher).nan_to_num(0.0, 0.0, 0.0)
    moved = torch.where(error.amax(-1, keepdim=True) > FIRST_ORDER, moved, common)
    # All probabilities are at most 1 and sum to 1: one whose rivals vanish is certain, whatever its score's error.
    highest = torch.exp((x + error + moved).clamp(max=0.0))
    rivals = highest.sum(-1, keepdim=True) - highest
    lowest = torch.minimum(torch.maximum(torch.exp(x - error - moved), 1 - rivals), value)
    return _flushed(_of_ends(value, error + moved, lowest, highest, smallest), value, smallest), moved


def _large(error: Tensor) -> bool:
    return bool(error.numel()) and float(error.max()) > FIRST_ORDER


def _of_ends(value: Tensor, error: Tensor, lowest: Tensor, highest: Tensor, smallest: float) -> Tensor:
    """The distance to the farther end of the interval; the first order where the error is small."""
    lowest = torch.where(lowest < smallest, 0.0, lowest)
    return torch.where(error > FIRST_ORDER, torch.maximum(highest - value, value - lowest), value * error)


def _flushed(error: Tensor, value: Tensor, smallest: float) -> Tensor:
    """The error, and at least the value itself where that is below twice the smallest number that is kept."""
    return torch.where(value < 2 * smallest, torch.maximum(error, value), error)
