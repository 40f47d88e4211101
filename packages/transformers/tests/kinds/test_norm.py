"""RMS norms: what changes the mathematics of one is left alone, whatever hides it."""

import copy

import pytest
import torch
from samples import (
    CLOSE,
    LLAMA,
    TRAINING,
    agree,
    ids,
    logits,
    model,
    pair,
    reasons,
    subclassed,
    train_alike,
)
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize, prune

import opmux_transformers
from opmux_transformers import check
from opmux_transformers.configs import small_config


def changed_norm(self, hidden_states):
    return type(self).__mro__[1].forward(self, hidden_states) * 1.001


def norm_without_a_root(self, hidden_states):
    scale = hidden_states.abs().mean(-1, keepdim=True) + self.variance_epsilon
    return self.weight * (hidden_states / scale)


def norm_of_a_larger_eps(self, hidden_states):
    scale = torch.rsqrt(hidden_states.pow(2).mean(-1, keepdim=True) + 2 * self.variance_epsilon)
    return self.weight * (hidden_states * scale)


def norm_of_squared_weight(self, hidden_states):
    return type(self).__mro__[1].forward(self, hidden_states) * self.weight


def norm_that_raises(self, hidden_states):
    raise ValueError("only in the right mood")


@pytest.mark.parametrize(
    "forward",
    [changed_norm, norm_without_a_root, norm_of_a_larger_eps, norm_of_squared_weight],
    ids=lambda f: f.__name__,
)
def test_a_norm_with_changed_maths_is_left_alone(forward) -> None:
    plain = model()
    subclassed(plain.model.layers[1].input_layernorm, forward)
    with torch.no_grad():
        plain.model.layers[1].input_layernorm.weight.fill_(1.0)  # weights of one hide a squared weight
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    left = reasons(report, "norm")
    assert list(left) == ["model.layers.1.input_layernorm"]
    assert left["model.layers.1.input_layernorm"].startswith("on random input it differs from the replacement by ")
    assert report.replaced("norm") == 4
    assert reasons(report, "residual") == {"model.layers.1": "no norm follows a residual sum in it"}
    agree(patched, plain)


def test_a_norm_that_cannot_be_checked_is_left_alone() -> None:
    patched = model()
    subclassed(patched.model.norm, norm_that_raises)
    left = reasons(opmux_transformers.patch(patched), "norm")
    assert left == {"model.norm": "its forward raises ValueError on the input of a check"}


def test_a_norm_that_is_given_more_computes_as_before() -> None:
    def forward(self, hidden_states, gate=None):
        hidden_states = type(self).__mro__[1].forward(self, hidden_states)
        return hidden_states if gate is None else hidden_states * gate

    plain = model()
    subclassed(plain.model.norm, forward)
    patched = copy.deepcopy(plain)
    assert opmux_transformers.patch(patched).replaced("norm") == 5
    x = torch.randn(2, 64)
    for given in ({"gate": x}, {"hidden_states": x}):
        args = (x,) if "gate" in given else ()
        torch.testing.assert_close(patched.model.norm(*args, **given), plain.model.norm(*args, **given), **CLOSE)
    assert len(patched.model.layers[0].mlp(x=x)) == 2


class ShiftedNorm(nn.LayerNorm):
    """As Nemotron's, which stores its weight around 0."""

    def forward(self, input):
        return functional.layer_norm(input, self.normalized_shape, self.weight + 1, self.bias, self.eps)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("cls", [nn.LayerNorm, ShiftedNorm], ids=lambda cls: cls.__name__)
def test_a_layer_norm_is_replaced_and_fused(cls, bias: bool) -> None:
    plain = model()
    for layer in plain.model.layers:
        layer.post_attention_layernorm = cls(64, bias=bias)
        for parameter in layer.post_attention_layernorm.parameters():
            nn.init.normal_(parameter)
    plain.model.norm = cls(64, eps=1e-3, bias=bias)
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert {row.op for row in report.rows if row.kind == "norm"} == {"rms_norm", "layer_norm"}
    assert {row.op for row in report.rows if row.kind == "residual"} == {"add_layer_norm"}
    assert report.left() == []
    agree(patched, plain)
    train_alike(patched, plain)
    opmux_transformers.unpatch(patched)
    assert torch.equal(logits(patched, ids()), logits(plain, ids()))


