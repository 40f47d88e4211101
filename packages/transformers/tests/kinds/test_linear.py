"""Quantised linears are called as they are."""

import copy

import torch
from samples import agree, model, reasons
from torch import nn
from torch.nn import functional

import opmux_transformers


class Int8Linear(nn.Module):
    """A linear as quantisers make it: integers and a scale for each row."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight", (linear.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.bias = linear.bias

    def forward(self, x):
        return functional.linear(x, self.weight.to(x.dtype) * self.scale.to(x.dtype), self.bias)


def test_a_quantised_model() -> None:
    plain = model()
    for path, child in list(plain.model.named_modules()):
        if isinstance(child, nn.Linear):
            parent, _, name = path.rpartition(".")
            setattr(plain.model.get_submodule(parent), name, Int8Linear(child))
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    left = reasons(report, "linear")
    assert len(left) == 2 * 7
    assert set(left.values()) == {"quantised: it computes as before"}
    assert "the model is quantised: its linear layers are called as they are" in report.notes
    assert report.replaced("norm") == 5
    assert report.replaced("gate") == 2
    agree(patched, plain)
    opmux_transformers.unpatch(patched)
    assert isinstance(patched.model.layers[0].mlp.gate_proj, Int8Linear)


class Int8ParameterLinear(Int8Linear):
    """The same with its integers in a parameter, in the form that its own kernel wants."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        integers = self.weight
        del self.weight
        self.weight = nn.Parameter(integers.t().contiguous(), requires_grad=False)

    def forward(self, x):
        assert self.weight.dtype == torch.int8
        return functional.linear(x, self.weight.t().to(x.dtype) * self.scale.to(x.dtype), self.bias)


def test_quantised_parameters_hinder_no_attention() -> None:
    plain = model()
    for path, child in list(plain.model.named_modules()):
        if isinstance(child, nn.Linear):
            parent, _, name = path.rpartition(".")
            setattr(plain.model.get_submodule(parent), name, Int8ParameterLinear(child))
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert report.counts()["attention"] == {"replaced": 2, "left": 0}
    assert report.replaced("residual") == report.replaced("gate") == 2
    assert len(reasons(report, "linear")) == 2 * 7
    agree(patched, plain)
