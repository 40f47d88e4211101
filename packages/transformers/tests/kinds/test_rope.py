"""Rotary embedding: a rotation that computes or is called otherwise keeps its function."""

import copy
from unittest import mock

import pytest
import torch
import transformers
from samples import agree, changed_attention, generated, ids, model, reasons, subclassed, train_alike

import opmux
import opmux_transformers
from opmux_transformers import check
from opmux_transformers.configs import small_config


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


@pytest.mark.parametrize(
    ("name", "interleaved", "dims"),
    [("cohere", True, 16), ("glm", True, 8), ("ernie4_5", True, 16), ("helium", True, 16), ("phi", False, 8),
     ("stablelm", False, 4), ("gemma3n_text", False, 16)],
)  # fmt: skip
def test_rotations_of_neighbouring_dims_and_of_a_part_of_a_head(name: str, interleaved: bool, dims: int) -> None:
    plain = check.build(small_config(name), torch.float32)
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert report.counts()["rope"] == {"replaced": 2, "left": 0}
    assert report.replaced("rope tables") == 1
    seen = []
    own = opmux.apply_rope

    def recorded(q, k, cos, sin, positions=None, *, interleaved=False, **more):
        seen.append((interleaved, 2 * cos.shape[-1]))
        return own(q, k, cos, sin, positions, interleaved=interleaved, **more)

    with mock.patch.object(opmux, "apply_rope", recorded):
        agree(patched, plain)
    assert set(seen) == {(interleaved, dims)}
    train_alike(patched, plain)
    assert torch.equal(generated(patched, ids()), generated(plain, ids()))


def test_tables_of_neither_halves_nor_pairs_are_left() -> None:
    plain = model()
    maker = plain.model.rotary_emb

    def forward(self, x, position_ids):
        cos, sin = type(self).__mro__[1].forward(self, x, position_ids)
        return cos * torch.linspace(1, 2, cos.shape[-1]), sin

    subclassed(maker, forward)
    patched = copy.deepcopy(plain)
    left = reasons(opmux_transformers.patch(patched), "rope")
    assert set(left.values()) == {"its cos and sin have 16 dims that are neither equal halves nor equal pairs"}
    agree(patched, plain)


@pytest.mark.parametrize("interleave", [True, False])
def test_of_several_rotary_functions_the_one_that_is_called_is_replaced(interleave: bool) -> None:
    config = small_config("deepseek_v3")
    config.rope_interleave = interleave
    plain = check.build(config, torch.float32)
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert reasons(report, "rope") == reasons(report, "rope tables") == {}
    with opmux.trace() as trace:
        agree(patched, plain)
    assert "apply_rope" in {row.op for row in trace.rows}
    train_alike(patched, plain)
    assert torch.equal(generated(patched, ids()), generated(plain, ids()))


def test_a_forward_that_calls_two_rotary_functions_keeps_both() -> None:
    module, code = changed_attention()
    code = code.replace("SCALING", "self.scaling").replace("EXTRA", "").replace("FACTOR", "1.0")
    once = "apply_rotary_pos_emb(q, k, cos, sin)"
    code = code.replace(once, f"{once}; q, k = turn_again(q, k, cos, sin)")
    module.apply_rotary_pos_emb = module.turn_again = transformers.models.llama.modeling_llama.apply_rotary_pos_emb
    exec(compile(code, "strangers_modeling.py", "exec"), module.__dict__)
    plain = model()
    plain.model.layers[1].self_attn.__class__ = module.StrangersAttention
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert reasons(report, "rope") == {"model.layers.1.self_attn": "its forward calls several rotary functions"}
    agree(patched, plain)
