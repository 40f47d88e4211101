"""The targets by flash attention, on ops that behave like those of a GPU: opmux's conventions come out of them."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

import opmux
from opmux_vendor import flash

STALE = 7.0
"""What unwritten memory holds."""


def _starts(cu_seqlens: Tensor) -> list[tuple[int, int]]:
    return list(pairwise(cu_seqlens.tolist()))


def _window(max_k: int, *, window_size_left: int | None, window_size_right: int | None) -> tuple[int, int]:
    """A side as long as the longest sequence is open."""
    left, right = (-1 if side is None or side >= max_k else side for side in (window_size_left, window_size_right))
    return left, right


class FlashOps:
    """Flash attention's aten ops as torch's kernels on GPUs behave, in plain PyTorch.

    The lse is +inf in rows that attend to nothing and in rows of NaN; a ragged batch is written up to its last offset;
    a bound of one query is taken for one query of each sequence, and a side of the window that reaches the bound of the
    keys for an open one.
    """

    def _flash_attention_forward(
        self, q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int, dropout: float,
        causal: bool, debug: bool, *, scale: float | None, **window: int | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        if max_q == 1:
            assert q.shape[0] == cu_q.numel() - 1, "one query of each sequence"
        out, lse = torch.full_like(q, STALE), torch.full((q.shape[1], q.shape[0]), STALE)
        for (a, b), (c, d) in zip(_starts(cu_q), _starts(cu_k), strict=True):
            one, of_one = opmux.attention_lse.reference(
                q[None, a:b], k[None, c:d], v[None, c:d], causal=causal, scale=scale, window=_window(max_k, **window)
            )
            out[a:b], lse[:, a:b] = one[0], torch.where(of_one.isnan() | (of_one == -math.inf), math.inf, of_one)[0]
        return out, lse

    def _flash_attention_backward(
        self, grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, cu_q: Tensor, cu_k: Tensor,
        max_q: int, max_k: int, dropout: float, causal: bool, state: Tensor, unused: Tensor, *, scale: float | None,
        **window: int | None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        assert not (lse == -math.inf).any(), "flash attention writes +inf for a row that attends to nothing"
        assert lse.is_contiguous(), "flash attention reads the memory of the lse, not its strides"
        grad_q, grad_k, grad_v = (torch.full_like(x, STALE) for x in (q, k, v))
        for (a, b), (c, d) in zip(_starts(cu_q), _starts(cu_k), strict=True):
            found = opmux.attention_backward.reference(
                grad_out[None, a:b], q[None, a:b], k[None, c:d], v[None, c:d], out[None, a:b],
                lse[None, :, a:b].masked_fill(lse[None, :, a:b] == math.inf, -math.inf),
                causal=causal, scale=scale, window=_window(max_k, **window),
            )  # fmt: skip
            grad_q[a:b], grad_k[c:d], grad_v[c:d] = (grad[0] for grad in found[:3])
        return grad_q, grad_k, grad_v


STARTS_Q = torch.tensor([0, 3, 3, 8, 9], dtype=torch.int32)  # the second sequence has no queries
STARTS_K = torch.tensor([0, 5, 9, 11, 11], dtype=torch.int32)  # the third fewer keys than queries, the last none
OPTIONS = {"scale": None, "causal": True, "window": (-1, -1), "softcap": 0.0}
SIZES = {"max_seqlen_q": 5, "max_seqlen_k": 5}


@pytest.fixture(autouse=True)
def flash_ops(monkeypatch):
    monkeypatch.setattr(flash, "aten", FlashOps())


@pytest.fixture
def qkv():
    """With two tokens past the last sequence."""
    return torch.randn(11, 4, 16), torch.randn(13, 2, 16), torch.randn(13, 2, 16)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [(-1, -1), (2, 1)])
def test_ragged_attention_is_the_op_s(qkv, causal, window):
    options = {**OPTIONS, "causal": causal, "window": window}
    expected = opmux.attention_varlen_lse.reference(*qkv, STARTS_Q, STARTS_K, **SIZES, **options)
    found = flash.attention_varlen_lse(*qkv, STARTS_Q, STARTS_K, None, **SIZES, **options)
    torch.testing.assert_close(found, expected)
    out = flash.attention_varlen(*qkv, STARTS_Q, STARTS_K, None, **SIZES, **options)
    torch.testing.assert_close(out, expected[0])
    assert found[1][:, 9:].eq(-math.inf).all()


def test_a_row_of_nan_has_that_lse_and_an_empty_row_does_not(qkv):
    q, k, v = qkv
    q[1, 2, 0] = math.nan
    expected = opmux.attention_varlen_lse.reference(q, k, v, STARTS_Q, STARTS_K, **SIZES, **OPTIONS)
    found = flash.attention_varlen_lse(q, k, v, STARTS_Q, STARTS_K, None, **SIZES, **OPTIONS)
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert found[1][2, 1].isnan()
    assert found[1][0, 8] == -math.inf


def test_a_bound_of_one_query_admits_sequences_without_one():
    q, k = torch.randn(4, 4, 16), torch.randn(6, 2, 16)
    starts_q, starts_k = (torch.tensor(s, dtype=torch.int32) for s in ([0, 1, 1, 2], [0, 2, 3, 6]))
    sizes = {"max_seqlen_q": 1, "max_seqlen_k": 3}
    expected = opmux.attention_varlen.reference(q, k, k, starts_q, starts_k, **sizes, **OPTIONS)
    torch.testing.assert_close(flash.attention_varlen(q, k, k, starts_q, starts_k, None, **sizes, **OPTIONS), expected)


def test_a_window_wider_than_every_sequence_has_keys_still_masks():
    """The first of twelve queries are more than three positions before the first of two keys."""
    q, k = torch.randn(12, 4, 16), torch.randn(2, 2, 16)
    starts = torch.tensor([0, 12], dtype=torch.int32), torch.tensor([0, 2], dtype=torch.int32)
    options = {**OPTIONS, "causal": False, "window": (-1, 3), "max_seqlen_q": 12, "max_seqlen_k": 2}
    out, lse = opmux.attention_varlen_lse.reference(q, k, k, *starts, **options)
    assert lse[0, 0] == -math.inf
    torch.testing.assert_close(flash.attention_varlen_lse(q, k, k, *starts, None, **options), (out, lse))
    tensors, wanted = (torch.randn_like(out), q, k, k, out, lse, *starts), (True, True, True, True)
    found = flash.attention_varlen_backward(*tensors, None, None, output_mask=wanted, **options)
    torch.testing.assert_close(found, opmux.attention_varlen_backward.reference(*tensors, **options))


@pytest.mark.parametrize("wanted", [(True, True, True, True), (False, True, False, False)])
@pytest.mark.parametrize("causal", [False, True])
def test_ragged_gradients_are_the_op_s(qkv, wanted, causal):
    options = {**OPTIONS, "causal": causal}
    out, lse = opmux.attention_varlen_lse.reference(*qkv, STARTS_Q, STARTS_K, **SIZES, **options)
    strided = torch.stack((lse, lse), -1)[..., 0]
    tensors = (torch.randn_like(out), *qkv, out, strided, STARTS_Q, STARTS_K)
    expected = opmux.attention_varlen_backward.reference(*tensors, output_mask=wanted, **SIZES, **options)
    found = flash.attention_varlen_backward(*tensors, None, None, output_mask=wanted, **SIZES, **options)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
        assert not one.eq(STALE).any()


def test_an_open_side_of_the_window_is_none():
    assert flash._options(flash.Scoring(0.5, True, (64, -1))) == {
        "scale": 0.5,
        "window_size_left": 64,
        "window_size_right": None,
    }
