"""The gated layer, against torch's own functions."""

import re

import pytest
import torch
import torch.nn.functional as F
from nn.blocks import assert_same, inputs, randomise

import opmux
from opmux import nn
from opmux.errors import InvalidArgument

GATES = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


class Plain(torch.nn.Module):
    """The same in torch."""

    def __init__(self, activation: str, bias: bool, fused: bool) -> None:
        super().__init__()
        self.gate, self.fused = GATES[activation], fused
        if fused:
            self.gate_up_proj = torch.nn.Linear(16, 48, bias)
        else:
            self.gate_proj, self.up_proj = torch.nn.Linear(16, 24, bias), torch.nn.Linear(16, 24, bias)
        self.down_proj = torch.nn.Linear(24, 16, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, -1) if self.fused else (self.gate_proj(x), self.up_proj(x))
        return self.down_proj(self.gate(gate) * up)


@pytest.mark.parametrize("activation", GATES)
@pytest.mark.parametrize("fused", [False, True], ids=["apart", "fused"])
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_against_torch(activation: str, fused: bool, bias: bool) -> None:
    ours = nn.GatedMLP(16, 24, activation, bias=bias, fused=fused)
    theirs = randomise(Plain(activation, bias, fused))
    ours.load_state_dict(theirs.state_dict())
    assert_same(ours, theirs, inputs(2, 3, 16))
    gate = "silu" if activation == "silu" else "gelu"
    with opmux.trace() as traced, torch.no_grad():
        ours(inputs(2, 16))
    assert {row.op for row in traced.rows} == {"linear", f"{gate}_and_mul" if fused else f"{gate}_mul"}


def test_names_are_those_of_the_families() -> None:
    assert sorted(nn.GatedMLP(4, 8).state_dict()) == ["down_proj.weight", "gate_proj.weight", "up_proj.weight"]
    assert sorted(nn.GatedMLP(4, 8, fused=True).state_dict()) == ["down_proj.weight", "gate_up_proj.weight"]


def test_reset_parameters() -> None:
    mlp = nn.GatedMLP(4, 8, dtype=torch.float64)
    before = mlp.down_proj.weight.clone()
    mlp.reset_parameters()
    assert mlp.down_proj.weight.dtype is torch.float64
    assert not torch.equal(mlp.down_proj.weight, before)


def test_unknown_activation() -> None:
    with pytest.raises(InvalidArgument, match=re.escape(
        "GatedMLP: `activation` expected one of silu, gelu, gelu_tanh, gelu_pytorch_tanh, got 'relu'; "
        "write another gate with torch's own functions between two opmux.nn.Linear"
    )):  # fmt: skip
        nn.GatedMLP(4, 8, "relu")


def test_sizes() -> None:
    with pytest.raises(InvalidArgument, match="GatedMLP: `hidden` expected a whole number, 1 or more, got True"):
        nn.GatedMLP(True, 8)
    with pytest.raises(InvalidArgument) as caught:
        nn.GatedMLP(4, -8)
    assert str(caught.value) == (
        "GatedMLP: `intermediate` expected a whole number, 1 or more, got -8; check the model's sizes"
    )
