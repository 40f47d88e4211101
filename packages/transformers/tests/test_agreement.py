"""Buffers, numbers and large values that have an effect are seen by the check."""

import copy
from typing import Any

import pytest
import torch
from samples import LLAMA, agree, model, reasons
from torch import nn

import opmux_transformers
from opmux_transformers import agreement


class GainNorm(LLAMA.LlamaRMSNorm):
    def forward(self, hidden_states):
        return super().forward(hidden_states) * self.gain


class GainMLP(LLAMA.LlamaMLP):
    def forward(self, x):
        return super().forward(x) * self.gain


class GainLayer(LLAMA.LlamaDecoderLayer):
    def forward(self, hidden_states, **kwargs):
        return super().forward(hidden_states, **kwargs) * self.gain


GAINS = [
    ("norm", GainNorm, "post_attention_layernorm"),
    ("gate", GainMLP, "mlp"),
    ("residual", GainLayer, ""),
]


def with_gain(of, cls, path: str, gains: list[Any]) -> None:
    for layer, gain in zip(of.model.layers, gains, strict=True):
        changed = layer.get_submodule(path)
        changed.__class__ = cls
        changed.__dict__.pop("gain", None)
        if isinstance(gain, torch.Tensor):
            changed.register_buffer("gain", gain)
        else:
            changed.gain = gain


@pytest.mark.parametrize(("kind", "cls", "path"), GAINS, ids=[kind for kind, _, _ in GAINS])
@pytest.mark.parametrize("shape", [(), (64,)])
def test_a_module_with_a_buffer_that_has_an_effect_is_left_alone(kind: str, cls, path: str, shape) -> None:
    plain = model()
    with_gain(plain, cls, path, [torch.ones(shape), 2 * torch.ones(shape)])
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert report.counts()[kind]["left"] == 2
    assert "failed" not in str(reasons(report, kind))
    agree(patched, plain)


def test_a_buffer_without_an_effect_hinders_nothing() -> None:
    patched = model()
    for layer in patched.model.layers:
        layer.input_layernorm.register_buffer("seen", torch.tensor(1.0))
        layer.mlp.register_buffer("seen", torch.tensor(1.0))
        layer.register_buffer("seen", torch.tensor(1.0))
    assert opmux_transformers.patch(patched).left() == []


@pytest.mark.parametrize(("kind", "cls", "path"), GAINS, ids=[kind for kind, _, _ in GAINS])
def test_a_number_that_is_set_after_the_patch_has_its_effect(kind: str, cls, path: str) -> None:
    plain = model()
    with_gain(plain, cls, path, [1.0, 1.0])
    patched = copy.deepcopy(plain)
    assert opmux_transformers.patch(patched).replaced(kind) >= 2
    agree(patched, plain)
    for of in (plain, patched):
        of.model.layers[0].get_submodule(path).gain = 3.0
    agree(patched, plain)


class ClampingNorm(LLAMA.LlamaRMSNorm):
    def forward(self, hidden_states):
        return super().forward(hidden_states).clamp(-30, 30)


class ClampedNorm(LLAMA.LlamaRMSNorm):
    def forward(self, hidden_states):
        return super().forward(hidden_states.clamp(-500, 500))


class ClampingMLP(LLAMA.LlamaMLP):
    def forward(self, x):
        gate, up = self.act_fn(self.gate_proj(x).clamp(max=20.0)), self.up_proj(x).clamp(-20, 20)
        return self.down_proj(gate * up)


@pytest.mark.parametrize(
    ("path", "cls"), [("norm", ClampingNorm), ("norm", ClampedNorm), ("layers.0.mlp", ClampingMLP)]
)
def test_a_module_that_clamps_large_values_is_left_alone(path: str, cls) -> None:
    patched = model()
    patched.model.get_submodule(path).__class__ = cls
    (left,) = (row for row in opmux_transformers.patch(patched).left() if row.kind in ("norm", "gate"))
    assert left.module == f"model.{path}"
    assert left.reason.startswith("on random input it differs from the replacement by ")


def test_forwards_that_are_made_again_for_each_module_are_one() -> None:
    def make(module: nn.Module) -> None:
        def forward(self, x):
            return nn.Linear.forward(self, x)

        module.forward = forward.__get__(module)

    one, other, closed = (nn.Linear(4, 4) for _ in range(3))
    make(one)
    make(other)
    assert agreement.signature_of(one) == agreement.signature_of(other)
    closed.forward = (lambda self, x: other(x)).__get__(closed)
    assert agreement.signature_of(closed) != agreement.signature_of(one)
