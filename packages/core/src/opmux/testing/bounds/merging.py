"""Bounds of merging attention states, and of its gradient.

The weights are exp(lse_x - lse), whose argument's rounding is relative to the larger lse.
"""

import torch
from torch import Tensor

from opmux.testing.bounds.model import Allowance, Given, derives, roundings, row_sums


@derives("merge_attention_states")
def _merge(given: Given) -> list[Allowance]:
    out, lse, sides = _merged(given)
    magnitude = torch.zeros_like(out)
    for side, weight, rounds in sides:
        magnitude = magnitude + rounds * weight * side.abs()
    return [Allowance(magnitude), Allowance(2 * lse.abs() + 8)]


@derives("merge_attention_states_backward")
def _merge_backward(given: Given) -> list[Allowance]:
    """d out_x = w_x d out; d lse_x = w_x (d out . (out_x - out) + d lse)."""
    out, _, sides = _merged(given)
    grad, grad_lse = given["grad_out"].abs(), given["grad_lse"].abs()
    found = []
    for side, weight, rounds in sides:
        found.append(Allowance(rounds * weight * grad))
        inner = row_sums(grad * (side.abs() + out.abs())) * (roundings(out.shape[-1]) + 4)
        inner = (inner + grad_lse.mT.unsqueeze(-1)) * weight * rounds
        found.append(Allowance(inner.squeeze(-1).mT))
    return found


def _merged(given: Given) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor, Tensor]]]:
    """The merged output's magnitude, the merged lse, and for each side its output, weight and roundings."""
    lses = [given.raw[name].mT.unsqueeze(-1) for name in ("lse_a", "lse_b")]
    lse = torch.logaddexp(*lses)
    top = lse.nan_to_num(0.0, 0.0, 0.0)
    sides = []
    for name, one in zip(("out_a", "out_b"), lses, strict=True):
        weight = torch.exp(one - top).nan_to_num(0.0).clamp(max=1.0)  # an infinite lse would exceed 1
        sides.append((given[name], weight, 8 + 2 * (one - top).nan_to_num(0.0, 0.0, 0.0).abs() + 2 * top.abs()))
    out = sum((weight * side.abs() for side, weight, _ in sides), torch.zeros_like(sides[0][0]))
    return out, top.squeeze(-1).mT, sides
