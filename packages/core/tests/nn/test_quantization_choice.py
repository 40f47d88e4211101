"""Which linear layers of a model are quantised, and the reasons of the others."""

import pytest
import torch
from nn.blocks import Block, inputs, reasons
from torch import Tensor
from torch.nn.utils import prune

from opmux import nn


def test_skips_of_ones_own() -> None:
    model = Block()
    report = nn.quantize_(model, skip=("mlp.*", "*.nobody"))
    assert set(reasons(report)) == {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}
    assert {*reasons(report).values()} == {"it matches 'mlp.*'"}
    assert report.notes == ["no linear layer matches the pattern '*.nobody' of skip"]
    assert reasons(nn.quantize_(Block(), skip={**nn.DEFAULT_SKIP, "*.q_proj": "too coarse"})) == {
        "attention.q_proj": "too coarse (it matches '*.q_proj')"
    }


def test_layers_that_are_not_plain() -> None:
    model = torch.nn.ModuleDict({name: torch.nn.Linear(8, 8) for name in "abcdefg"})
    model["a"].register_forward_hook(lambda *_: None)
    model["b"].forward = lambda x: x  # type: ignore[method-assign]
    model["c"].to("meta")
    model["d"].weight.data[0, 0] = float("inf")
    model["e"].__class__ = type("Adapted", (torch.nn.Linear,), {})
    prune.l1_unstructured(model["f"], "weight", 0.5)
    report = nn.quantize_(model)
    assert [row.module for row in report.converted()] == ["g"]
    assert reasons(report) == {
        "a": "it has hooks, which would not move along",
        "b": "its forward was replaced",
        "c": "its weight is on the meta device: load it first",
        "d": "its weight has NaN or infinity in it",
        "e": "its class is Adapted, which may compute something else",
        "f": "its weight is computed before each call",
    }


def test_layers_whose_weight_their_holder_reads() -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    report = nn.quantize_(layer)
    assert reasons(report)["linear1"] == "the forward of TransformerEncoderLayer reads its weight"
    assert set(reasons(report)) == {"linear1", "linear2", "self_attn.out_proj"}
    with torch.no_grad():
        assert layer(inputs(2, 3, 16)).shape == (2, 3, 16)


class Casting(torch.nn.Module):
    """Casts to the dtype of a weight, as T5 does; calls a layer by keyword; gives another one another name."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer, self.last = (torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(input=x)
        last = self.last
        return last(self.outer(y.to(self.outer.weight.dtype)).to(last.weight.dtype))


def test_a_layer_that_is_only_called_is_converted_beside_one_that_is_read() -> None:
    model = Casting()
    report = nn.quantize_(model, calibration=inputs(3, 8))
    assert [(row.module, row.error is not None) for row in report.converted()] == [("inner", True)]
    assert set(reasons(report)) == {"outer", "last"}
    assert str(report).startswith("1 linear layer converted, 2 left: ")


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_weights_that_cannot_be_quantised_are_left() -> None:
    model = torch.nn.ModuleDict({name: torch.nn.Linear(8, 8) for name in "abcde"})
    model["b"] = torch.nn.Linear(8, 8, dtype=torch.complex64)
    model["c"] = torch.nn.Linear(0, 8)
    model["d"].weight = torch.nn.Parameter(torch.ones(8, 8, dtype=torch.float8_e4m3fn), requires_grad=False)
    model["e"].weight = torch.nn.Parameter(torch.ones(8, 8, dtype=torch.int32), requires_grad=False)
    report = nn.quantize_(model)
    assert [row.module for row in report.converted()] == ["a"]
    assert reasons(report) == {
        "b": "its weight has dtype complex64",
        "c": "its weight has a size of 0",
        "d": "its weight has dtype float8_e4m3fn",
        "e": "its weight has dtype int32",
    }


class Headed(torch.nn.Module):
    """A model that says which layer is its head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.projection = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.projection


def test_heads_and_routers_by_default() -> None:
    linears = {name: torch.nn.Linear(8, 8) for name in ("gate", "score", "classifier", "dense", "up_gate", "scores")}
    model = torch.nn.ModuleDict({**linears, "lm_head": torch.nn.ModuleDict({"decoder": torch.nn.Linear(8, 8)})})
    left = reasons(nn.quantize_(model))
    assert {path: reason.partition(":")[0] for path, reason in left.items()} == {
        "gate": "a router", "score": "the head", "classifier": "the head", "lm_head.decoder": "the head",
    }  # fmt: skip
    (reason,) = reasons(nn.quantize_(Headed())).values()
    assert reason.endswith("read once for each token (get_output_embeddings() returns it)")
    assert reasons(nn.quantize_(Headed(), skip=())) == {}
