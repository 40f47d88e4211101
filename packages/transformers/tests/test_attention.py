"""The attention function: what falls back to torch, and what is refused."""

import pytest
import torch
from samples import CLOSE, ids, logits, model, pair

import opmux
import opmux_transformers
from opmux.errors import UnsupportedCall
from opmux_transformers.attention import whole_mask_attention

OPTIONS = {"scale": None, "causal": True, "window": (-1, -1), "softcap": 0.0}


def test_a_mask_of_another_rank_is_refused() -> None:
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(UnsupportedCall) as caught:
        whole_mask_attention(q, q, q, torch.ones(1, 3, dtype=torch.bool), None, 0.0, OPTIONS)
    assert str(caught.value) == (
        "opmux_transformers: `attention_mask` expected four dims (batch, heads, queries, keys), got [1, 3]; pass the"
        " model a mask (batch, keys), which transformers turns into the form that attention takes"
    )


def test_a_mask_of_integers_is_refused() -> None:
    patched = model()
    opmux_transformers.patch(patched)
    for dtype in (torch.int32, torch.int64):
        with pytest.raises(UnsupportedCall) as caught:
            logits(patched, ids(), attention_mask=torch.ones(2, 1, 12, 12, dtype=dtype).tril())
        assert str(caught.value) == (
            "opmux_transformers: `attention_mask` of four dims expected bool (True counts) or floating numbers (added"
            f" to the scores), got {str(dtype).removeprefix('torch.')}; call .bool() on it if 1 stands for what counts"
        )


def test_offsets_of_packed_sequences_without_their_companions_are_passed_over() -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    packed = {"position_ids": torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3]]), "use_cache": False}
    got = logits(patched, ids(12, 1), **packed, cu_seq_lens_q=torch.tensor([0, 5, 8, 12], dtype=torch.int32))
    torch.testing.assert_close(got, logits(plain, ids(12, 1), **packed), **CLOSE)


@pytest.mark.parametrize("softcap", [0.0, 5.0])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_torchs_attention_under_a_whole_mask_is_that_of_the_op(softcap: float, with_sinks: bool) -> None:
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 8)
    sinks = torch.randn(4) if with_sinks else None
    options = {"scale": 0.3, "causal": True, "window": (2, -1), "softcap": softcap}
    expected = opmux.attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), sinks, **options)
    got = whole_mask_attention(q, k, v, None, sinks, 0.0, options)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
