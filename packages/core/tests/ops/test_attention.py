"""The references of dense attention against full matrices in float64, written position by position."""

from functools import cache

import pytest
import torch
from ops.recorder import Recorder
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention

from opmux.ops import _blockwise
from opmux.ops.attention import attention, attention_backward, attention_lse, merge_attention_states

INF = float("inf")
NAN = float("nan")
HALF = (torch.bfloat16, torch.float16)
DTYPES = (*HALF, torch.float32, torch.float64)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of at most 16, so that small sizes cross many of their borders."""
    monkeypatch.setattr(_blockwise, "BLOCK_SIDES", {"cpu": (16, 16)})


@cache
def attended(seq_q: int, seq_k: int, causal: bool, window: tuple[int, int]) -> Tensor:
    """Whether query i attends to key j, asked of one pair at a time."""
    left, right = window
    rows = []
    for i in range(seq_q):
        position = i + seq_k - seq_q
        rows.append(
            [
                (not causal or j <= position)
                and (left == -1 or j >= position - left)
                and (right == -1 or j <= position + right)
                for j in range(seq_k)
            ]
        )
    return torch.tensor(rows, dtype=torch.bool).reshape(seq_q, seq_k)


def naive(q, k, v, sinks=None, *, scale=None, causal=False, window=(-1, -1), softcap=0.0):
    """(out, lse) in float64, one head after the other, from the full matrix of scores; differentiable."""
    q, k, v = q.double(), k.double(), v.double()
    heads, head_dim = q.shape[2:]
    groups = heads // k.shape[2]
    mask = attended(q.shape[1], k.shape[1], causal, window)
    outs, lses = [], []
    for h in range(heads):
        scores = torch.einsum("bid,bjd->bij", q[:, :, h], k[:, :, h // groups])
        scores = scores * (head_dim**-0.5 if scale is None else scale)
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        sink = torch.full((), -INF, dtype=torch.float64) if sinks is None else sinks[h].double()
        columns = torch.cat([scores.masked_fill(~mask, -INF), sink.expand(*scores.shape[:2], 1)], -1)
        top = columns.amax(-1).detach()
        top = torch.where(top == -INF, 0.0, top)
        weights = torch.where(mask, torch.exp(scores - top.unsqueeze(-1)), 0.0)
        total = weights.sum(-1) + torch.exp(sink - top)
        some = total > 0
        safe = torch.where(some, total, 1.0)
        outs.append(weights @ v[:, :, h // groups] / safe.unsqueeze(-1))
        lses.append(torch.where(some, torch.log(safe) + top, -INF))
    return torch.stack(outs, 2), torch.stack(lses, 1)


def naive_grads(grad_out, grad_lse, q, k, v, sinks, **options):
    """The gradients of `naive`, by torch.autograd in float64."""
    leaves = [None if x is None else x.detach().double().requires_grad_() for x in (q, k, v, sinks)]
    out, lse = naive(*leaves, **options)
    loss = (out * grad_out.double()).sum()
    if grad_lse is not None:
        loss = loss + torch.where(lse == -INF, 0.0, lse * grad_lse.double()).sum()
    given = [x for x in leaves if x is not None]
    grads = torch.autograd.grad(loss, given, allow_unused=True)
    return [torch.zeros_like(x) if grad is None else grad for x, grad in zip(given, grads, strict=True)]


def inputs(batch, seq_q, seq_k, heads, kv_heads, head_dim, value_dim, dtype=torch.float32, sinks=False, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    q, k = random(batch, seq_q, heads, head_dim), random(batch, seq_k, kv_heads, head_dim)
    return (
        q,
        k,
        random(batch, seq_k, kv_heads, value_dim),
        random(heads).to(torch.promote_types(dtype, torch.float32)) if sinks else None,
    )


def assert_near(actual: Tensor, expected: Tensor, dtype: torch.dtype, roundings: float = 0.51):
    """Within so many roundings of the dtype, plus the noise of an accumulation."""
    noise = 1e-13 if dtype == torch.float64 else 4e-6
    tolerance = noise if dtype in (torch.float32, torch.float64) else roundings * torch.finfo(dtype).eps
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=noise, equal_nan=True)


def assert_grads_near(actual, expected, dtype):
    """Of 16-bit inputs the saved output is rounded, and every element of a gradient shares in that error."""
    for one, other in zip(actual, expected, strict=True):
        largest = other.abs().max().item() if other.numel() else 0.0
        error = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 2 * torch.finfo(dtype).eps)
        torch.testing.assert_close(one.double(), other, rtol=error, atol=error * max(1.0, largest), equal_nan=True)


OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "left": {"window": (5, -1)},
    "right": {"window": (-1, 3)},
    "both": {"window": (4, 2)},
    "self": {"window": (0, 0)},
    "wide": {"window": (1000, 1000)},
    "causal_left": {"causal": True, "window": (7, -1)},
    "causal_both": {"causal": True, "window": (9, 5)},
    "softcap": {"softcap": 1.5},
    "scale": {"scale": 0.37},
    "all": {"causal": True, "window": (20, 4), "softcap": 2.0, "scale": 0.8},
}
SIZES = {
    "square": (2, 33, 33, 2, 2, 8, 8),
    "more_keys": (1, 21, 50, 4, 2, 5, 3),
    "more_queries": (2, 50, 21, 4, 1, 4, 7),
    "decode": (3, 1, 40, 6, 3, 8, 8),
}


@pytest.mark.parametrize("sinks", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_forward_and_gradients_match_the_full_matrix(sizes, options, sinks, small_blocks):
    q, k, v, sinks = inputs(*sizes, dtype=torch.float64, sinks=sinks)
    expected_out, expected_lse = naive(q, k, v, sinks, **options)
    out, lse = attention_lse.reference(q, k, v, sinks, **options)
    assert_near(out, expected_out, torch.float64)
    assert_near(lse, expected_lse, torch.float64)
    assert torch.equal(attention.reference(q, k, v, sinks, **options), out)

    grad_out, grad_lse = torch.randn_like(out), torch.randn_like(lse)
    for given in (grad_lse, None):
        grads = attention_backward.reference(grad_out, q, k, v, out, lse, sinks, given, **options)
        expected = naive_grads(grad_out, given, q, k, v, sinks, **options)
        assert_grads_near(grads[: len(expected)], expected, torch.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "options", [OPTIONS["plain"], OPTIONS["causal"], OPTIONS["all"]], ids=["plain", "causal", "all"]
)
def test_dtypes(dtype, options):
    q, k, v, sinks = inputs(2, 70, 90, 4, 2, 16, 8, dtype=dtype, sinks=True)
    expected_out, expected_lse = naive(q, k, v, sinks, **options)
    out, lse = attention_lse.reference(q, k, v, sinks, **options)
    accumulated = torch.float64 if dtype == torch.float64 else torch.float32
    assert (out.dtype, lse.dtype) == (dtype, accumulated)
    assert attention.reference(q, k, v, sinks, **options).dtype == dtype
    assert_near(out, expected_out, dtype)
    assert_near(lse, expected_lse, accumulated)

    grad_out, grad_lse = torch.randn_like(out), torch.randn_like(lse)
    grads = attention_backward.reference(grad_out, q, k, v, out, lse, sinks, grad_lse, **options)
    assert [grad.dtype for grad in grads] == [dtype, dtype, dtype, sinks.dtype]
    assert all(grad.is_contiguous() for grad in (out, lse, *grads))
    assert_grads_near(grads, naive_grads(grad_out, grad_lse, q, k, v, sinks, **options), dtype)


@pytest.mark.parametrize("sinks_dtype", DTYPES)
def test_the_gradient_of_sinks_has_their_dtype(sinks_dtype):
    q, k, v, sinks = inputs(1, 5, 6, 2, 1, 4, 4, dtype=torch.bfloat16, sinks=True)
    sinks = sinks.to(sinks_dtype)
    out, lse = attention_lse.reference(q, k, v, sinks)
    assert_near(out, naive(q, k, v, sinks)[0], torch.bfloat16)
    assert attention_backward.reference(out, q, k, v, out, lse, sinks)[3].dtype == sinks_dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("causal", [False, True])
def test_against_torch(dtype, causal):
    q, k, v, _ = inputs(3, 65, 65, 4, 2, 16, 24, dtype=dtype)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    expected = scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in leaves), is_causal=causal, enable_gqa=True, scale=0.3
    ).transpose(1, 2)
    out, lse = attention_lse.reference(q, k, v, causal=causal, scale=0.3)
    assert_near(out, expected.double(), dtype)
    grad_out = torch.randn_like(out)
    grads = attention_backward.reference(grad_out, q, k, v, out, lse, causal=causal, scale=0.3)
    assert_grads_near(grads[:3], [x.double() for x in torch.autograd.grad(expected, leaves, grad_out)], dtype)


@pytest.mark.parametrize("window", [(-1, -1), (300, -1), (100, 700)])
def test_lengths_past_the_default_blocks(window):
    """Three blocks of queries and keys each, the last ones not full; torch's masked attention is the oracle."""
    q, k, v, _ = inputs(1, 2050, 2300, 1, 1, 8, 8)
    assert _blockwise.block_side(torch.empty(1, 1, 2050, 8)) == 1024
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    position = torch.arange(2050).unsqueeze(1) + 250
    mask = torch.arange(2300) <= (position if window[1] == -1 else position + window[1])
    if window[0] != -1:
        mask &= torch.arange(2300) >= position - window[0]
    expected = scaled_dot_product_attention(*(x.transpose(1, 2) for x in leaves), attn_mask=mask).transpose(1, 2)
    options = {"causal": window[1] == -1, "window": window}
    out, lse = attention_lse.reference(q, k, v, **options)
    assert_near(out, expected.double(), torch.float32)
    grad_out = torch.randn_like(out)
    grads = attention_backward.reference(grad_out, q, k, v, out, lse, **options)
    assert_grads_near(grads[:3], [x.double() for x in torch.autograd.grad(expected, leaves, grad_out)], q.dtype)


