"""The references of ragged attention against one full matrix over all tokens, in float64."""

import pytest
import torch
from torch import Tensor

from opmux.errors import InvalidArgument
from opmux.ops import _blockwise
from opmux.ops.attention import attention_backward, attention_lse
from opmux.ops.attention_varlen import attention_varlen, attention_varlen_backward, attention_varlen_lse

INF = float("inf")
NAN = float("nan")
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of at most 16, so that small sizes cross many of their borders."""
    monkeypatch.setattr(_blockwise, "BLOCK_SIDES", {"cpu": (16, 16)})


def offsets(*lengths: int) -> Tensor:
    return torch.tensor([sum(lengths[:i]) for i in range(len(lengths) + 1)], dtype=torch.int32)


def attended(tokens_q, tokens_k, lengths_q, lengths_k, causal, window) -> Tensor:
    """Whether token i of q attends to token j of k, pair by pair; tokens past the sequences belong to none."""

    def places(lengths, tokens):
        found = [(b, place, length) for b, length in enumerate(lengths) for place in range(length)]
        return found + [(None, 0, 0)] * (tokens - len(found))

    left, right = window
    mask = torch.zeros(tokens_q, tokens_k, dtype=torch.bool)
    for i, (sequence_q, place_q, length_q) in enumerate(places(lengths_q, tokens_q)):
        for j, (sequence_k, place_k, length_k) in enumerate(places(lengths_k, tokens_k)):
            ahead = (place_k - length_k) - (place_q - length_q)  # both counted from the end of the sequence
            mask[i, j] = (
                sequence_q is not None
                and sequence_q == sequence_k
                and (not causal or ahead <= 0)
                and (left == -1 or ahead >= -left)
                and (right == -1 or ahead <= right)
            )
    return mask


def naive(mask, inside, q, k, v, sinks=None, *, scale=None, softcap=0.0):
    """(out, lse) in float64 from the full matrix, differentiable; ``inside`` says which queries are in a sequence."""
    heads, head_dim = q.shape[1:]
    spread = heads // k.shape[1]
    keys, values = k.double().repeat_interleave(spread, 1), v.double().repeat_interleave(spread, 1)
    scores = torch.einsum("ihd,jhd->hij", q.double(), keys) * (head_dim**-0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    weights = torch.where(mask, scores, -INF).exp()  # the scores of these tests are small
    total = weights.sum(-1)
    if sinks is not None:
        total = total + torch.where(inside, sinks.double().exp().unsqueeze(1), 0.0)
    safe = torch.where(total > 0, total, 1.0)
    out = torch.einsum("hij,jhd->ihd", weights / safe.unsqueeze(-1), values)
    return out, torch.where(total > 0, safe.log(), -INF)


BATCHES = {
    "ragged": ((20, 1, 37, 5), (20, 18, 37, 33)),
    "empty_sequences": ((0, 17, 0, 3), (4, 17, 0, 0)),
    "more_queries": ((18, 40), (5, 17)),
    "one": ((33,), (33,)),
    "none": ((), ()),
}
OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "left": {"window": (6, -1)},
    "both": {"window": (3, 2)},
    "all": {"causal": True, "window": (9, 1), "softcap": 2.0, "scale": 0.5},
}


def inputs(
    lengths_q,
    lengths_k,
    past=3,
    heads=4,
    kv_heads=2,
    head_dim=8,
    value_dim=6,
    dtype=torch.float64,
    sinks=True,
):
    """q, k and v with some tokens past the last sequence, and sinks."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    tokens_q, tokens_k = sum(lengths_q) + past, sum(lengths_k) + 2 * past
    q, k = random(tokens_q, heads, head_dim), random(tokens_k, kv_heads, head_dim)
    kept = random(heads).to(torch.promote_types(dtype, torch.float32))
    return q, k, random(tokens_k, kv_heads, value_dim), kept if sinks else None


