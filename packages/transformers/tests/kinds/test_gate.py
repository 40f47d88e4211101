"""Gated MLPs: the activation is found by its numbers; dropout, other linears and other mathematics show."""

import copy

import pytest
import torch
import transformers
from samples import (
    LLAMA,
    SIZES,
    TRAINING,
    Adapted,
    agree,
    model,
    pair,
    reasons,
    subclassed,
    t5,
    train_alike,
)
from torch import nn
from torch.nn import functional

import opmux_transformers


@pytest.mark.parametrize("factor", [1.01, -1.0])
def test_a_gate_with_changed_maths_is_left_alone(factor: float) -> None:
    plain = model()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x) * factor)

    subclassed(plain.model.layers[0].mlp, forward)
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    left = reasons(report, "gate")
    assert list(left) == ["model.layers.0.mlp"]
    assert "differs from the replacement" in left["model.layers.0.mlp"]
    assert report.replaced("gate") == 1
    agree(patched, plain)


@pytest.mark.parametrize("activation", ["relu", "quick_gelu", "sigmoid"])
def test_a_gate_of_another_activation_is_left_alone(activation: str) -> None:
    plain, patched = pair(hidden_act=activation)
    report = opmux_transformers.patch(patched)
    assert len(reasons(report, "gate")) == 2
    assert report.replaced("residual") == 2
    agree(patched, plain)


@pytest.mark.parametrize(
    ("activation", "op"), [("gelu", "gelu_mul"), ("gelu_pytorch_tanh", "gelu_mul(tanh)"), ("silu", "silu_mul")]
)
def test_the_activation_is_found_by_its_numbers(activation: str, op: str) -> None:
    plain, patched = pair(hidden_act=activation)
    report = opmux_transformers.patch(patched)
    assert {row.op for row in report.rows if row.kind == "gate"} == {op}
    agree(patched, plain)


class DroppingMLP(LLAMA.LlamaMLP):
    def forward(self, x):
        return self.down_proj(self.drop(self.act_fn(self.gate_proj(x)) * self.up_proj(x)))


def with_dropping_mlp(of, rate: float) -> None:
    for layer in of.model.layers:
        layer.mlp.__class__, layer.mlp.drop = DroppingMLP, nn.Dropout(rate)


def test_a_gate_with_dropout_is_left_alone() -> None:
    plain = model()
    with_dropping_mlp(plain, 0.01)
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert reasons(report, "gate") == {"model.layers.0.mlp": TRAINING, "model.layers.1.mlp": TRAINING}
    assert report.replaced("residual") == 2  # the layer calls its MLP, whatever that drops
    train_alike(patched, plain)


def test_a_gate_whose_dropout_drops_nothing_is_replaced_until_it_does() -> None:
    plain = model()
    with_dropping_mlp(plain, 0.0)
    patched = copy.deepcopy(plain)
    assert opmux_transformers.patch(patched).replaced("gate") == 2
    train_alike(patched, plain)
    for of in (plain, patched):
        of.model.layers[0].mlp.drop.p = 0.5
    train_alike(patched, plain)


@pytest.mark.parametrize(("rate", "replaced"), [(0.1, 0), (0.0, 2)])
def test_the_dropout_of_seed_oss(rate: float, replaced: int) -> None:
    plain, patched = pair("seed_oss", residual_dropout=rate, attention_dropout=0.0)
    report = opmux_transformers.patch(patched)
    assert report.replaced("gate") == replaced
    assert set(reasons(report, "gate").values()) == ({TRAINING} if rate else set())
    train_alike(patched, plain)
    for of in (plain, patched):
        for layer in of.model.layers:
            layer.mlp.residual_dropout = 0.4
    train_alike(patched, plain)


@pytest.mark.parametrize(("rate", "replaced"), [(0.3, 0), (0.0, 4)])
def test_the_dropout_of_t5(rate: float, replaced: int) -> None:
    patched = t5(rate)
    report = opmux_transformers.patch(patched)
    assert report.replaced("gate") == replaced
    inner = patched.encoder.block[0].layer[1].DenseReluDense.train()
    x = torch.randn(2, 3, 64)
    assert torch.equal(inner(x), inner(x)) == (rate == 0.0)


class OwnLinear(nn.Linear):
    """A subclass that computes the same."""


class Int8(nn.Module):
    """A quantised linear without any parameter."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach()
        self.register_buffer("scale", weight.abs().amax(1, keepdim=True) / 127)
        self.register_buffer("integers", (weight / self.scale).round().to(torch.int8))

    def forward(self, x):
        return functional.linear(x, self.integers.to(x.dtype) * self.scale.to(x.dtype))


def own(linear: nn.Linear) -> nn.Module:
    linear.__class__ = OwnLinear
    return linear


def exchange_linears(of, make) -> None:
    for path, child in list(of.model.named_modules()):
        if type(child) is nn.Linear:
            parent, _, name = path.rpartition(".")
            setattr(of.model.get_submodule(parent), name, make(child))


class LouderMLP(LLAMA.LlamaMLP):
    def forward(self, x):
        return super().forward(x) * 1.05


@pytest.mark.parametrize("make", [own, Int8, Adapted], ids=["subclassed", "quantised", "adapted"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("activation", "cls", "replaced"),
    [("silu", None, 2), ("gelu", None, 2), ("quick_gelu", None, 0), ("silu", LouderMLP, 0)],
)
def test_gates_of_other_linears_are_judged_in_float32(make, dtype, activation, cls, replaced) -> None:
    plain = model(dtype=dtype, hidden_act=activation)
    if cls is not None:
        for layer in plain.model.layers:
            layer.mlp.__class__ = cls
    exchange_linears(plain, make)
    patched = copy.deepcopy(plain.eval())
    report = opmux_transformers.patch(patched)
    assert report.replaced("gate") == replaced
    assert all("differs from the replacement" in reason for reason in reasons(report, "gate").values())
    assert report.counts()["attention"] == {"replaced": 2, "left": 0}  # one without parameters, too
    assert report.replaced("rope") == report.replaced("residual") == report.replaced("cache") * 2 == 2
    if dtype == torch.float32:
        agree(patched, plain)


def test_a_self_attention_of_its_own_making_is_no_gate() -> None:
    config = transformers.RoFormerConfig(**{**SIZES, "num_key_value_heads": 4}, type_vocab_size=2)
    report = opmux_transformers.patch(transformers.RoFormerModel(config).eval())
    assert "gate" not in report.counts()