@pytest.mark.parametrize("sinks", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize(
    ("batch", "seq_q", "seq_k", "head_dim", "value_dim"),
    [(0, 3, 4, 5, 6), (2, 0, 4, 5, 6), (2, 3, 0, 5, 6), (0, 0, 0, 5, 6)],
)
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (1, 1)}], ids=["plain", "causal", "both"])
def test_empty_dims(batch, seq_q, seq_k, head_dim, value_dim, options, sinks):
    q, k, v, sinks = inputs(batch, seq_q, seq_k, 4, 2, head_dim, value_dim, sinks=sinks)
    out, lse = attention_lse.reference(q, k, v, sinks, **options)
    assert (out.shape, lse.shape) == ((batch, seq_q, 4, value_dim), (batch, 4, seq_q))
    if seq_k == 0:
        assert torch.equal(out, torch.zeros_like(out))
        assert torch.equal(lse, torch.full_like(lse, -INF) if sinks is None else sinks.view(4, 1).expand_as(lse))
    grads = attention_backward.reference(out, q, k, v, out, lse, sinks, lse.exp(), **options)
    assert [grad.shape for grad in grads[:3]] == [q.shape, k.shape, v.shape]
    assert grads[3].shape == ((0,) if sinks is None else (4,))
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("options", [{"causal": True}, {"window": (2, 0)}, {"window": (0, -1)}])
def test_rows_that_attend_to_nothing(options, small_blocks):
    """With 40 queries on 10 keys the first 30 queries come before the first key."""
    q, k, v, sinks = inputs(1, 40, 10, 2, 1, 4, 4, sinks=True)
    nothing = ~attended(40, 10, options.get("causal", False), options.get("window", (-1, -1))).any(1)
    assert nothing.any() or options == {"window": (0, -1)}
    q[:, nothing] = NAN
    for logits in (None, sinks):
        out, lse = attention_lse.reference(q, k, v, logits, **options)
        assert torch.equal(out[:, nothing], torch.zeros_like(out[:, nothing]))
        empty = torch.full_like(lse, -INF) if logits is None else logits.view(2, 1).expand_as(lse)
        assert torch.equal(lse[..., nothing], empty[..., nothing])
        assert out.isfinite().all()
        assert lse[..., ~nothing].isfinite().all()
        grads = attention_backward.reference(torch.ones_like(out), q, k, v, out, lse, logits, lse.exp(), **options)
        assert all(grad.isfinite().all() for grad in grads)
        assert torch.equal(grads[0][:, nothing], torch.zeros_like(q[:, nothing]))