def ragged(lengths_q, lengths_k):
    """The index arguments and options of a batch."""
    longest = {"max_seqlen_q": max(lengths_q, default=0), "max_seqlen_k": max(lengths_k, default=0)}
    return (offsets(*lengths_q), offsets(*lengths_k)), longest


def tolerance(dtype, roundings):
    error = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, roundings * torch.finfo(dtype).eps)
    return {"rtol": error, "atol": error}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sinks", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
def test_forward_and_gradients_match_the_full_matrix(lengths, options, sinks, dtype, small_blocks):
    q, k, v, sinks = inputs(*lengths, dtype=dtype, sinks=sinks)
    index, longest = ragged(*lengths)
    mask_options = {"causal": options.get("causal", False), "window": options.get("window", (-1, -1))}
    mask = attended(q.shape[0], k.shape[0], *lengths, **mask_options)
    inside = torch.arange(q.shape[0]) < sum(lengths[0])
    score_options = {name: value for name, value in options.items() if name not in mask_options}

    leaves = [None if x is None else x.double().requires_grad_() for x in (q, k, v, sinks)]
    expected_out, expected_lse = naive(mask, inside, *leaves, **score_options)
    out, lse = attention_varlen_lse.reference(q, k, v, *index, sinks, **longest, **options)
    assert (out.dtype, lse.dtype) == (dtype, torch.promote_types(dtype, torch.float32))
    assert out.is_contiguous()
    assert lse.is_contiguous()
    torch.testing.assert_close(out.double(), expected_out, **tolerance(dtype, 0.51))
    torch.testing.assert_close(lse.double(), expected_lse, **tolerance(lse.dtype, 0.51))
    assert torch.equal(attention_varlen.reference(q, k, v, *index, sinks, **longest, **options), out)
    past = slice(sum(lengths[0]), None)
    assert torch.equal(out[past], torch.zeros_like(out[past]))
    assert (lse[:, past] == -INF).all()

    for wants_lse in (True, False):
        grad_out, grad_lse = torch.randn_like(out), torch.randn_like(lse) if wants_lse else None
        loss = (expected_out * grad_out.double()).sum()
        if wants_lse:
            loss = loss + torch.where(expected_lse == -INF, 0.0, expected_lse * grad_lse.double()).sum()
        given = [x for x in leaves if x is not None]
        expected = torch.autograd.grad(loss, given, retain_graph=True)
        # whatever comes in for the tokens past the last sequence must not matter
        grad_out[past] = NAN
        if wants_lse:
            grad_lse[:, past] = NAN
        grads = attention_varlen_backward.reference(
            grad_out, q, k, v, out, lse, *index, sinks, grad_lse, **longest, **options
        )
        assert [grad.dtype for grad in grads[: len(given)]] == [x.dtype for x in (q, k, v, sinks) if x is not None]
        for grad, other in zip(grads[: len(given)], expected, strict=True):
            assert grad.is_contiguous()
            largest = max([1.0, *other.abs().flatten().tolist()])
            bound = tolerance(dtype, 2)
            torch.testing.assert_close(grad.double(), other, rtol=bound["rtol"], atol=bound["atol"] * largest)
        if sinks is None:
            assert (grads[3].shape, grads[3].dtype) == ((0,), dtype)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_equal_lengths_are_dense_attention(options):
    batch, length = 3, 21
    q, k, v, sinks = inputs((length,) * batch, (length,) * batch, past=0, dtype=torch.float32)
    index, longest = ragged((length,) * batch, (length,) * batch)
    out, lse = attention_varlen_lse.reference(q, k, v, *index, sinks, **longest, **options)
    dense = [x.unflatten(0, (batch, length)) for x in (q, k, v)]
    dense_out, dense_lse = attention_lse.reference(*dense, sinks, **options)
    torch.testing.assert_close(out, dense_out.flatten(0, 1))
    torch.testing.assert_close(lse, dense_lse.transpose(0, 1).flatten(1))
    grad_out = torch.randn_like(out)
    grads = attention_varlen_backward.reference(grad_out, q, k, v, out, lse, *index, sinks, lse, **longest, **options)
    expected = attention_backward.reference(
        grad_out.view_as(dense_out), *dense, dense_out, dense_lse, sinks, dense_lse, **options
    )
    for grad, other in zip(grads, expected, strict=True):
        torch.testing.assert_close(grad, other.reshape(grad.shape), rtol=1e-5, atol=1e-5)


