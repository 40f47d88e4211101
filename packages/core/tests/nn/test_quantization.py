"""Converting the linear layers of a model: which, with what error, and back."""

from typing import Any

import pytest
import torch
from nn.blocks import Model, inputs, randomise, reasons
from torch import Tensor

import opmux
from opmux import nn
from opmux.errors import InvalidArgument, UnknownBackend


class Tied(torch.nn.Module):
    """A language model in small: an embedding whose table is the head's, two layers that are one, a router."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(11, 16)
        self.up = torch.nn.Linear(16, 32)
        self.down = torch.nn.Linear(32, 16)
        self.again = self.down
        self.router = torch.nn.Linear(16, 4)
        self.lm_head = torch.nn.Linear(16, 11, bias=False)
        self.out = torch.nn.Linear(16, 11, bias=False)
        if tied:
            self.out.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        x = x + self.down(self.up(x))
        x = x + self.again(self.up(x)) * self.router(x).sum(-1, keepdim=True).sigmoid()
        return self.lm_head(x) + self.out(x)


def state(model: torch.nn.Module) -> dict[str, Any]:
    return {name: (id(module), type(module)) for name, module in model.named_modules(remove_duplicate=False)}


IDS = torch.arange(22).reshape(2, 11) % 11


def test_what_is_converted_and_what_is_left() -> None:
    model = randomise(Tied())
    report = nn.quantize_(model)
    assert [row.module for row in report.converted()] == ["up", "down"]
    assert report.converted()[1].reason == "also as again"
    assert reasons(report) == {
        "router": "a router: a rounded score may send a token to another expert (it matches '*router*')",
        "lm_head": "the head: its rounding reaches the logits at once, and it is read once for each token "
        "(it matches '*lm_head')",
        "out": "its weight is shared with embed.weight, which is not converted",
    }
    assert type(model.up) is nn.QuantizedLinear
    assert model.again is model.down
    assert type(model.out) is torch.nn.Linear
    assert report.bytes_after < report.bytes_before
    assert [report.output_error, *(row.error for row in report.rows)] == [None] * 6
    with opmux.trace() as traced:
        model(IDS)
    assert {row.op: row.calls for row in traced.rows} == {"quantize": 4, "scaled_linear": 4}
    again = nn.quantize_(model)
    assert again.converted() == []
    assert len(again.left()) == 3


def test_layers_that_share_a_weight_share_the_codes() -> None:
    model = Tied(tied=False)
    model.lm_head.weight = model.out.weight
    report = nn.quantize_(model, skip=())
    assert len(report.converted()) == 5
    assert model.lm_head.weight is model.out.weight  # type: ignore[comparison-overlap]
    assert model.lm_head.weight.dtype is torch.float8_e4m3fn
    assert model.lm_head is not model.out
    halves = Tied(tied=False)
    halves.lm_head.weight = halves.out.weight
    assert reasons(nn.quantize_(halves))["out"] == "its weight is shared with lm_head.weight, which is not converted"


@pytest.mark.parametrize("codes", ["fp8", "int8"])
@pytest.mark.parametrize("activations", ["token", "block", "static"])
@pytest.mark.parametrize("weights", ["channel", "block"])
def test_errors_of_a_calibration(codes: str, activations: str, weights: str) -> None:
    model, plain = randomise(Tied()), randomise(Tied())
    model.train()
    how: dict[str, Any] = {"activations": activations, "weights": weights, "calibration": IDS}
    report = nn.quantize_(model, codes, **how)
    assert model.training
    assert all(module.training for module in model.modules())
    with torch.no_grad():
        expected, found = plain(IDS), model(IDS)
    error = float((found - expected).norm() / expected.norm())
    assert report.output_error == pytest.approx(error, rel=1e-3)
    assert 0 < error < 0.2
    (row,) = (row for row in report.rows if row.module == "up")
    x = plain.embed(IDS)
    more = x + plain.down(plain.up(x))
    both = torch.cat([x, more])
    with torch.no_grad():
        change = (model.up(both) - plain.up(both)).norm() / plain.up(both).norm()
    assert row.error == pytest.approx(float(change), rel=1e-3)
    assert all(row.error is None for row in report.left())
    assert not model.up._forward_hooks


@pytest.mark.parametrize(
    "calibration", [(IDS,), {"ids": IDS}, lambda model: {"hidden": [IDS, model(IDS)]}], ids=["tuple", "mapping", "call"]
)
def test_forms_of_a_calibration(calibration: Any) -> None:
    report = nn.quantize_(randomise(Tied()), calibration=calibration)
    assert report.output_error == nn.quantize_(randomise(Tied()), calibration=IDS).output_error


@pytest.mark.parametrize("activations", ["token", "static"])
def test_a_calibration_that_draws_a_new_batch_each_time_is_refused(activations: str) -> None:
    model, batches = randomise(Tied()), iter(torch.randint(11, (4, 2, 3)))
    before = state(model)
    said = (
        "quantize_: `calibration` expected a function that calls the model with the same inputs each time, got other "
        "inputs in a later call; draw the batch before, outside of the function"
    )
    with pytest.raises(InvalidArgument) as caught:
        nn.quantize_(
            model, activations=activations, weights="channel" if activations == "token" else "tensor",
            calibration=lambda of: of(next(batches)),
        )  # fmt: skip
    assert str(caught.value) == said
    assert state(model) == before
    odd = torch.tensor([[1.0, float("nan")]])
    report = nn.quantize_(torch.nn.Sequential(torch.nn.Linear(2, 2)), calibration=lambda of: of(odd))
    assert report.output_error is not None, "NaN is equal to NaN here"


def test_an_empty_batch_is_refused_and_changes_nothing() -> None:
    model = randomise(Tied())
    before = state(model)
    with pytest.raises(InvalidArgument) as caught:
        nn.quantize_(model, calibration=IDS[:0])
    assert str(caught.value) == (
        f"quantize_: `calibration` expected a call whose result holds numbers, got shape {[0, *IDS.shape[1:], 11]}; "
        "pass a batch with at least one row"
    )
    assert state(model) == before


def test_weights_of_other_modules_are_named() -> None:
    class Experts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = torch.nn.Parameter(torch.zeros(4, 1024, 128))
            self.down = torch.nn.Parameter(torch.zeros(4, 128, 1024))
            self.scale = torch.nn.Parameter(torch.zeros(128))

    model = torch.nn.Sequential(torch.nn.Embedding(8, 16), torch.nn.Linear(16, 16), Experts(), torch.nn.Conv1d(4, 4, 1))
    assert nn.quantize_(model).notes == [
        "2 weights of Experts (4.0 MiB) stay as they are: only torch's linear layers are converted",
        "1 weight of Conv1d (0.0 MiB) stays as it is: only torch's linear layers are converted",
    ]


def test_what_was_done_to_the_model_before_is_noted() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.Linear(4, 4)))
    assert nn.quantize_(model, skip=["0"]).notes == []
    assert nn.quantize_(model, skip=["0"]).notes == ["1 layer is QuantizedLinear already: it stays as it is"]
    vars(model[1])["forward"] = lambda x: x
    assert nn.quantize_(model).notes == [
        "1 layer is QuantizedLinear already: it stays as it is",
        "the forward of 1 was replaced before: replace it again, now that layers are converted; if it was by"
        " opmux_transformers.patch(model), call that again",
    ]
    assert nn.quantize_(model).notes == ["2 layers are QuantizedLinear already: they stay as they are"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_calibration_that_is_not_finite_is_noted(value: float) -> None:
    report = nn.quantize_(Tied(), calibration=lambda model: model.up(torch.full((1, 16), value)))
    assert report.notes == [
        "the calibration brings NaN or infinity to up: no error is known then; calibrate with finite inputs"
    ]


def test_undo_puts_the_very_layers_back() -> None:
    model = randomise(Tied())
    before, result = state(model), model(IDS)
    report = nn.quantize_(model, calibration=IDS, keep=True)
    assert state(model) != before
    report.undo()
    assert state(model) == before
    assert torch.equal(model(IDS), result)
    assert not report.active
    assert "left, undone" in str(report)
    with pytest.raises(InvalidArgument) as caught:
        report.undo()
    assert str(caught.value) == (
        "QuantizationReport.undo: `self` expected a report in force, got one undone; there is nothing to undo"
    )
    with pytest.raises(InvalidArgument) as caught:
        nn.quantize_(model).undo()
    assert str(caught.value) == (
        "QuantizationReport.undo: `self` expected a report with the original layers, got one without; "
        "pass keep=True to quantize_, which keeps them in memory"
    )


@pytest.mark.parametrize("keep", [True, False])
def test_a_calibration_that_fails_changes_nothing(keep: bool) -> None:
    model = randomise(Tied())
    before, calls = state(model), []

    def calibration(of: Any) -> Tensor:
        calls.append(1)
        if len(calls) == 2:  # with the converted layers
            raise ArithmeticError("no")
        return of(IDS)

    with pytest.raises(ArithmeticError):
        nn.quantize_(model, calibration=calibration, keep=keep)
    assert state(model) == before
    assert not any(module._forward_hooks for module in model.modules())


def test_an_unknown_backend_changes_nothing() -> None:
    model = randomise(Tied())
    before = state(model)
    with pytest.raises(UnknownBackend, match=r"quantize: `backend` expected one of .* got 'nope'"):
        nn.quantize_(model, backend="nope")
    assert state(model) == before
    nn.quantize_(model, backend="reference")
    assert model(IDS).shape == (2, 11, 11)


def test_a_model_of_opmux_modules() -> None:
    model, plain = randomise(Model(qk_norm=None)), randomise(Model(qk_norm=None))
    report = nn.quantize_(model, "int8", weights="block", activations="block")
    assert len(report.converted()) == 15
    x = inputs(2, 9, 32)
    assert (model(x) - plain(x)).norm() / plain(x).norm() < 0.2
    saved = model.state_dict()
    other = Model(qk_norm=None)
    nn.quantize_(other, "int8", weights="block", activations="block")
    other.load_state_dict(saved)
    assert torch.equal(other(x), model(x))


def test_the_report_prints() -> None:
    shown = str(nn.quantize_(randomise(Tied()), calibration=IDS))
    lines = shown.splitlines()
    assert lines[0].startswith("2 linear layers converted, 3 left: 5.8 KiB of")
    assert lines[0].endswith("KiB after")
    assert lines[1].split() == ["layer", "shape", "error"]
    assert any(line.startswith("down ") and line.endswith("converted: also as again") for line in lines)
    assert lines[-1].startswith("error of the model's result: ")
    assert lines[-1].endswith("%")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: nn.quantize_(torch.nn.Linear(4, 4)),
            "quantize_: `model` expected a module that holds linear layers, got a linear layer itself; "
            "use QuantizedLinear.from_linear for one layer",
        ),
        (
            lambda: nn.quantize_("llama"),  # type: ignore[arg-type]
            "quantize_: `model` expected a module that holds linear layers, got str; pass the model",
        ),
        (lambda: nn.quantize_(Tied(), "fp4"), "quantize_: `codes` expected 'fp8', 'int8', or one of float8_e4m3fn"),
        (
            lambda: nn.quantize_(Tied(), weights="row"),
            "quantize_: `weights` expected one of channel, block, tensor, got 'row'",
        ),
        (
            lambda: nn.quantize_(Tied(), activations="static"),
            "quantize_: `calibration` expected inputs to find static scales with, got None; "
            "pass inputs of the model, or choose activations='token'",
        ),
        (
            lambda: nn.quantize_(Tied(), activations="static", calibration=lambda model: model.up(torch.ones(1, 16))),
            "quantize_: `calibration` expected finite inputs that reach every layer, got none for down; "
            "calibrate with inputs that reach every layer, or skip this one",
        ),
        (
            lambda: nn.quantize_(
                torch.nn.Sequential(torch.nn.Linear(4, 4)),
                activations="static",
                calibration=lambda of: [of(torch.ones(1, 4)), of(torch.full((1, 4), float("nan")))],
            ),
            "quantize_: `calibration` expected finite inputs that reach every layer, "
            "got nan as the largest magnitude for 0; calibrate with inputs that reach every layer, or skip this one",
        ),
        (
            lambda: nn.quantize_(
                torch.nn.Sequential(torch.nn.Linear(4, 4)), activations="static", calibration=torch.zeros(1, 4)
            ),
            "quantize_: `calibration` expected inputs that bring every layer values other than zero, got none for 0; "
            "the largest magnitude gives the scale: calibrate with other inputs, or skip this one",
        ),
        (
            lambda: nn.quantize_(Tied(), skip="*.down_proj"),
            "quantize_: `skip` expected a mapping or sequence of strings, got '*.down_proj'; "
            "as in skip=['*.down_proj']; () skips nothing",
        ),
        (
            lambda: nn.quantize_(Tied(), skip=None),  # type: ignore[arg-type]
            "quantize_: `skip` expected a mapping or sequence of strings, got None; ",
        ),
        (
            lambda: nn.quantize_(Tied(), skip=[3]),  # type: ignore[list-item]
            "quantize_: `skip` expected a mapping or sequence of strings, got [3]; ",
        ),
        (
            lambda: nn.quantize_(Tied(), calibration=3),
            "quantize_: `calibration` expected a tensor, a tuple or mapping of arguments, or a function of the model, "
            "got int; pass what the model is called with",
        ),
        (
            lambda: nn.quantize_(Tied(), calibration=lambda model: None),
            "quantize_: `calibration` expected a call whose result holds a floating-point tensor, got one without; "
            "pass inputs for which the model returns logits, or a function that returns them",
        ),
    ],
)
def test_what_is_refused(call: Any, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        call()
    assert message in str(caught.value)