def poisoned(x: Tensor, place: tuple[int, ...], value: float) -> Tensor:
    x = x.clone()
    x[place] = value
    return x


MASKED = {name: OPTIONS[name] for name in ("plain", "causal", "left", "right", "both", "causal_left", "all")}


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("options", MASKED.values(), ids=MASKED)
def test_a_bad_value_reaches_exactly_the_queries_that_attend_to_it(options, value, small_blocks):
    q, k, v, _ = inputs(2, 35, 45, 4, 2, 4, 3)
    mask = attended(35, 45, options.get("causal", False), options.get("window", (-1, -1)))
    clean, clean_lse = attention_lse.reference(q, k, v, **options)
    for key in (0, 15, 16, 30, 44):
        out, lse = attention_lse.reference(q, k, poisoned(v, (1, key, 1, 2), value), **options)
        expected = clean.clone()
        for query in range(35):
            if mask[query, key]:
                expected[1, query, 2:, 2] = value
        torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(lse, clean_lse)


def test_infinite_values_of_both_signs_make_nan():
    q, k, v, _ = inputs(1, 6, 6, 1, 1, 4, 2)
    v[0, 1, 0, 0], v[0, 3, 0, 0] = INF, -INF
    for window in ((-1, -1), (4, -1), (4, 3)):
        out = attention.reference(q, k, v, causal=True, window=window)[0, :, 0, 0]
        assert out.isnan().tolist() == [False, False, False, True, True, True]
        assert out.isposinf().tolist() == [False, True, True, False, False, False]
    out = attention.reference(q, k, v, causal=True, window=(1, 0))[0, :, 0, 0]
    assert out.isposinf().tolist() == [False, True, True, False, False, False]
    assert out.isneginf().tolist() == [False, False, False, True, True, False]