def test_the_bounds_of_lengths_are_upper_bounds():
    q, k, v, sinks = inputs((5, 9), (7, 9))
    index, longest = ragged((5, 9), (7, 9))
    expected = attention_varlen.reference(q, k, v, *index, sinks, **longest)
    assert torch.equal(attention_varlen.reference(q, k, v, *index, sinks, max_seqlen_q=999, max_seqlen_k=10), expected)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (2, 2)}], ids=["plain", "causal", "both"])
def test_nothing_crosses_from_one_sequence_to_another(options, small_blocks):
    """Not even NaN, nor from the tokens past the last sequence."""
    lengths = ((18, 20, 19), (18, 23, 19))
    q, k, v, sinks = inputs(*lengths, dtype=torch.float32)
    index, longest = ragged(*lengths)
    clean = attention_varlen_lse.reference(q, k, v, *index, sinks, **longest, **options)
    clean_grads = attention_varlen_backward.reference(clean[0], q, k, v, *clean, *index, sinks, **longest, **options)
    of_q, of_k = slice(18, 38), slice(18, 41)
    q[of_q], k[of_k], v[of_k] = NAN, INF, NAN
    q[57:], k[60:], v[60:] = NAN, NAN, INF
    out, lse = attention_varlen_lse.reference(q, k, v, *index, sinks, **longest, **options)
    assert out[of_q].isnan().all()
    assert lse[:, of_q].isnan().all()
    out[of_q], lse[:, of_q] = clean[0][of_q], clean[1][:, of_q]
    assert torch.equal(out, clean[0])
    assert torch.equal(lse, clean[1])
    grads = attention_varlen_backward.reference(clean[0], q, k, v, *clean, *index, sinks, **longest, **options)
    for grad, other, bad in zip(grads[:3], clean_grads[:3], (of_q, of_k, of_k), strict=True):
        kept = torch.ones(len(grad), dtype=torch.bool)
        kept[bad] = False
        assert torch.equal(grad[kept], other[kept])


def test_strides_change_nothing():
    q, k, v, sinks = inputs((11, 20), (14, 20), dtype=torch.bfloat16)
    index, longest = ragged((11, 20), (14, 20))
    out, lse = attention_varlen_lse.reference(q, k, v, *index, sinks, **longest, causal=True)
    grads = attention_varlen_backward.reference(out, q, k, v, out, lse, *index, sinks, lse, **longest, causal=True)

    def spread(x):
        wide = (
            torch.full((*x.shape[:-1], 2 * x.shape[-1] + 1), NAN)
            .to(x.dtype)
            .transpose(0, -2)
            .contiguous()
            .transpose(0, -2)
        )
        wide[..., 1::2] = x
        return wide[..., 1::2]

    views = [spread(x) for x in (out, q, k, v, out)]
    lse_view, sinks_view = lse.mT.contiguous().mT, sinks.repeat_interleave(3)[::3]
    index = [torch.stack([x, x + 77], 1)[:, 0] for x in index]
    before = [x.clone() for x in (*views, lse_view, *index)]
    new_out, new_lse = attention_varlen_lse.reference(*views[1:4], *index, sinks_view, **longest, causal=True)
    new_grads = attention_varlen_backward.reference(
        *views, lse_view, *index, sinks_view, lse_view, **longest, causal=True
    )
    torch.testing.assert_close((new_out, new_lse, *new_grads), (out, lse, *grads), rtol=0, atol=0)
    assert all(x.is_contiguous() for x in (new_out, new_lse, *new_grads))
    assert all(torch.equal(x, y) for x, y in zip((*views, lse_view, *index), before, strict=True))


