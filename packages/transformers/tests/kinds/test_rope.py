"""Rotary embedding: a rotation that computes or is called otherwise keeps its function."""

import copy

import pytest
import transformers
from samples import agree, changed_attention, model, reasons, subclassed

import opmux_transformers


def test_an_attention_that_wraps_another_keeps_its_rotation() -> None:
    plain = model()

    def forward(self, hidden_states, *args, **kwargs):
        output, weights = type(self).__mro__[1].forward(self, hidden_states, *args, **kwargs)
        return output * 1.05, weights

    subclassed(plain.model.layers[1].self_attn, forward)
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert report.replaced("attention") == 2  # it asks for its attention by name, whoever computes that
    assert reasons(report, "rope") == {"model.layers.1.self_attn": "its forward calls no function (q, k, cos, sin)"}
    assert reasons(report, "rope tables") == {"model.rotary_emb": "not every layer that uses them was replaced"}
    agree(patched, plain)


def test_a_rotation_with_changed_maths_is_left_alone() -> None:
    module, code = changed_attention()
    code = code.replace("SCALING", "self.scaling").replace("EXTRA", "").replace("FACTOR", "1.0")

    def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
        q, k = transformers.models.llama.modeling_llama.apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim)
        return q * 1.01, k

    apply_rotary_pos_emb.__module__ = "strangers_modeling"
    module.apply_rotary_pos_emb = apply_rotary_pos_emb
    exec(compile(code, "strangers_modeling.py", "exec"), module.__dict__)
    plain = model()
    plain.model.layers[1].self_attn.__class__ = module.StrangersAttention
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert "differs from the replacement" in reasons(report, "rope")["model.layers.1.self_attn"]
    assert report.replaced("attention") == 2
    assert reasons(report, "rope tables") == {"model.rotary_emb": "not every layer that uses them was replaced"}
    agree(patched, plain)


@pytest.mark.parametrize("how", ["inverse=True", "-3"], ids=["another-option", "another-place"])
def test_a_rotation_that_is_called_in_another_way_is_left_alone(how: str) -> None:
    module, code = changed_attention()
    code = code.replace("SCALING", "self.scaling").replace("EXTRA", "").replace("FACTOR", "1.0")
    code = code.replace("apply_rotary_pos_emb(q, k, cos, sin)", f"apply_rotary_pos_emb(q, k, cos, sin, {how})")

    def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1, inverse=False):
        sin = -sin if inverse else sin
        return transformers.models.llama.modeling_llama.apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim)

    apply_rotary_pos_emb.__module__ = "strangers_modeling"
    module.apply_rotary_pos_emb = apply_rotary_pos_emb
    exec(compile(code, "strangers_modeling.py", "exec"), module.__dict__)
    plain = model()
    plain.model.layers[1].self_attn.__class__ = module.StrangersAttention
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert list(reasons(report, "rope")) == ["model.layers.1.self_attn"]
    assert report.replaced("attention") == 2
    agree(patched, plain)