@pytest.mark.parametrize("options", MASKED.values(), ids=MASKED)
def test_a_bad_key_reaches_exactly_the_queries_that_attend_to_it(options, small_blocks):
    q, k, v, _ = inputs(2, 35, 45, 4, 2, 4, 3)
    mask = attended(35, 45, options.get("causal", False), options.get("window", (-1, -1)))
    clean, clean_lse = attention_lse.reference(q, k, v, **options)
    for key in (0, 16, 44):
        out, lse = attention_lse.reference(q, poisoned(k, (1, key, 1, 2), NAN), v, **options)
        expected, expected_lse = clean.clone(), clean_lse.clone()
        expected[1, mask[:, key], 2:], expected_lse[1, 2:, mask[:, key]] = NAN, NAN
        torch.testing.assert_close((out, lse), (expected, expected_lse), rtol=0, atol=0, equal_nan=True)


def test_a_bad_query_or_sink_reaches_its_row_or_head():
    q, k, v, sinks = inputs(2, 35, 45, 4, 2, 4, 3, sinks=True)
    clean, clean_lse = attention_lse.reference(q, k, v, sinks, causal=True)
    out, lse = attention_lse.reference(poisoned(q, (0, 7, 3, 1), NAN), k, v, sinks, causal=True)
    clean[0, 7, 3], clean_lse[0, 3, 7] = NAN, NAN
    torch.testing.assert_close((out, lse), (clean, clean_lse), rtol=0, atol=0, equal_nan=True)
    out, lse = attention_lse.reference(q, k, v, poisoned(sinks, (1,), NAN), causal=True)
    assert out[:, :, 1].isnan().all()
    assert lse[:, 1].isnan().all()
    assert out[:, :, [0, 2, 3]].isfinite().all()


