"""The mask of opmux's attention, and the ragged sequences that padding becomes."""

import pytest
import torch
from samples import CLOSE, GREEDY, ids, logits, pair
from transformers.masking_utils import (
    causal_mask_function,
    chunked_causal_mask_function,
    create_causal_mask,
    create_sliding_window_causal_mask,
)

import opmux
import opmux_transformers
from opmux_transformers.masks import (
    bounds_in,
    bounds_of,
    in_both_directions,
    opmux_mask,
    says_nothing,
    sees_all,
    segments,
)


def kept(*rows: str) -> torch.Tensor:
    """Rows of a mask, as ``..xxx``."""
    return torch.tensor([[c == "x" for c in row] for row in rows])


def test_nothing_padded_is_no_mask() -> None:
    sizes = {"batch_size": 2, "q_length": 5, "kv_length": 5}
    assert opmux_mask(**sizes) is None
    assert opmux_mask(**sizes, attention_mask=kept("xxxxx", "xxxxx")) is None
    assert opmux_mask(batch_size=1, q_length=1, kv_length=7, q_offset=6) is None
    assert opmux_mask(batch_size=1, q_length=3, kv_length=7, q_offset=6, kv_offset=2) is None


def test_one_value_in_memory_is_no_mask() -> None:
    sizes = {"batch_size": 2, "q_length": 5, "kv_length": 5}
    one = torch.ones(1, 1, dtype=torch.bool)
    assert opmux_mask(**sizes, attention_mask=one.expand(2, 5)) is None
    assert says_nothing(one.expand(1, 5))
    assert not says_nothing(kept("xxxxx", "xxxxx"))
    assert not says_nothing(kept("..xxx")[:, :1].clone())


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "gpt_oss"])
def test_packed_sequences_stay_apart(name: str, compiled: bool) -> None:
    plain, patched = pair(name)
    opmux_transformers.patch(patched)
    run = torch.compile(patched, backend="eager", fullgraph=True) if compiled else patched
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]])
    keywords = {"position_ids": positions, "use_cache": False}
    got = logits(run, ids(batch=1), **keywords)
    torch.testing.assert_close(got, logits(plain, ids(batch=1), **keywords), **CLOSE)
    torch.testing.assert_close(got[:, :5], logits(plain, ids(batch=1)[:, :5]), **CLOSE)