@pytest.mark.parametrize("wanted", [tuple(bool(i >> bit & 1) for bit in range(4)) for i in range(16)])
def test_unwanted_gradients_are_empty(wanted):
    q, k, v, sinks = inputs((3, 4), (5, 4), dtype=torch.float16)
    index, longest = ragged((3, 4), (5, 4))
    out, lse = attention_varlen_lse.reference(q, k, v, *index, sinks, **longest)
    arguments = (torch.ones_like(out), q, k, v, out, lse, *index, sinks)
    everything = attention_varlen_backward.reference(*arguments, **longest)
    grads = attention_varlen_backward.reference(*arguments, **longest, output_mask=wanted)
    for grad, whole, wants in zip(grads, everything, wanted, strict=True):
        assert grad.dtype == whole.dtype
        assert torch.equal(grad, whole) if wants else grad.shape == (0,)


BROKEN = {
    "starts": (
        {"cu_seqlens_q": [1, 3, 8]},
        "`cu_seqlens_q` expected 0 at index 0, got 1; it is the running sum of the sequence lengths, with a 0 in front",
    ),
    "starts_k": (
        {"cu_seqlens_k": [-2, 4, 9]},
        "`cu_seqlens_k` expected 0 at index 0, got -2; it is the running sum of the sequence lengths, with a 0 in"
        " front",
    ),
    "decreases": (
        {"cu_seqlens_q": [0, 5, 3]},
        "`cu_seqlens_q` expected 5 or more at index 2, as at index 1, got 3; it is the running sum of the "
        "sequence lengths",
    ),
    "decreases_k": (
        {"cu_seqlens_k": [0, -1, 3]},
        "`cu_seqlens_k` expected 0 or more at index 1, as at index 0, got -1; it is the running sum of the "
        "sequence lengths",
    ),
    "ends": (
        {"cu_seqlens_q": [0, 5, 9]},
        "`cu_seqlens_q` expected at most 8, the number of tokens, at its end, got 9; check the lengths that it sums",
    ),
    "ends_k": (
        {"cu_seqlens_k": [0, 5, 11]},
        "`cu_seqlens_k` expected at most 9, the number of tokens, at its end, got 11; check the lengths that it sums",
    ),
    "longest": (
        {"max_seqlen_q": 4},
        "`max_seqlen_q` expected 5 or more, the length of sequence 1 in `cu_seqlens_q`, got 4; give an upper "
        "bound of all lengths",
    ),
    "longest_k": (
        {"max_seqlen_k": 3},
        "`max_seqlen_k` expected 4 or more, the length of sequence 0 in `cu_seqlens_k`, got 3; give an upper "
        "bound of all lengths",
    ),
}


@pytest.mark.parametrize("op", ["attention_varlen", "attention_varlen_lse", "attention_varlen_backward"])
@pytest.mark.parametrize(("change", "message"), BROKEN.values(), ids=BROKEN)
def test_unsound_offsets_are_refused(op, change, message):
    q, k, v = torch.zeros(8, 2, 4), torch.zeros(9, 1, 4), torch.zeros(9, 1, 4)
    given = {
        "cu_seqlens_q": [0, 3, 8],
        "cu_seqlens_k": [0, 4, 9],
        "max_seqlen_q": 6,
        "max_seqlen_k": 6,
    } | change
    index = [torch.tensor(given.pop(name), dtype=torch.int32) for name in ("cu_seqlens_q", "cu_seqlens_k")]
    if op == "attention_varlen_backward":
        call, tensors = attention_varlen_backward, (q, q, k, v, q, torch.zeros(2, 8))
    else:
        call, tensors = (attention_varlen if op == "attention_varlen" else attention_varlen_lse), (q, k, v)
    with pytest.raises(InvalidArgument) as caught:
        call.reference(*tensors, *index, **given)
    assert str(caught.value) == f"{op}: {message}"