@pytest.mark.parametrize("options", MASKED.values(), ids=MASKED)
def test_bad_entries_reach_exactly_the_gradients_that_depend_on_them(options, small_blocks):
    q, k, v, _ = inputs(1, 35, 45, 2, 1, 4, 3)
    mask = attended(35, 45, options.get("causal", False), options.get("window", (-1, -1)))
    out, lse = attention_lse.reference(q, k, v, **options)
    grad_out = torch.randn_like(out)
    clean = attention_backward.reference(grad_out, q, k, v, out, lse, **options)

    def check(bad, queries, keys, columns):
        grads = attention_backward.reference(*bad, **options)
        expected = [x.clone() for x in clean[:3]]
        expected[0][0, queries] = NAN
        expected[1][0, keys] = NAN
        expected[2][0, keys, :, columns] = NAN
        for one, other in zip(grads[:3], expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6, equal_nan=True)

    for query in (0, 16, 34):  # in grad_out: only one column of grad_v can tell
        bad = grad_out.clone()
        bad[0, query, :, 1] = NAN
        row = torch.zeros(35, dtype=torch.bool)
        row[query] = mask[query].any()
        check((bad, q, k, v, out, lse), row, mask[query], slice(1, 2))
        bad = poisoned(q, (0, query), NAN)
        new_out, new_lse = attention_lse.reference(bad, k, v, **options)
        check((grad_out, bad, k, v, new_out, new_lse), row, mask[query], slice(None))
    for key in (0, 16, 44):
        bad = poisoned(k, (0, key, 0, 2), NAN)
        new_out, new_lse = attention_lse.reference(q, bad, v, **options)
        rows = mask[:, key]
        keys = mask[rows].any(0)
        check((grad_out, q, bad, v, new_out, new_lse), rows, keys, slice(None))
        bad = poisoned(v, (0, key, 0, 2), NAN)  # grad_v does not depend on v
        new_out, new_lse = attention_lse.reference(q, k, bad, **options)
        check((grad_out, q, k, bad, new_out, new_lse), rows, keys, slice(0, 0))


def test_infinite_gradients_of_the_output_keep_their_sign():
    q, k, v, _ = inputs(1, 20, 20, 1, 1, 4, 3)
    out, lse = attention_lse.reference(q, k, v, causal=True)
    for value in (INF, -INF):
        grad_v = attention_backward.reference(
            poisoned(torch.ones_like(out), (0, 9, 0, 1), value), q, k, v, out, lse, causal=True
        )[2]
        assert torch.equal(grad_v[0, :10, 0, 1], torch.full((10,), value))
        assert grad_v[0, 10:].isfinite().all()
        assert grad_v[0, :, 0, 0].isfinite().all()


@pytest.mark.parametrize("options", [{}, {"causal": True}], ids=["plain", "causal"])
def test_infinite_scores(options):
    """As in a softmax: -inf has no weight, +inf makes NaN; a row of nothing but -inf is a masked-out one."""
    q, k, v, _ = inputs(1, 6, 6, 1, 1, 2, 3)
    q[0, :, 0, 0] = 1.0
    k[0, 0, 0, 0] = -INF
    out, lse = attention_lse.reference(q, k, v, **options)
    expected, expected_lse = attention_lse.reference(q[:, 1:], k[:, 1:], v[:, 1:], **options)
    torch.testing.assert_close((out[:, 1:], lse[..., 1:]), (expected, expected_lse))
    if options:
        assert torch.equal(out[0, 0], torch.zeros(1, 3))
        assert lse[0, 0, 0] == -INF
    k[0, :, 0, 0] = -INF
    out, lse = attention_lse.reference(q, k, v, **options)
    assert torch.equal(out, torch.zeros_like(out))
    assert torch.equal(lse, torch.full_like(lse, -INF))
    grads = attention_backward.reference(torch.ones_like(out), q, k, v, out, lse, **options)
    assert not any(grad.isnan().any() for grad in (grads[2], grads[1]))
    sinks = torch.tensor([0.5])
    out, lse = attention_lse.reference(q, k, v, sinks, **options)
    assert torch.equal(out, torch.zeros_like(out))
    assert torch.equal(lse, torch.full_like(lse, 0.5))
    k[0, 2, 0, 0] = INF
    out, lse = attention_lse.reference(q, k, v, **options)
    reached = attended(6, 6, bool(options), (-1, -1))[:, 2]
    assert torch.equal(out[0, :, 0].isnan().all(-1), reached)
    assert torch.equal(lse[0, 0].isnan(), reached)
    assert not out[0, ~reached].isnan().any()


