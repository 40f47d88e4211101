"""Families beyond the promised ones: what is left of them and why, and that the rest computes the same."""

import copy
from typing import Any

import pytest
import torch
import transformers
from samples import CLOSE, GREEDY, ids, logits, looks

import opmux_transformers
from opmux_transformers import check
from opmux_transformers.configs import small_config

PARALLEL = "no norm follows a residual sum in it"
NORMED_FIRST = "it norms the outputs before it adds them to the residual: no op does that in one"
ITS_OWN_CODE = "it mixes tokens in its own code, not through transformers' attention registry"
ITS_OWN_CALL = "it calls torch's scaled_dot_product_attention"
ADDS = "it adds a bias to its scores (`{}`), which opmux.attention does not have"
CACHE = "generate keeps its ordinary cache: "
NOT_ALL = CACHE + "not all of its attention is opmux's"

FAMILIES: dict[str, dict[str, set[str]]] = {
    "bert": {"cache": {CACHE + "the model does not generate"}},
    "bloom": {"attention": {f"{ITS_OWN_CODE}; {ADDS.format('alibi')}"}, "cache": {NOT_ALL}},
    "cohere": {"residual": {PARALLEL}},
    "cohere2": {"residual": {PARALLEL}},
    "deepseek_v2": {"cache": {CACHE + "model.layers.0.self_attn computes with the keys and values that a cache gives"}},
    "deepseek_v3": {"cache": {CACHE + "model.layers.0.self_attn computes with the keys and values that a cache gives"}},
    "ernie4_5": {},
    "exaone4": {"residual": {NORMED_FIRST}},
    "falcon": {"attention": {ITS_OWN_CALL}, "cache": {NOT_ALL}},
    "gemma3n_text": {
        "gate": {"on random input it differs from the replacement"},
        "residual": {"its forward raises RuntimeError on the input of a check"},
    },
    "glm": {},
    "glm4": {},
    "gpt2": {},
    "gpt_neox": {"residual": {"what it adds to the residual is not the previous output"}},
    "helium": {},
    "llama4_text": {"cache": {CACHE + "some of its layers attend within chunks"}},
    "mpt": {"attention": {f"{ITS_OWN_CODE}; {ADDS.format('position_bias')}"}, "cache": {NOT_ALL}},
    "nemotron": {},
    "olmo3": {"residual": {NORMED_FIRST}},
    "opt": {"residual": {"it computes something different in training"}},
    "phi": {
        "loss": {"its head is not a plain linear layer without a bias"},
        "residual": {"it does not call each of its children once"},
    },
    "stablelm": {},
    "starcoder2": {},
}
"""Why modules of each kind are left; nothing else is. Experts are another's business."""

OPS = {
    "bert": {"layer_norm", "attention"},
    "cohere": {"layer_norm", "apply_rope", "attention", "silu_mul"},
    "deepseek_v2": {"rms_norm", "add_rms_norm", "apply_rope", "attention"},
    "deepseek_v3": {"rms_norm", "add_rms_norm", "apply_rope", "attention"},
    "gpt2": {"layer_norm", "add_layer_norm", "attention", "fused_linear_cross_entropy"},
    "llama4_text": {"rms_norm", "add_rms_norm", "apply_rope", "attention"},
    "nemotron": {"layer_norm", "add_layer_norm", "apply_rope", "attention"},
    "starcoder2": {"layer_norm", "add_layer_norm", "apply_rope", "attention"},
}


def made(name: str, dtype: torch.dtype = torch.float32, **changed: Any) -> tuple[Any, Any]:
    """A small random model of a family twice."""
    config = small_config(name)
    for key, value in changed.items():
        setattr(config, key, value)
    plain = check.build(config, dtype)
    return plain, copy.deepcopy(plain)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_left_has_its_true_reason(name: str) -> None:
    report = opmux_transformers.patch(made(name)[1])
    left: dict[str, set[str]] = {}
    for row in report.left():
        left.setdefault(row.kind, set()).add(row.reason.partition(" by ")[0])
    left.pop("experts", None)
    assert left == FAMILIES[name]
    assert OPS.get(name, set()) <= {op for row in report.rows for op in row.op.split(", ")}


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_gradients_and_tokens_agree(name: str) -> None:
    found, _ = check.compare(small_config(name), torch.float32)
    assert [c for c in found if not c.passed] == []


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - {"deepseek_v2", "llama4_text"}))
def test_they_agree_within_rounding_in_bfloat16(name: str) -> None:
    """Without mixtures of experts, where rounding may send a token to another one."""
    found, _ = check.compare(small_config(name), torch.bfloat16)
    assert [c for c in found if not c.passed] == []


@pytest.mark.parametrize("name", FAMILIES)
def test_unpatch_puts_everything_back(name: str) -> None:
    plain, patched = made(name)
    before = looks(patched)
    opmux_transformers.patch(patched)
    logits(patched, ids())
    opmux_transformers.unpatch(patched)
    assert looks(patched) == before
    assert torch.equal(logits(patched, ids()), logits(plain, ids()))


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - {"bert"}))
def test_padded_prompts_generate_the_same(name: str) -> None:
    plain, patched = made(name)
    opmux_transformers.patch(patched)
    mask = torch.ones_like(ids())
    mask[0, :4] = 0
    expected = plain.generate(ids(), attention_mask=mask, **GREEDY)
    assert torch.equal(patched.generate(ids(), attention_mask=mask, **GREEDY), expected)


def test_gemma_3n_whose_layers_share_keys_and_values() -> None:
    kinds = ["sliding_attention", "full_attention"] * 2
    config = small_config("gemma3n_text").to_dict() | {
        "num_hidden_layers": 4, "layer_types": kinds, "num_kv_shared_layers": 2, "intermediate_size": [96] * 4,
        "activation_sparsity_pattern": [0.0] * 4,
    }  # fmt: skip
    plain = check.build(transformers.Gemma3nTextConfig(**config), torch.float32)
    patched = copy.deepcopy(plain)
    report = opmux_transformers.patch(patched)
    assert report.counts()["attention"] == report.counts()["rope"] == {"replaced": 4, "left": 0}
    assert report.counts()["gate"] == {"replaced": 4, "left": 0}
    torch.testing.assert_close(logits(patched, ids()), logits(plain, ids()), **CLOSE)
    mask = torch.ones_like(ids())
    expected = plain.generate(ids(), attention_mask=mask, **GREEDY)
    assert torch.equal(patched.generate(ids(), attention_mask=mask, **GREEDY), expected)


def test_gpt2_that_attends_to_another_model_computes_that_itself() -> None:
    """A layer takes states that its attention must not get: given any, its own forward runs."""
    plain, patched = made("gpt2")
    opmux_transformers.patch(patched)
    for of in (plain, patched):
        with pytest.raises(ValueError, match="encoder_hidden_states"):
            of.transformer.h[0](torch.randn(1, 3, 64), encoder_hidden_states=torch.randn(1, 3, 64))
