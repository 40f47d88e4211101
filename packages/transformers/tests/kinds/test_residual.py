"""Residual sums: a layer that is wired otherwise, or drops before its sum, keeps its forward."""

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
from torch.nn import functional

import opmux_transformers
from opmux_transformers import check
from opmux_transformers.configs import small_config


def test_a_layer_that_adds_something_else_is_left_alone() -> None:
    plain = model()

    def forward(self, hidden_states, **kwargs):
        return type(self).__mro__[1].forward(self, hidden_states, **kwargs) + 0.1 * hidden_states

    subclassed(plain.model.layers[0], forward)
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert reasons(report, "residual") == {"model.layers.0": "what it adds to the residual is not the previous output"}
    agree(patched, plain)


class DroppingLayer(LLAMA.LlamaDecoderLayer):
    rate = 0.5

    def forward(self, hidden_states, **kwargs):
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
        hidden_states = hidden_states + functional.dropout(attended, self.rate, self.training)
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))


@pytest.mark.parametrize(("rate", "left"), [(0.5, 2), (0.0, 0)])
def test_a_layer_that_drops_before_its_sum_is_left_alone(rate: float, left: int, monkeypatch) -> None:
    monkeypatch.setattr(DroppingLayer, "rate", rate)
    plain = model()
    for layer in plain.model.layers:
        layer.__class__ = DroppingLayer
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert list(reasons(report, "residual").values()) == [TRAINING] * left
    agree(patched, plain)
    train_alike(patched, plain)


def test_dropout_of_the_modules_of_a_layer_and_of_its_attention_hinders_nothing() -> None:
    config = small_config("phi3")
    config.resid_pdrop, config.attention_dropout = 0.3, 0.2
    patched = check.build(config, torch.float32)
    assert opmux_transformers.patch(patched).counts()["residual"] == {"replaced": 2, "left": 0}


def test_hooks_on_the_fused_norm_still_fire() -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    seen = []
    handle = patched.model.layers[0].post_attention_layernorm.register_forward_hook(lambda *call: seen.append(call))
    torch.testing.assert_close(logits(patched, ids()), logits(plain, ids()), **CLOSE)
    assert len(seen) == 1
    handle.remove()