@pytest.mark.parametrize("given", ["ids", "embeddings", "positional"])
def test_a_call_with_nothing_but_tokens_never_waits_for_the_device(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    tokens = ids()
    inputs = {"inputs_embeds": plain.get_input_embeddings()(tokens).detach()} if given == "embeddings" else {}
    args = () if inputs else (tokens,)
    expected = logits(plain, tokens)
    monkeypatch.setattr("transformers.masking_utils.find_packed_sequence_indices", refuse)
    run = patched.model if given == "positional" else patched
    with torch.no_grad():
        out = run(*args, **inputs, use_cache=False)
    got = patched.lm_head(out.last_hidden_state) if given == "positional" else out.logits
    torch.testing.assert_close(got, expected, **CLOSE)


def refuse(position_ids: torch.Tensor) -> None:
    raise AssertionError("transformers looked for packed sequences")


def test_padding_on_either_side_is_bounds() -> None:
    found = opmux_mask(batch_size=4, q_length=5, kv_length=5, attention_mask=kept("..xxx", "xxxx.", ".xx..", "....."))
    assert found is not None
    assert found.dtype == torch.int32
    assert found.squeeze((2, 3)).tolist() == [[2, 0, 1, 0], [5, 4, 3, 0]]


def test_bounds_are_counted_from_the_first_key_that_is_there() -> None:
    found = opmux_mask(batch_size=1, q_length=1, kv_length=4, q_offset=5, kv_offset=2, attention_mask=kept("...xxx"))
    assert found is not None
    assert found.squeeze((2, 3)).tolist() == [[1], [4]]


@pytest.mark.parametrize(
    "given",
    [
        {"attention_mask": kept("xx.xx")},
        {"allow_is_causal_skip": False},
        {"kv_length": 9},
        {"q_offset": torch.tensor(0)},
    ],
    ids=["holes", "custom", "static-cache", "offset-on-the-device"],
)
def test_everything_else_is_a_whole_mask(given) -> None:
    found = opmux_mask(**{"batch_size": 1, "q_length": 5, "kv_length": 5, **given})
    assert found is not None
    assert found.dtype == torch.bool
    assert found.shape == (1, 1, 5, given.get("kv_length", 5))


def test_chunked_layers_get_a_whole_mask_past_the_first_chunk() -> None:
    """Other layers of the same configuration name no size, or that of their window."""

    class Chunked:
        attention_chunk_size = 4

    for keys, size, whole in ((5, 4, True), (4, 4, False), (5, None, False), (5, 3, False)):
        own = {} if size is None else {"local_size": size}
        function = chunked_causal_mask_function(4, torch.zeros(1, dtype=torch.int)) if whole else causal_mask_function
        found = opmux_mask(1, keys, keys, mask_function=function, config=Chunked(), **own)
        assert (found is not None) == whole
    expected = [[i // 4 == j // 4 and j <= i for j in range(5)] for i in range(5)]
    found = opmux_mask(
        1, 5, 5, mask_function=chunked_causal_mask_function(4, torch.zeros(1, dtype=torch.int)), config=Chunked(),
        local_size=4,
    )  # fmt: skip
    assert found[0, 0].tolist() == expected


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss"])
@pytest.mark.parametrize("cache", ["paged", "static", "none"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_prompt_gives_the_same_tokens(name: str, cache: str, side: str) -> None:
    plain, patched = pair(name)
    opmux_transformers.patch(patched)
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[0, slice(0, 5) if side == "left" else slice(7, 12)] = 0
    how = {
        "paged": {},
        "static": {"cache_implementation": "static", "disable_compile": True},
        "none": {"use_cache": False},
    }
    keywords = {"attention_mask": mask, **GREEDY, **how[cache]}
    assert torch.equal(patched.generate(ids(), **keywords), plain.generate(ids(), **keywords))


@pytest.mark.parametrize(
    ("name", "make"), [("llama", create_causal_mask), ("mistral", create_sliding_window_causal_mask)]
)
def test_a_mask_that_was_made_before_is_taken_as_it_is(name: str, make) -> None:
    plain, patched = pair(name)
    opmux_transformers.patch(patched)
    kept = torch.ones(2, 12, dtype=torch.int64)
    kept[0, :5] = 0
    made = [make(of.config, of.get_input_embeddings()(ids()), kept, past_key_values=None) for of in (plain, patched)]
    expected, got = (logits(of, ids(), attention_mask=mask) for of, mask in zip((plain, patched), made, strict=True))
    torch.testing.assert_close(got[kept.bool()], expected[kept.bool()], **CLOSE)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_the_loss_of_a_padded_batch_whose_padding_has_no_label(name: str, side: str) -> None:
    plain, patched = pair(name)
    opmux_transformers.patch(patched)
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[0, slice(0, 5) if side == "left" else slice(7, 12)] = 0
    labels = ids().masked_fill(mask == 0, -100)
    labels[0, 5] = -100  # on the left, the last position of the padding would have to say it
    given = {"attention_mask": mask, "labels": labels, "use_cache": False}
    with opmux.trace() as trace:
        own, theirs = (of.train()(ids(), **given).loss for of in (patched, plain))
    assert "attention_varlen_lse" in {row.op for row in trace.rows}
    torch.testing.assert_close(own, theirs, **CLOSE)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_an_expanded_mask_of_the_users_own_is_taken_as_it_is(name: str, value: bool, compiled: bool) -> None:
    windowed = {"sliding_window": 4} if name == "mistral" else {}
    plain, patched = pair(name, **windowed)
    opmux_transformers.patch(patched)
    plain.set_attn_implementation("sdpa")  # eager attention adds a boolean mask to the scores
    run = torch.compile(patched, backend="eager", fullgraph=True) if compiled else patched
    mask = torch.full((1, 1, 1, 1), value).expand(1, 1, 8, 8)
    keywords = {"attention_mask": mask, "use_cache": False}
    tokens = ids(8, 1)
    torch.testing.assert_close(logits(run, tokens, **keywords), logits(plain, tokens, **keywords), **CLOSE)


@pytest.mark.parametrize("padding", [None, kept("xxxxx", "xxxxx")])
def test_nothing_hidden_in_both_directions_is_no_mask_that_a_user_has(padding: torch.Tensor | None) -> None:
    both = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": True, "device": "cpu"}
    found = opmux_mask(batch_size=2, q_length=5, kv_length=5, attention_mask=padding, **both)
    assert found is not None
    assert found.dtype == torch.int32
    assert found.shape == (1, 1, 0, 1)
    assert sees_all(found)
    assert in_both_directions(found)
    assert bounds_in(found) is None
    assert not sees_all(torch.ones(1, 1, 1, 1, dtype=torch.bool).expand(2, 1, 5, 5))


def test_rows_with_holes_have_no_bounds() -> None:
    assert bounds_of(kept("xx.x", "xxxx")) is None
    found = bounds_of(kept(".xx.", "...."))
    assert found is not None
    assert found.tolist() == [[1, 0], [3, 0]]


def test_segments_cut_rows_in_three() -> None:
    bounds = torch.tensor([[2, 0], [5, 4]], dtype=torch.int32)
    cu_q, cu_k = segments(bounds, queries=5, keys=5, row_of_keys=5)
    assert cu_q.tolist() == cu_k.tolist() == [0, 2, 5, 5, 5, 9, 10]
    cu_q, cu_k = segments(bounds, queries=1, keys=5, row_of_keys=8)
    assert cu_q.tolist() == [0, 0, 1, 1, 1, 1, 2]
    assert cu_k.tolist() == [0, 2, 5, 8, 8, 12, 16]
    assert cu_q.dtype == cu_k.dtype == torch.int32
