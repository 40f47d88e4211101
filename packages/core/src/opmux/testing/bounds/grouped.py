"""Bounds of grouped products: those of one product for each group, and nothing for rows that belong to none."""

import torch
from torch import Tensor

from opmux.testing.bounds.model import Allowance, Given, derives, repeated, roundings
from opmux.testing.bounds.products import REPEATED, scaled_magnitude
from opmux.testing.unwritten import groups_of


@derives("grouped_linear")
def _grouped_linear(given: Given) -> list[Allowance]:
    x, w = given["x"].abs(), given["w"].abs()
    return [Allowance(_products(given, x, w.mT) * roundings(x.shape[-1]))]


@derives("grouped_linear_backward")
def _grouped_linear_backward(given: Given) -> list[Allowance]:
    grad, w = given["grad_out"].abs(), given["w"].abs()
    return [Allowance(_products(given, grad, w) * roundings(w.shape[1])), Allowance(_outer(given, grad, w))]


@derives("grouped_weight_grad")
def _grouped_weight_grad(given: Given) -> list[Allowance]:
    out = given["out"]
    added = _outer(given, given["dy"].abs(), out)
    return [Allowance(added + out.abs() + given.expected[0].abs(), added=added)]


@derives("masked_grouped_linear")
def _masked_grouped_linear(given: Given) -> list[Allowance]:
    x, w = given["x"].abs(), given["w"].abs()
    return [Allowance((x @ w.mT) * roundings(x.shape[-1]))]


@derives("scaled_grouped_linear")
def _scaled_grouped_linear(given: Given) -> list[Allowance]:
    x, w, x_scale, w_scale = (given[name] for name in ("x", "w", "x_scale", "w_scale"))
    magnitude = x.new_zeros((x.shape[0], w.shape[1]), dtype=torch.float64)
    for group, rows in enumerate(groups_of(given.tensors)):
        scales = x_scale if x_scale.shape[0] == 1 else x_scale[rows]
        magnitude[rows] = scaled_magnitude(x[rows], w[group], scales, w_scale[group], _eight_bit_floats(given))
    return [Allowance(magnitude)]


@derives("scaled_grouped_weight_grad")
def _scaled_grouped_weight_grad(given: Given) -> list[Allowance]:
    out, one = given["out"], given["out"].new_ones((1, 1), dtype=torch.float64)
    dy, x = (given[n] * given[f"{n}_scale"].repeat_interleave(128, 0)[: len(given[n])] for n in ("dy", "x"))
    added = torch.zeros_like(out)
    for group, rows in enumerate(groups_of(given.tensors)):
        if rows.stop > rows.start:
            left, right = dy[rows].mT, x[rows].mT
            added[group] = scaled_magnitude(left, right, one, one, _eight_bit_floats(given))
            if repeated.get() and _eight_bit_floats(given):
                added[group] += REPEATED * (left.abs() @ right.abs().mT)
    return [Allowance(added + out.abs() + given.expected[0].abs(), added=added)]


@derives("scaled_masked_grouped_linear")
def _scaled_masked_grouped_linear(given: Given) -> list[Allowance]:
    entries = zip(given["x"], given["w"], given["x_scale"], given["w_scale"], strict=True)
    found = [scaled_magnitude(x, w, x_scale, w_scale, _eight_bit_floats(given)) for x, w, x_scale, w_scale in entries]
    return [Allowance(torch.stack(found) if found else 0.0)]


def _eight_bit_floats(given: Given) -> bool:
    return bool(given.raw["x"].dtype.is_floating_point)


def _products(given: Given, a: Tensor, b: Tensor) -> Tensor:
    """``a[rows] @ b[group]`` for the rows of each group; 0 for those of none."""
    found = a.new_zeros((a.shape[0], b.shape[2]))
    for group, rows in enumerate(groups_of(given.tensors)):
        found[rows] = a[rows] @ b[group]
    return found


def _outer(given: Given, grad: Tensor, like: Tensor) -> Tensor:
    """``|grad.T| @ |x|`` over the rows of each group, times its roundings."""
    x, found = given["x"].abs(), torch.zeros_like(like)
    for group, rows in enumerate(groups_of(given.tensors)):
        found[group] = (grad[rows].mT @ x[rows]) * roundings(rows.stop - rows.start)
    return found