def test_infinite_sinks():
    q, k, v, _ = inputs(1, 3, 4, 2, 1, 2, 3)
    out, lse = attention_lse.reference(q, k, v, torch.tensor([-INF, INF]))
    expected, expected_lse = attention_lse.reference(q, k, v)
    torch.testing.assert_close((out[:, :, 0], lse[:, 0]), (expected[:, :, 0], expected_lse[:, 0]))
    assert out[:, :, 1].isnan().all()
    grad = attention_backward.reference(
        out[:, :, :1], q[:, :, :1], k, v, out[:, :, :1], lse[:, :1], torch.tensor([-INF])
    )[3]
    assert torch.equal(grad, torch.zeros(1))


def test_large_scores_do_not_overflow():
    q, k, v, _ = inputs(1, 8, 40, 1, 1, 4, 4)
    out, lse = attention_lse.reference(q * 1e4, k * 1e4, v)
    expected, expected_lse = naive(q * 1e4, k * 1e4, v)
    assert out.isfinite().all()
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-5, atol=0)


def strided(x: Tensor, how: str) -> Tensor:
    """The same numbers under other strides."""
    if how == "transposed":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if how == "sliced":
        wide = torch.full((x.shape[0], 2 * x.shape[1], x.shape[2], x.shape[3] + 3), NAN, dtype=x.dtype)
        wide[:, 1::2, :, 2:-1] = x
        return wide[:, 1::2, :, 2:-1]
    return x.flip(3).contiguous().permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0).flip(3)


