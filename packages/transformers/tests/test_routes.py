"""Prompts whose tokens go to the same experts in several models."""

import copy

import pytest
import torch
from samples import model

import opmux_transformers
from opmux_transformers import check
from opmux_transformers.configs import small_config
from opmux_transformers.routes import TRIES, routed_alike, routes


def numbered(config):
    """Makes prompts, and lists the numbers that they were made for."""
    made = []

    def make(number: int) -> torch.Tensor:
        made.append(number)
        return check.prompts(config, number)

    return make, made


def test_routes_of_a_model_and_of_its_patched_copy() -> None:
    plain = model("mixtral")
    patched = copy.deepcopy(plain)
    opmux_transformers.patch(patched)
    ids = check.prompts(plain.config)
    own, theirs = routes(patched, ids), routes(plain, ids)
    assert len(own) == plain.config.num_hidden_layers
    assert [r.shape for r in own] == [(ids.numel(), plain.config.num_experts_per_tok)] * len(own)
    assert all(torch.equal(a, b) for a, b in zip(own, theirs, strict=True))
    assert all(not m._forward_pre_hooks for m in (*plain.modules(), *patched.modules()))


def test_prompts_are_tried_until_all_agree_or_the_nearest_is_taken() -> None:
    plain = model("mixtral")
    make, made = numbered(plain.config)
    assert torch.equal(routed_alike((plain, plain), make), make(0))
    assert max(made) == 0
    other = model("mixtral")
    for layer in other.model.layers:
        with torch.no_grad():
            layer.mlp.gate.weight.neg_()  # the least suitable experts instead
    make, made = numbered(plain.config)
    found = routed_alike((plain, other), make)
    assert sorted(set(made)) == list(range(TRIES))
    assert any(torch.equal(found, check.prompts(plain.config, number)) for number in range(TRIES))


def test_a_model_without_experts_takes_the_first_prompts() -> None:
    plain = model("llama")
    make, made = numbered(plain.config)
    routed_alike((plain, plain), make)
    assert made == [0]


@pytest.mark.parametrize("seed", [0, 5])
def test_gradients_of_deepseek_v2_in_bfloat16(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With these seeds, rounding sends tokens of the first prompts to other experts."""
    monkeypatch.setattr(check, "SEED", seed)
    comparisons, _ = check.compare(small_config("deepseek_v2"), torch.bfloat16)
    assert [c for c in comparisons if not c.passed] == []
