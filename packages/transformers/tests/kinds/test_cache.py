"""The cache of ``generate``: pages where all attention reads them, else the ordinary one with a reason."""

import pytest
import torch
from samples import GREEDY, generated, ids, model, pair

import opmux_transformers


def test_generate_after_attention_was_taken_back_keeps_its_ordinary_cache() -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    mask = torch.ones_like(ids())
    expected = plain.generate(ids(), attention_mask=mask, **GREEDY)
    for name in ("sdpa", "opmux", "eager"):
        patched.set_attn_implementation(name)
        assert torch.equal(patched.generate(ids(), attention_mask=mask, **GREEDY), expected)


def test_a_model_without_generate_says_why_it_keeps_no_pages() -> None:
    report = opmux_transformers.patch(model().model)
    assert [row.reason for row in report.left("cache")] == [
        "generate keeps its ordinary cache: the model does not generate"
    ]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("qwen3_next", "some of its layers keep other states than keys and values: LinearAttentionLayer"),
        ("glm4_moe_lite", "model.layers.0.self_attn computes with the keys and values that a cache gives"),
        ("jetmoe", "model.layers.0.self_attention computes with the keys and values that a cache gives"),
        ("minimax", "it has its own kind of cache"),
        ("bloom", "not all of its attention is opmux's"),
    ],
)
def test_models_whose_layers_are_no_pages_keep_their_ordinary_cache(name: str, reason: str) -> None:
    plain, patched = pair(name)
    report = opmux_transformers.patch(patched)
    assert [row.reason for row in report.left("cache")] == [f"generate keeps its ordinary cache: {reason}"]
    assert torch.equal(generated(patched, ids()), generated(plain, ids()))


def test_pages_need_the_whole_attention() -> None:
    report = opmux_transformers.patch(model(), attention=False)
    assert [row.reason for row in report.left("cache")] == [
        "generate keeps its ordinary cache: not all of its attention is opmux's"
    ]