@pytest.mark.parametrize("how", ["transposed", "sliced", "permuted"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_strides_change_nothing(how, dtype):
    q, k, v, sinks = inputs(2, 17, 23, 4, 2, 8, 4, dtype=dtype, sinks=True)
    spread_sinks = sinks.repeat_interleave(2)[::2]
    out, lse = attention_lse.reference(q, k, v, sinks, causal=True)
    grad_out = torch.randn_like(out)
    grads = attention_backward.reference(grad_out, q, k, v, out, lse, sinks, lse, causal=True)

    views = [strided(x, how) for x in (q, k, v, grad_out, out)]
    lse_view = lse.mT.contiguous().mT
    new_out, new_lse = attention_lse.reference(*views[:3], spread_sinks, causal=True)
    new_grads = attention_backward.reference(
        views[3], *views[:3], views[4], lse_view, spread_sinks, lse_view, causal=True
    )
    torch.testing.assert_close((new_out, new_lse, *new_grads), (out, lse, *grads))
    assert all(x.is_contiguous() for x in (new_out, new_lse, *new_grads))


def test_expanded_gradients():
    """`out.sum().backward()` hands over a gradient with strides of 0."""
    q, k, v, _ = inputs(2, 9, 9, 2, 2, 4, 4)
    out, lse = attention_lse.reference(q, k, v)
    ones = torch.ones(())
    grads = attention_backward.reference(
        ones.expand_as(out), q, k, v, out, lse, None, ones.expand_as(lse), causal=False
    )
    expected = attention_backward.reference(torch.ones_like(out), q, k, v, out, lse, None, torch.ones_like(lse))
    torch.testing.assert_close(grads, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inputs_are_left_alone_and_outputs_alias_none(dtype):
    """One head and one key, where every rearrangement is a view of its argument."""
    q, k, v, sinks = inputs(1, 1, 1, 1, 1, 4, 4, dtype=dtype, sinks=True)
    out, lse = attention_lse.reference(q, k, v, sinks, scale=1.0, causal=True)
    arguments = (torch.ones_like(out), q, k, v, out, lse, sinks, torch.ones_like(lse))
    before = [x.clone() for x in arguments]
    results = (*attention_backward.reference(*arguments, scale=1.0), *attention_lse.reference(q, k, v, sinks))
    assert all(torch.equal(x, y) for x, y in zip(arguments, before, strict=True))
    storages = {x.untyped_storage().data_ptr() for x in arguments}
    assert not storages & {x.untyped_storage().data_ptr() for x in results}


@pytest.mark.parametrize("wanted", [(i >> 3 & 1, i >> 2 & 1, i >> 1 & 1, i & 1) for i in range(16)])
def test_unwanted_gradients_are_empty(wanted):
    q, k, v, sinks = inputs(1, 20, 20, 4, 2, 4, 3, dtype=torch.bfloat16, sinks=True)
    out, lse = attention_lse.reference(q, k, v, sinks, causal=True)
    arguments = (torch.ones_like(out), q, k, v, out, lse, sinks)
    everything = attention_backward.reference(*arguments, causal=True)
    with Recorder() as recorder:
        grads = attention_backward.reference(*arguments, causal=True, output_mask=tuple(map(bool, wanted)))
    for grad, whole, wants in zip(grads, everything, wanted, strict=True):
        assert grad.dtype == whole.dtype
        assert torch.equal(grad, whole) if wants else grad.shape == (0,)
    query, key, value, _ = wanted
    scores, grad_scores = query or key or value, query or key
    assert recorder.products == scores + grad_scores + query + key + value


def test_gradients_without_sinks_have_an_empty_one_for_them():
    q, k, v, _ = inputs(1, 3, 3, 1, 1, 4, 4, dtype=torch.float16)
    out, lse = attention_lse.reference(q, k, v)
    grad_sinks = attention_backward.reference(out, q, k, v, out, lse)[3]
    assert (grad_sinks.shape, grad_sinks.dtype) == ((0,), torch.float16)


def test_fake_tensors():
    with FakeTensorMode():
        q, k, v = torch.empty(2, 40, 4, 8), torch.empty(2, 60, 2, 8), torch.empty(2, 60, 2, 6)
        out, lse = attention_lse.reference(q, k, v, torch.empty(4), causal=True, window=(9, -1), softcap=2.0)
        grads = attention_backward.reference(out, q, k, v, out, lse, torch.empty(4), lse, window=(9, 9))
        merged, _ = merge_attention_states.reference(out, lse, out, lse)
    assert (out.shape, lse.shape, merged.shape) == ((2, 40, 4, 6), (2, 4, 40), (2, 40, 4, 6))
    assert [grad.shape for grad in grads] == [q.shape, k.shape, v.shape, (4,)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("split", [0, 1, 13, 40])
def test_merging_two_sets_of_keys_gives_their_union(dtype, split):
    q, k, v, sinks = inputs(2, 9, 40, 4, 2, 8, 6, dtype=dtype, sinks=True)
    a = attention_lse.reference(q, k[:, :split], v[:, :split], sinks)
    b = attention_lse.reference(q, k[:, split:], v[:, split:])
    out, lse = merge_attention_states.reference(*a, *b)
    expected_out, expected_lse = naive(q, k, v, sinks)
    assert (out.dtype, lse.dtype) == (dtype, a[1].dtype)
    if dtype in HALF:  # the parts are rounded too
        torch.testing.assert_close(out.double(), expected_out, rtol=0, atol=2 * torch.finfo(dtype).eps)
    else:
        assert_near(out, expected_out, dtype)
    assert_near(lse, expected_lse, lse.dtype)
    ragged = merge_attention_states.reference(a[0][0], a[1][0], b[0][0], b[1][0])
    torch.testing.assert_close(ragged, (out[0], lse[0]), rtol=0, atol=0)


def test_merging_what_attended_to_nothing():
    out_a, out_b = torch.randn(2, 3, 1, 4).unbind(0)
    lse_a, lse_b = torch.tensor([[[0.5, -INF, -INF]], [[-INF, 0.25, -INF]]]).unbind(0)
    out_a[2], out_b[2] = NAN, INF
    out_b[0] = NAN  # an output without weight may hold anything
    out, lse = merge_attention_states.reference(out_a, lse_a, out_b, lse_b)
    assert torch.equal(lse, torch.tensor([[0.5, 0.25, -INF]]))
    assert torch.equal(out, torch.stack([out_a[0], out_b[1], torch.zeros(1, 4)]))


@pytest.mark.parametrize("place", ["out_a", "lse_a", "out_b", "lse_b"])
def test_merging_nan_shows(place):
    sides = {
        "out_a": torch.randn(5, 2, 4),
        "lse_a": torch.randn(2, 5),
        "out_b": torch.randn(5, 2, 4),
        "lse_b": torch.randn(2, 5),
    }
    sides[place] = poisoned(sides[place], (1, 1), NAN)
    out, lse = merge_attention_states.reference(**sides)
    assert out[1, 1].isnan().all()
    assert lse[1, 1].isnan() == place.startswith("lse")
    assert out.isnan().sum() == 4


def test_merging_keeps_large_lse_apart():
    lse_a, lse_b = torch.tensor([[1000.0, -1000.0]]), torch.tensor([[999.0, -1001.0]])
    out_a, out_b = torch.zeros(2, 1, 3), torch.ones(2, 1, 3)
    out, lse = merge_attention_states.reference(out_a, lse_a, out_b, lse_b)
    torch.testing.assert_close(out, torch.full_like(out, 1 / (1 + torch.e)))
    torch.testing.assert_close(lse, torch.tensor([[1000.0, -1000.0]]) + torch.tensor(1 + 1 / torch.e).log())


def test_gradients_of_merging():
    """By the reference's own autograd, as the generated backward runs it; the formula's in float64 is the oracle."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 5, 3, 4), (2, 3, 5)) * 2
    leaves = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    out, lse = merge_attention_states.reference(*leaves)
    out_a, lse_a, out_b, lse_b = leaves
    share = torch.sigmoid(lse_a - lse_b).mT.unsqueeze(-1)
    expected_out, expected_lse = share * out_a + (1 - share) * out_b, torch.logaddexp(lse_a, lse_b)
    torch.testing.assert_close((out, lse), (expected_out, expected_lse))
    grad_out, grad_lse = torch.randn_like(out), torch.randn_like(lse)
    grads = torch.autograd.grad((out, lse), leaves, (grad_out, grad_lse))
    torch.testing.assert_close(grads, torch.autograd.grad((expected_out, expected_lse), leaves, (grad_out, grad_lse)))


def test_gradients_of_merging_what_attended_to_nothing():
    out_a, out_b = torch.randn(2, 3, 1, 4).unbind(0)
    lse_a, lse_b = torch.tensor([[[0.5, -INF, -INF]], [[-INF, 0.25, -INF]]]).unbind(0)
    leaves = [x.clone().requires_grad_() for x in (out_a, lse_a, out_b, lse_b)]
    out, lse = merge_attention_states.reference(*leaves)
    grads = torch.autograd.grad((out, lse), leaves, (torch.ones_like(out), torch.ones_like(lse)))
    only_a, only_b = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 1.0, 0.0])
    expected = (
        only_a.view(3, 1, 1).expand(3, 1, 4),
        only_a.view(1, 3),
        only_b.view(3, 1, 1).expand(3, 1, 4),
        only_b.view(1, 3),
    )
    torch.testing.assert_close(grads, expected, rtol=0, atol=1e-6)