def layer_norm_of_another_variance(self, input):
    centred = input - input.mean(-1, keepdim=True)
    return centred / (centred.var(-1, keepdim=True) + self.eps).sqrt() * self.weight + self.bias


def layer_norm_without_its_bias(self, input):
    return functional.layer_norm(input, self.normalized_shape, self.weight, self.bias * 0.5, self.eps)


@pytest.mark.parametrize(
    "forward", [layer_norm_of_another_variance, layer_norm_without_its_bias], ids=lambda f: f.__name__
)
def test_a_layer_norm_with_changed_maths_is_left_alone(forward) -> None:
    plain = model()
    plain.model.norm = nn.LayerNorm(64)  # its bias is zero and hides what is done with it
    subclassed(plain.model.norm, forward)
    patched = copy.deepcopy(plain)
    left = reasons(opmux_transformers.patch(patched), "norm")
    assert left["model.norm"].startswith("on random input it differs from the replacement by ")
    agree(patched, plain)


def test_a_norm_of_groups_is_no_norm_of_the_last_dim() -> None:
    """For two dims, a norm of one group computes the same as a layer norm."""
    plain = nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(1, 4))
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert list(reasons(report, "norm")) == ["1"]
    x = torch.randn(3, 4, 4)
    torch.testing.assert_close(patched(x), plain(x))


def test_a_weight_of_several_dims_is_left() -> None:
    """Cohere norms queries and keys with a row of weights for each head."""
    config = small_config("cohere")
    config.use_qk_norm = True
    plain = check.build(config, torch.float32)
    patched = copy.deepcopy(plain)
    left = reasons(opmux_transformers.patch(patched), "norm")
    assert set(left) == {f"model.layers.{i}.self_attn.{name}_norm" for i in (0, 1) for name in "qk"}
    assert set(left.values()) == {"its weight has several dims, that of an op has one"}
    agree(patched, plain)


def test_a_bias_of_another_dtype_is_left() -> None:
    patched = model()
    patched.model.norm = nn.LayerNorm(64)
    patched.model.norm.bias.data = patched.model.norm.bias.data.double()
    left = reasons(opmux_transformers.patch(patched), "norm")
    assert left == {"model.norm": "its bias is float64, its weight float32"}


class NoisyNorm(LLAMA.LlamaRMSNorm):
    def forward(self, hidden_states):
        return functional.dropout(super().forward(hidden_states), 0.5, self.training)


class SkippingNorm(LLAMA.LlamaRMSNorm):
    def forward(self, hidden_states):
        if self.training and torch.rand(()) < 1e-6:  # hardly ever: only the numbers drawn show it
            return hidden_states
        return super().forward(hidden_states)


class SteadyNorm(LLAMA.LlamaRMSNorm):
    def forward(self, hidden_states):
        return super().forward(hidden_states) * (1.1 if self.training else 1.0)


@pytest.mark.parametrize("cls", [NoisyNorm, SkippingNorm, SteadyNorm], ids=lambda cls: cls.__name__)
def test_a_norm_that_does_something_else_in_training_is_left_alone(cls) -> None:
    plain = model()
    plain.model.norm.__class__ = cls
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert reasons(report, "norm") == {"model.norm": TRAINING}
    agree(patched, plain)
    train_alike(patched, plain)


class Half(nn.Module):
    def forward(self, weight):
        return weight * 0.5


@pytest.mark.parametrize(
    "change",
    [
        lambda norm: parametrize.register_parametrization(norm, "weight", Half()),
        lambda norm: prune.custom_from_mask(norm, "weight", torch.arange(64) % 2),
    ],
    ids=["parametrised", "pruned"],
)
def test_a_norm_whose_weight_is_computed_is_named(change) -> None:
    plain, patched = pair()
    for of in (plain, patched):
        change(of.model.layers[0].input_layernorm)
    report = opmux_transformers.patch(patched)
    assert reasons(report, "norm") == {
        "model.layers.0.input_layernorm": "its weight is computed in every call, or is not a parameter"
    }
    assert report.replaced("norm") == 4
    agree(patched, plain)
