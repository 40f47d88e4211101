"""The short way of attention modules for one new token: when it is taken, and that it gives what the forward gives."""

import copy

import pytest
import torch
from samples import CLOSE, GREEDY, ids, logits, model, pair

import opmux_transformers
from opmux_transformers.kinds import decode

SHORT = ("llama", "qwen2", "qwen3", "gemma3_text", "granite")


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each decoding that was tried was given by the short way."""
    found: list[bool] = []
    own = decode.Decoding.step

    def step(*args):
        result = own(*args)
        found.append(result is not None)
        return result

    monkeypatch.setattr(decode.Decoding, "step", step)
    return found


def patched_pair(name: str, taken: list[bool], **changed):
    plain, patched = pair(name, **changed)
    opmux_transformers.patch(patched)
    taken.clear()
    return plain, patched


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize("batch", [1, 3])
def test_one_token_takes_the_short_way(name: str, batch: int, taken: list[bool]) -> None:
    plain, patched = patched_pair(name, taken)
    cache = opmux_transformers.PagedCache(patched)
    tokens = ids(12, batch)
    logits(patched, tokens[:, :9], past_key_values=cache)
    assert not any(taken)
    taken.clear()
    got = [logits(patched, tokens[:, at : at + 1], past_key_values=cache) for at in range(9, 12)]
    assert taken == [True] * (3 * len(patched.model.layers))
    torch.testing.assert_close(torch.cat(got, 1), logits(plain, tokens)[:, 9:], **CLOSE)


@pytest.mark.parametrize("name", ["phi3", "olmo2", "gemma2", "gpt_oss"])
def test_other_wirings_are_left_to_their_forward(name: str, taken: list[bool]) -> None:
    plain, patched = patched_pair(name, taken)
    mask = torch.ones_like(ids())
    got = patched.generate(ids(), attention_mask=mask, **GREEDY)
    assert torch.equal(got, plain.generate(ids(), attention_mask=mask, **GREEDY))
    assert not taken


def test_positions_of_their_own_for_every_sequence(taken: list[bool]) -> None:
    plain, patched = patched_pair("llama", taken)
    cache = opmux_transformers.PagedCache(patched)
    positions = torch.arange(8) + torch.tensor([[3], [0]])
    logits(patched, ids(8)[:, :7], past_key_values=cache, position_ids=positions[:, :7])
    got = logits(patched, ids(8)[:, 7:], past_key_values=cache, position_ids=positions[:, 7:])
    assert taken[-1]
    torch.testing.assert_close(got, logits(plain, ids(8), position_ids=positions)[:, 7:], **CLOSE)


def test_a_padded_batch_is_left_to_the_forward(taken: list[bool]) -> None:
    plain, patched = patched_pair("llama", taken)
    mask = torch.ones_like(ids())
    mask[0, :4] = 0
    got = patched.generate(ids(), attention_mask=mask, **GREEDY)
    assert torch.equal(got, plain.generate(ids(), attention_mask=mask, **GREEDY))
    assert not taken


def test_two_caches_in_turn(taken: list[bool]) -> None:
    plain, patched = patched_pair("qwen3", taken)
    tokens = ids(10)
    caches = [opmux_transformers.PagedCache(patched) for _ in range(2)]
    for cache, length in zip(caches, (4, 7), strict=True):
        logits(patched, tokens[:, :length], past_key_values=cache)
    for step in range(3):
        for cache, length in zip(caches, (4, 7), strict=True):
            at = length + step
            got = logits(patched, tokens[:, at : at + 1], past_key_values=cache)
            torch.testing.assert_close(got, logits(plain, tokens)[:, at : at + 1], **CLOSE)
    assert any(taken)


def test_a_cache_whose_rows_change_in_number(taken: list[bool]) -> None:
    plain, patched = patched_pair("llama", taken)
    cache = opmux_transformers.PagedCache(patched)
    tokens = ids(10)
    logits(patched, tokens[:, :6], past_key_values=cache)
    logits(patched, tokens[:, 6:7], past_key_values=cache)
    cache.batch_select_indices(torch.tensor([1]))
    got = logits(patched, tokens[1:, 7:8], past_key_values=cache)
    torch.testing.assert_close(got, logits(plain, tokens[1:, :8])[:, 7:], **CLOSE)
    assert taken[-1]


def test_a_copy_decodes_with_its_own_parameters(taken: list[bool]) -> None:
    plain, patched = patched_pair("qwen3", taken)
    copied = copy.deepcopy(patched)
    with torch.no_grad():
        for of in (plain, copied):
            for parameter in of.parameters():
                parameter.mul_(1.5)
    cache = opmux_transformers.PagedCache(copied)
    logits(copied, ids(8)[:, :7], past_key_values=cache)
    got = logits(copied, ids(8)[:, 7:], past_key_values=cache)
    torch.testing.assert_close(got, logits(plain, ids(8))[:, 7:], **CLOSE)
    assert taken[-1]


@pytest.mark.parametrize("changed", [{"norm": False}, {"attention": False}, {"rope": False}])
def test_what_is_left_of_an_attention_leaves_the_short_way_too(changed: dict[str, bool], taken: list[bool]) -> None:
    patched = model("qwen3")
    opmux_transformers.patch(patched, **changed)
    taken.clear()
    patched.generate(ids(), attention_mask=torch.ones_like(ids()), **GREEDY)
    assert not taken


def test_training_and_other_attention_keywords_are_left_to_the_forward(taken: list[bool]) -> None:
    _, patched = patched_pair("llama", taken)
    cache = opmux_transformers.PagedCache(patched)
    logits(patched, ids(8), past_key_values=cache)
    logits(patched, ids(1), past_key_values=cache, softcap=20.0)
    patched.train()
    logits(patched, ids(1), past_key_values=cache)
    assert not any(taken)
