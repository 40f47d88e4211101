"""The bound of the fused loss's gradient of the weight where one token makes up a row: what is allowed, and no more."""

from typing import Any

import pytest
import torch
from torch import Tensor

from opmux.callpath.op import OPS
from opmux.testing.bounds import Allowance, allowances
from opmux.testing.comparison import Errors, compare
from opmux.testing.making import Arguments
from opmux.testing.oracle import expected_results, upcast

OP = OPS["fused_linear_cross_entropy_gradients"]
HIDDEN, VOCAB, TARGET = 4096, 8, 2
UNIT = 2.0**-24
Sum = tuple[float, float]
"""A logit that bfloat16 does not hold, as the sum of two numbers that it holds."""


def one_token(largest: Sum, other: Sum) -> tuple[Tensor, Tensor]:
    """A token and a weight with these logits for the classes 0 and 1, and 0 for the others."""
    x = torch.randn(1, HIDDEN, generator=torch.Generator().manual_seed(1))
    x[0, :2] = 1.0
    weight = torch.zeros(VOCAB, HIDDEN)
    weight[0, :2], weight[1, :2] = torch.tensor(largest), torch.tensor(other)
    return x.bfloat16(), weight.bfloat16()


def bound_of(x: Tensor, weight: Tensor) -> tuple[Tensor, Allowance]:
    """The exact gradient of the weight and its allowance."""
    tensors = {"x": x, "weight": weight, "target": torch.tensor([TARGET])}
    options: dict[str, Any] = {o.name: o.default for o in OP.signature.options}
    options |= {"reduction": "sum", "output_mask": (True, True, True)}
    exact = expected_results(OP, Arguments(dict(tensors), options), ())
    dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
    allowed = allowances(OP, {n: upcast(t) for n, t in tensors.items()}, dtypes, options, exact)
    return exact[2], allowed[2]


def gradient(x: Tensor, weight: Tensor, rounded: bool) -> Tensor:
    """The gradient of the weight by an implementation that may keep logits and their gradients in bfloat16."""
    logits = x.double() @ weight.double().T
    shares = torch.softmax(logits.bfloat16().double() if rounded else logits, -1)
    shares[0, TARGET] -= 1
    return (shares.bfloat16().double() if rounded else shares).T @ x.double()


def errors_of(got: Tensor, x: Tensor, weight: Tensor) -> Errors:
    exact, allowance = bound_of(x, weight)
    return compare("weight_gradient", got.bfloat16(), exact, allowance, UNIT)[0]


# Half a step of bfloat16 at 64 is 0.25: both logits are off by that, in opposite directions.
LOW, HIGH = ((68.0, 0.249), (64.0, 0.251)), ((68.0, 0.251), (64.0, 0.249))


@pytest.mark.parametrize("logits", [LOW, HIGH, ((6.0, 0.0155), (4.0, 0.0157)), ((1.0, 0.0037), (0.5, 0.002))])
def test_logits_that_are_rounded_once_as_far_as_can_be(logits: tuple[Sum, Sum]) -> None:
    x, weight = one_token(*logits)
    errors = errors_of(gradient(x, weight, True), x, weight)
    assert max(errors.element, errors.row, errors.whole) <= 1


def test_the_worst_of_them_is_near_its_bound() -> None:
    x, weight = one_token(*LOW)
    got = gradient(x, weight, True)
    off = (got - gradient(x, weight, False))[1].norm() / gradient(x, weight, False)[1].norm()
    assert 0.6 < off < 0.65, "exp(2 * 0.25) - 1, of a share near 0"
    assert 0.8 < errors_of(got, x, weight).row <= 1


@pytest.mark.parametrize(
    ("logits", "factor"), [(((1.0, 0.0037), (0.5, 0.002)), 1.02), (((6.0, 0.0155), (4.0, 0.0157)), 1.05)]
)
def test_a_row_that_is_wrong_by_a_factor_exceeds_it(logits: tuple[Sum, Sum], factor: float) -> None:
    x, weight = one_token(*logits)
    got = gradient(x, weight, True)
    got[1] = gradient(x, weight, False)[1] * factor
    assert errors_of(got, x, weight).row > 1
