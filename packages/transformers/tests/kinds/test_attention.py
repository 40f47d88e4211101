"""Attention: modules of others, wrapped ones, ones in both directions, and the reasons for leaving them."""

import copy

import pytest
import torch
from samples import GREEDY, LLAMA, agree, changed_attention, ids, model, reasons, t5
from torch import nn

import opmux_transformers
from opmux_transformers import check
from opmux_transformers.configs import small_config


def test_an_attention_of_its_own_making_keeps_the_masks_of_all() -> None:
    class Own(nn.Module):
        def __init__(self, of) -> None:
            super().__init__()
            self.config, self.scale = of.config, of.head_dim**-0.5
            self.q_proj, self.o_proj = of.q_proj, of.o_proj

        def forward(self, hidden_states, position_embeddings=None, attention_mask=None, **_):
            q = self.q_proj(hidden_states)
            weights = (q @ q.mT * self.scale + attention_mask[:, 0]).softmax(-1)
            return self.o_proj(weights @ q * position_embeddings[0].mean()), None

    plain = model()
    plain.model.layers[1].self_attn = Own(plain.model.layers[1].self_attn)
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    stranger = "model.layers.1.self_attn"
    assert reasons(report, "attention") == {
        "model.layers.0.self_attn": f"it is replaced only together with {stranger}, which does not use the registry",
        stranger: "it mixes tokens in its own code, not through transformers' attention registry",
    }
    assert report.replaced("rope") == 1
    assert report.replaced("rope tables") == 0
    agree(patched, plain)


@pytest.mark.parametrize(
    ("scaling", "extra", "factor", "reason"),
    [
        ("self.scaling", "", "1.05", ""),
        ("self.scaling * (1.5 if attention_mask is None else 1.0)", "", "1.0", "differs from the replacement"),
        (
            "self.scaling",
            "position_bias=hidden_states, ",
            "1.0",
            "it hands attention `position_bias`, which opmux.attention does not have",
        ),
        ("self.scaling", "sliding_window=5, ", "1.0", "it passes the window 5, but its mask would have None"),
    ],
    ids=["another-output", "another-scale", "a-bias", "a-window"],
)
def test_a_strangers_attention(scaling: str, extra: str, factor: str, reason: str) -> None:
    module, code = changed_attention()
    code = code.replace("SCALING", scaling).replace("EXTRA", extra).replace("FACTOR", factor)
    exec(compile(code, "strangers_modeling.py", "exec"), module.__dict__)
    plain = model()
    plain.model.layers[1].self_attn.__class__ = module.StrangersAttention
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    left = reasons(report, "attention")
    if reason:
        assert reason in left["model.layers.1.self_attn"]
        assert left["model.layers.0.self_attn"] == (
            "it is replaced only together with model.layers.1.self_attn, whose attention is left"
        )
        assert patched.config._attn_implementation == "eager"
    else:  # what it computes is its own business: attention lies inside, and is what opmux computes
        assert left == {}
    if "bias" not in extra:
        agree(patched, plain)


def layer_that_looks_at_its_number(self, hidden_states, **kwargs):
    hidden_states = type(self).__mro__[1].forward(self, hidden_states, **kwargs)
    return hidden_states * 2 if self.layer_idx else hidden_states


def test_layers_that_look_at_their_number_are_judged_one_by_one() -> None:
    plain = model()
    changed = type(
        "Numbered",
        (type(plain.model.layers[0]),),
        {"forward": layer_that_looks_at_its_number, "__module__": __name__},
    )
    for index, layer in enumerate(plain.model.layers):
        layer.__class__, layer.layer_idx = changed, index
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert list(reasons(report, "residual")) == ["model.layers.1"]
    agree(patched, plain)


def test_a_layer_whose_mask_is_no_window() -> None:
    patched = model("qwen3")
    patched.config.layer_types = ["full_attention", "chunked_attention"]
    left = reasons(opmux_transformers.patch(patched), "attention")
    assert (
        left["model.layers.1.self_attn"]
        == "its layer is of the kind 'chunked_attention': only full, sliding and chunked attention are known"
    )


def test_the_reasons_for_t5() -> None:
    report = opmux_transformers.patch(t5(0.0))
    assert not [row.reason for row in report.left() if "Error" in row.reason]
    attention = reasons(report, "attention")
    assert attention["decoder.block.0.layer.0.SelfAttention"] == (
        "its forward takes no `attention_mask`: its mask is not the one that opmux makes"
    )
    assert set(reasons(report, "residual").values()) == {
        "it returns more than the hidden states",
        "its forward needs `key_value_states`, which a check cannot provide",
    }


def test_an_attention_that_needs_more_than_a_check_can_give() -> None:
    class Sharing(LLAMA.LlamaAttention):
        def forward(self, hidden_states, position_embeddings, attention_mask, shared_states, **kwargs):
            return super().forward(hidden_states, position_embeddings, attention_mask, **kwargs)

    patched = model()
    patched.model.layers[1].self_attn.__class__ = Sharing
    left = reasons(opmux_transformers.patch(patched), "attention")
    assert left["model.layers.1.self_attn"] == "its forward needs `shared_states`, which a check cannot provide"


def test_an_attention_that_scales_by_positions_is_replaced() -> None:
    changed = {**small_config("ministral3").rope_parameters, "original_max_position_embeddings": 8}
    config = small_config("ministral3")
    config.rope_parameters = {**changed, "llama_4_scaling_beta": 0.5}
    plain = check.build(config, torch.float32)
    patched = copy.deepcopy(plain)
    assert opmux_transformers.patch(patched).left() == []
    agree(patched, plain)
    mask = torch.ones_like(ids())
    mask[0, :5] = 0
    expected = plain.generate(ids(), attention_mask=mask, **GREEDY)
    assert torch.equal(patched.generate(ids(), attention_mask=mask, **GREEDY), expected)


def test_a_causal_model_whose_layer_is_said_not_to_be_keeps_its_masks() -> None:
    """transformers' eager attention goes by the mask, which is causal; opmux's would go by the layer."""
    plain = model()
    plain.model.layers[1].self_attn.is_causal = False
    patched = copy.deepcopy(plain)
    left = reasons(opmux_transformers.patch(patched), "attention")
    assert left["model.layers.1.self_attn"] == "it attends in both directions, but the masks of its model are causal"
    agree(patched, plain)
