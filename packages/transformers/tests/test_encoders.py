"""Encoders: attention in both directions, ragged where rows are padded."""

import copy
from typing import Any

import pytest
import torch
import transformers
from samples import CLOSE, SIZES, ids, reasons
from torch import Tensor

import opmux
import opmux_transformers

ENCODERS = {
    "bert": lambda: transformers.BertConfig(**SIZES, type_vocab_size=2),
    "roberta": lambda: transformers.RobertaConfig(**SIZES, type_vocab_size=2),
    "distilbert": lambda: transformers.DistilBertConfig(
        vocab_size=128, dim=64, hidden_dim=96, n_layers=2, n_heads=4, pad_token_id=0
    ),
    "electra": lambda: transformers.ElectraConfig(**SIZES, embedding_size=32),
    "modernbert": lambda: transformers.ModernBertConfig(
        **SIZES, local_attention=6, layer_types=["sliding_attention", "full_attention"]
    ),
}


def pair(name: str) -> tuple[Any, Any]:
    """A small random encoder twice, with weights large enough that attention is not flat."""
    torch.manual_seed(0)
    plain = transformers.AutoModel.from_config(ENCODERS[name](), attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in plain.parameters():
            spread = 1.5 / parameter.shape[-1] ** 0.5 if parameter.ndim > 1 else 0.2
            parameter.add_(torch.randn_like(parameter) * spread)
    return plain, copy.deepcopy(plain)


def padded(left: int, right: int) -> Tensor:
    """A mask whose first row is padded."""
    mask = torch.ones_like(ids())
    mask[0, :left] = 0
    mask[0, mask.shape[1] - right :] = 0
    return mask


@pytest.mark.parametrize("name", ENCODERS)
def test_every_norm_and_attention_is_replaced(name: str) -> None:
    plain, patched = pair(name)
    norms = [m for m in plain.modules() if isinstance(m, torch.nn.LayerNorm)]
    report = opmux_transformers.patch(patched)
    assert report.counts()["norm"] == {"replaced": len(norms), "left": 0}
    assert report.counts()["attention"] == {"replaced": 2, "left": 0}
    with torch.no_grad(), opmux.trace() as trace:
        patched(ids())
    assert {row.op: row.calls for row in trace.rows}["attention"] == 2
    opmux_transformers.unpatch(patched)
    with torch.no_grad():
        assert torch.equal(patched(ids()).last_hidden_state, plain(ids()).last_hidden_state)


@pytest.mark.parametrize(("left", "right"), [(0, 0), (0, 5), (4, 0), (2, 3)])
@pytest.mark.parametrize("name", ENCODERS)
def test_states_agree_whatever_is_padded(name: str, left: int, right: int) -> None:
    plain, patched = pair(name)
    opmux_transformers.patch(patched)
    mask = padded(left, right)
    with torch.no_grad(), opmux.trace() as trace:
        own, theirs = (of(ids(), attention_mask=mask).last_hidden_state for of in (patched, plain))
    torch.testing.assert_close(own[mask.bool()], theirs[mask.bool()], **CLOSE)
    assert ("attention_varlen" in {row.op for row in trace.rows}) == bool(left + right)


@pytest.mark.parametrize("name", ENCODERS)
def test_gradients_agree(name: str) -> None:
    plain, patched = pair(name)
    opmux_transformers.patch(patched)
    mask = padded(0, 4)
    grads = []
    for of in (patched, plain):
        of(ids(), attention_mask=mask).last_hidden_state[mask.bool()].square().mean().backward()
        grads.append({path: p.grad for path, p in of.named_parameters() if p.grad is not None})
    own, theirs = grads
    assert own.keys() == theirs.keys()
    for path, expected in theirs.items():
        torch.testing.assert_close(own[path], expected, **CLOSE, msg=lambda m, path=path: f"{path}: {m}")


def test_a_layer_that_norms_after_its_sums_says_so() -> None:
    left = reasons(opmux_transformers.patch(pair("distilbert")[1]), "residual")
    assert set(left.values()) == {
        "its norms follow its sums, and only layers that norm before their attention are fused"
    }


def test_a_compiled_encoder_is_one_graph() -> None:
    plain, patched = pair("bert")
    opmux_transformers.patch(patched)
    compiled = torch.compile(patched, backend="eager", fullgraph=True)
    with torch.no_grad(), opmux.trace() as trace:
        got = compiled(ids()).last_hidden_state
        torch.testing.assert_close(got, plain(ids()).last_hidden_state, **CLOSE)
        mask = padded(0, 4)
        got = compiled(ids(), attention_mask=mask).last_hidden_state
        expected = plain(ids(), attention_mask=mask).last_hidden_state
    torch.testing.assert_close(got[mask.bool()], expected[mask.bool()], **CLOSE)
    assert {row.op: row.calls for row in trace.rows}["attention"] == 2  # with a mask, torch computes it


def test_a_mask_of_ones_own_is_applied_as_it_is() -> None:
    """Of four dims: with holes, and one that is expanded from a single True."""
    plain, patched = pair("bert")
    opmux_transformers.patch(patched)
    holes = torch.rand(2, 1, 12, 12) > 0.3
    holes[..., 0] = True
    for mask in (holes, torch.ones(1, 1, 1, 1, dtype=torch.bool).expand(2, 1, 12, 12)):
        with torch.no_grad():
            own = patched(ids(), attention_mask=mask).last_hidden_state
            added = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)  # as eager wants it
            theirs = plain(ids(), attention_mask=added).last_hidden_state
        torch.testing.assert_close(own, theirs, **CLOSE)


def test_an_encoder_that_attends_to_another_is_left() -> None:
    """BART's modules serve as self-attention and as cross-attention, whose queries are not those of the keys."""
    config = transformers.BartConfig(
        vocab_size=128, d_model=64, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=96, decoder_ffn_dim=96,
        encoder_attention_heads=4, decoder_attention_heads=4, max_position_embeddings=64, pad_token_id=0,
    )  # fmt: skip
    plain = transformers.BartModel(config).eval()
    patched = copy.deepcopy(plain)
    left = reasons(opmux_transformers.patch(patched), "attention")
    assert left["encoder.layers.0.self_attn"] == (
        "it attends in both directions, and its keys may be those of another sequence (`key_value_states`)"
    )
    assert len(left) == 3
    with torch.no_grad():
        own, theirs = (of(ids(), attention_mask=padded(0, 4)).last_hidden_state for of in (patched, plain))
    torch.testing.assert_close(own, theirs, **CLOSE)


@pytest.mark.filterwarnings("ignore")  # older versions of transformers script some of its functions
def test_embeddings_that_take_a_mask_are_no_attention() -> None:
    config = transformers.DebertaV2Config(**SIZES, type_vocab_size=0, embedding_size=32)
    left = reasons(opmux_transformers.patch(transformers.DebertaV2Model(config).eval()), "attention")
    assert [path for path in left if "embeddings" in path] == []
    assert len(left) == 2
