"""What layers of a model are seen to get and give on a calibration batch."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from opmux.errors import InvalidArgument
from opmux.nn.calibration import Observed, called_with, observe, relative_error


class Scaled(nn.Module):
    """Multiplies by a factor; its twin by another one."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, input: Tensor) -> Tensor:
        return input * self.factor


class Twice(nn.Module):
    """Calls one layer on two inputs, the second by keyword, and another layer never."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.never, self.dropout = Scaled(2.0), Scaled(3.0), nn.Dropout(0.5)
        self.dropout.eval()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        assert not any(module.training for module in self.modules())
        assert not torch.is_grad_enabled()
        return self.layer(x) + self.layer(input=y)


def test_the_largest_input_of_all_calls_and_the_change_over_all_results() -> None:
    model = Twice()
    x, y = torch.tensor([1.0, -5.0]), torch.tensor([3.0, 4.0])
    result, seen = observe(model, called_with((x, y)), {model.layer: Scaled(2.5), model.never: None})
    assert torch.equal(result, 2 * (x + y))
    assert set(seen) == {model.layer}
    own = seen[model.layer]
    assert own.largest == 5.0
    assert own.error == pytest.approx(0.25)  # 0.5 over 2, whatever the inputs
    assert own.total == pytest.approx(4 * float(x.square().sum() + y.square().sum()))


def test_a_layer_without_a_twin_is_watched_and_not_compared() -> None:
    model = Twice()
    _, seen = observe(model, called_with({"x": torch.ones(2), "y": torch.ones(2)}), {model.layer: None})
    assert (seen[model.layer].largest, seen[model.layer].error) == (1.0, None)


@pytest.mark.parametrize("order", [(math.nan, 7.0), (7.0, math.nan)])
def test_a_nan_is_not_forgotten(order: tuple[float, float]) -> None:
    """Static scales are made from the largest magnitude: one from a batch with a NaN would be wrong in silence."""
    model = Twice()
    inputs = tuple(torch.tensor([value]) for value in order)
    _, seen = observe(model, called_with(inputs), {model.layer: None})
    assert math.isnan(seen[model.layer].largest)


def test_empty_inputs_have_no_largest() -> None:
    model = Twice()
    _, seen = observe(model, called_with((torch.ones(0), torch.ones(0))), {model.layer: Scaled(9.0)})
    assert (seen[model.layer].largest, seen[model.layer].error) == (0.0, 0.0)


def refusing(model: nn.Module) -> Any:
    model(torch.ones(2), torch.ones(2))
    raise ArithmeticError("no")


@pytest.mark.parametrize("run", [called_with((torch.ones(2), torch.ones(2))), refusing], ids=["ends", "raises"])
def test_the_model_is_left_as_it_was(run: Callable[[nn.Module], Any]) -> None:
    model = Twice()
    before = {name: module.training for name, module in model.named_modules()}
    assert set(before.values()) == {True, False}
    try:
        observe(model, run, {model.layer: None})
    except ArithmeticError:
        assert run is refusing
    assert {name: module.training for name, module in model.named_modules()} == before
    assert not model.layer._forward_hooks
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda y: y,
        lambda y: (torch.ones(2, dtype=torch.int64), y),
        lambda y: {"ids": torch.ones(2, dtype=torch.int64), "states": [None, (y, y + 1)]},
    ],
    ids=["tensor", "tuple", "nested"],
)
def test_the_result_is_the_first_floating_point_tensor(wrapped: Callable[[Tensor], Any]) -> None:
    model = Scaled(2.0)
    result, _ = observe(model, lambda of: wrapped(of(torch.ones(3))), {model: None})
    assert torch.equal(result, torch.full((3,), 2.0))


@pytest.mark.parametrize("result", [None, "logits", (), {"ids": torch.ones(2, dtype=torch.int64)}])
def test_a_result_without_one_is_refused(result: Any) -> None:
    model = Scaled(2.0)
    with pytest.raises(InvalidArgument) as refused:
        observe(model, lambda of: result, {model: None})
    assert str(refused.value) == (
        "quantize_: `calibration` expected a call whose result holds a floating-point tensor, got one without; "
        "pass inputs for which the model returns logits, or a function that returns them"
    )


def test_errors_are_relative_and_zero_where_nothing_was_expected() -> None:
    expected = torch.tensor([3.0, 4.0], dtype=torch.float16)
    assert relative_error(expected + torch.tensor([0.0, 1.0]), expected) == pytest.approx(0.2)
    assert relative_error(torch.ones(2), torch.zeros(2)) == 0.0
    assert Observed(changed=1.0, total=4.0, compared=True).error == 0.5
    assert Observed(changed=1.0, total=4.0).error is None
