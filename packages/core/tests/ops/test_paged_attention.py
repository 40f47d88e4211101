"""The references of paged attention against float64 that looks up one key after the other in the cache."""

import pytest
import torch
from torch import Tensor

from opmux.errors import InvalidArgument
from opmux.ops import _blockwise
from opmux.ops.paged_attention import paged_attention, paged_attention_lse

INF = float("inf")
NAN = float("nan")
GARBAGE = -12345
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of at most 16, so that small sizes cross many of their borders."""
    monkeypatch.setattr(_blockwise, "BLOCK_SIDES", {"cpu": (16, 16)})


BATCHES = {  # (new tokens, tokens in all) of each sequence
    "prefill": [(20, 20), (1, 1), (33, 33)],
    "chunked_prefill": [(20, 37), (5, 64), (7, 8)],
    "decode": [(1, 17), (1, 40), (1, 1), (1, 32)],
    "mixed": [(1, 50), (0, 0), (16, 16), (0, 9), (3, 31)],
    "none": [],
}
OPTIONS = {
    "default": {},
    "not_causal": {"causal": False},
    "left": {"window": (10, -1)},
    "both": {"causal": False, "window": (6, 2)},
    "all": {"window": (20, 3), "softcap": 2.0, "scale": 0.5},
}


class Cache:
    """A filled cache, its block table and the other arguments of a call; unused places hold NaN and garbage."""

    def __init__(self, batch, page_size, dtype=torch.float32, heads=4, kv_heads=2, head_dim=8, value_dim=6, past=2):
        generator = torch.Generator().manual_seed(0)

        def random(*shape):
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

        needed = [-(-length // page_size) for _, length in batch]
        pages = sum(needed) + 3
        self.page_size, self.batch = page_size, batch
        self.q = random(sum(new for new, _ in batch) + past, heads, head_dim)
        self.sinks = random(heads).to(torch.promote_types(dtype, torch.float32))
        self.k = torch.full((pages, page_size, kv_heads, head_dim), NAN, dtype=dtype)
        self.v = torch.full((pages, page_size, kv_heads, value_dim), NAN, dtype=dtype)
        self.table = torch.full((len(batch), max(needed, default=0) + 1), GARBAGE, dtype=torch.int32)
        shuffled = torch.randperm(pages, generator=generator).tolist()
        for sequence, (_, length) in enumerate(batch):
            for j in range(length):
                if j % page_size == 0:
                    self.table[sequence, j // page_size] = shuffled.pop()
                page = self.table[sequence, j // page_size]
                self.k[page, j % page_size] = random(kv_heads, head_dim)
                self.v[page, j % page_size] = random(kv_heads, value_dim)

    def arguments(self) -> tuple[Tensor, ...]:
        ends = [sum(new for new, _ in self.batch[:i]) for i in range(len(self.batch) + 1)]
        lengths = torch.tensor([length for _, length in self.batch], dtype=torch.int32)
        return self.q, self.k, self.v, torch.tensor(ends, dtype=torch.int32), lengths, self.table

    def longest(self) -> dict[str, int]:
        return {
            "max_seqlen_q": max((new for new, _ in self.batch), default=0),
            "max_seqlen_k": max((length for _, length in self.batch), default=0),
        }

    def naive(self, sinks=None, *, scale=None, causal=True, window=(-1, -1), softcap=0.0):
        """(out, lse) in float64, query by query."""
        tokens, heads, head_dim = self.q.shape
        out = torch.zeros(tokens, heads, self.v.shape[3], dtype=torch.float64)
        lse = torch.full((heads, tokens), -INF, dtype=torch.float64)
        token = 0
        for sequence, (new, length) in enumerate(self.batch):
            for i in range(new):
                position = length - new + i
                keys = [
                    (self.table[sequence, j // self.page_size].item(), j % self.page_size)
                    for j in range(length)
                    if (not causal or j <= position)
                    and (window[0] == -1 or position - j <= window[0])
                    and (window[1] == -1 or j - position <= window[1])
                ]
                for h in range(heads):
                    kv_head = h // (heads // self.k.shape[2])
                    logits = [] if sinks is None else [sinks[h].double()]
                    if keys:
                        near = torch.stack([self.k[page, slot, kv_head] for page, slot in keys]).double()
                        scores = (near @ self.q[token, h].double()) * (head_dim**-0.5 if scale is None else scale)
                        scores = softcap * torch.tanh(scores / softcap) if softcap else scores
                        lse[h, token] = torch.logsumexp(torch.stack([*logits, *scores]), 0)
                        values = torch.stack([self.v[page, slot, kv_head] for page, slot in keys]).double()
                        out[token, h] = torch.exp(scores - lse[h, token]) @ values
                    elif logits:
                        lse[h, token] = logits[0]
                token += 1
        return out, lse


def tolerance(dtype):
    error = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 0.51 * torch.finfo(dtype).eps)
    return {"rtol": error, "atol": min(error, 1e-5)}


@pytest.mark.parametrize("sinks", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_matches_looking_up_one_key_after_the_other(batch, options, sinks, small_blocks):
    cache = Cache(batch, 16)
    sinks = cache.sinks if sinks else None
    out, lse = paged_attention_lse.reference(*cache.arguments(), sinks, **cache.longest(), **options)
    expected_out, expected_lse = cache.naive(sinks, **options)
    torch.testing.assert_close(out.double(), expected_out, **tolerance(torch.float32))
    torch.testing.assert_close(lse.double(), expected_lse, **tolerance(torch.float32))
    assert out.is_contiguous()
    assert lse.is_contiguous()
    assert torch.equal(paged_attention.reference(*cache.arguments(), sinks, **cache.longest(), **options), out)
    assert torch.equal(out[-2:], torch.zeros_like(out[-2:]))
    assert (lse[:, -2:] == -INF).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("page_size", [1, 16, 48, 128])
def test_page_sizes_and_dtypes(page_size, dtype):
    cache = Cache([(9, 30), (1, 49), (4, 4)], page_size, dtype=dtype)
    out, lse = paged_attention_lse.reference(*cache.arguments(), cache.sinks, **cache.longest())
    expected_out, expected_lse = cache.naive(cache.sinks)
    assert (out.dtype, lse.dtype) == (dtype, torch.promote_types(dtype, torch.float32))
    torch.testing.assert_close(out.double(), expected_out, **tolerance(dtype))
    torch.testing.assert_close(lse.double(), expected_lse, **tolerance(lse.dtype))


@pytest.mark.parametrize("heads", [(4, 4), (8, 2), (3, 1)], ids=["mha", "gqa", "mqa"])
def test_shared_heads(heads):
    cache = Cache([(5, 40), (1, 17)], 16, heads=heads[0], kv_heads=heads[1], value_dim=11)
    out = paged_attention.reference(*cache.arguments(), **cache.longest())
    torch.testing.assert_close(out.double(), cache.naive()[0], **tolerance(torch.float32))


@pytest.mark.parametrize("past", [GARBAGE, 2**31 - 1])
@pytest.mark.parametrize("rest", [NAN, INF])
def test_what_lies_past_a_sequence_is_never_seen(past, rest):
    """Table entries past a sequence, the rest of its last page, and every other page."""
    cache = Cache([(3, 17), (1, 16), (2, 33)], 16)
    expected = paged_attention_lse.reference(*cache.arguments(), **cache.longest(), causal=False)
    cache.table[cache.table == GARBAGE] = past
    cache.k[cache.k.isnan()], cache.v[cache.v.isnan()] = rest, rest
    results = paged_attention_lse.reference(*cache.arguments(), **cache.longest(), causal=False)
    assert expected[0].isfinite().all()
    for result, other in zip(results, expected, strict=True):
        assert torch.equal(result, other)


def test_a_bad_entry_reaches_exactly_the_queries_that_attend_to_it(small_blocks):
    cache = Cache([(20, 40), (4, 30)], 16, past=0)
    clean, clean_lse = paged_attention_lse.reference(*cache.arguments(), **cache.longest(), window=(8, -1))
    page = cache.table[0, 1]
    saved = cache.v[page, 9, 1, 3].item()
    cache.v[page, 9, 1, 3] = NAN  # key 25 of sequence 0: positions 25 to 33, the queries 5 to 13
    out, lse = paged_attention_lse.reference(*cache.arguments(), **cache.longest(), window=(8, -1))
    expected = clean.clone()
    expected[5:14, 2:, 3] = NAN
    torch.testing.assert_close((out, lse), (expected, clean_lse), rtol=0, atol=0, equal_nan=True)
    cache.v[page, 9, 1, 3] = saved
    cache.k[page, 9, 1, 3] = NAN
    out, lse = paged_attention_lse.reference(*cache.arguments(), **cache.longest(), window=(8, -1))
    clean[5:14, 2:], clean_lse[2:, 5:14] = NAN, NAN
    torch.testing.assert_close((out, lse), (clean, clean_lse), rtol=0, atol=0, equal_nan=True)


def test_caches_may_be_slices_of_a_larger_tensor():
    """Keys and values of all layers interleaved in one tensor, kv heads before slots."""
    cache = Cache([(5, 40), (1, 17), (6, 6)], 16, value_dim=8, dtype=torch.bfloat16)
    expected = paged_attention.reference(*cache.arguments(), cache.sinks, **cache.longest())
    pages, page_size, kv_heads, head_dim = cache.k.shape
    store = torch.full((pages, 3, 2, kv_heads, page_size, head_dim), NAN, dtype=torch.bfloat16)
    store[:, 1, 0], store[:, 1, 1] = cache.k.transpose(1, 2), cache.v.transpose(1, 2)
    cache.k, cache.v = store[:, 1, 0].transpose(1, 2), store[:, 1, 1].transpose(1, 2)
    cache.q = cache.q.transpose(0, 2).contiguous().transpose(0, 2)
    wide = torch.full((3, 2 * cache.table.shape[1]), GARBAGE, dtype=torch.int32)
    wide[:, ::2] = cache.table
    cache.table = wide[:, ::2]
    before = store.clone()
    assert torch.equal(paged_attention.reference(*cache.arguments(), cache.sinks, **cache.longest()), expected)
    torch.testing.assert_close(store, before, rtol=0, atol=0, equal_nan=True)


def test_sequences_may_share_pages():
    cache = Cache([(2, 40), (3, 33)], 16)
    cache.table[1, :2] = cache.table[0, :2]
    out = paged_attention.reference(*cache.arguments(), **cache.longest())
    torch.testing.assert_close(out.double(), cache.naive()[0], **tolerance(torch.float32))


def test_the_bounds_of_lengths_are_upper_bounds():
    cache = Cache([(2, 40), (3, 33)], 16)
    expected = paged_attention.reference(*cache.arguments(), **cache.longest())
    assert torch.equal(paged_attention.reference(*cache.arguments(), max_seqlen_q=100, max_seqlen_k=4096), expected)


def test_a_table_without_columns_holds_empty_sequences():
    cache = Cache([(0, 0), (0, 0)], 16)
    cache.table = cache.table[:, :0]
    out, lse = paged_attention_lse.reference(*cache.arguments(), **cache.longest())
    assert torch.equal(out, torch.zeros_like(out))
    assert (lse == -INF).all()


BROKEN = {
    "starts": (
        {"cu_seqlens_q": [2, 3, 8]},
        "`cu_seqlens_q` expected 0 at index 0, got 2; it is the running sum of the sequence lengths, with a 0 in front",
    ),
    "decreases": (
        {"cu_seqlens_q": [0, 4, 3]},
        "`cu_seqlens_q` expected 4 or more at index 2, as at index 1, got 3; it is the running sum of the "
        "sequence lengths",
    ),
    "ends": (
        {"cu_seqlens_q": [0, 3, 9]},
        "`cu_seqlens_q` expected at most 8, the number of tokens, at its end, got 9; check the lengths that it sums",
    ),
    "longest_q": (
        {"max_seqlen_q": 4},
        "`max_seqlen_q` expected 5 or more, the length of sequence 1 in `cu_seqlens_q`, got 4; give an upper "
        "bound of all lengths",
    ),
    "too_short": (
        {"seq_lens": [2, 40]},
        "`seq_lens` expected 3 or more at index 0, its number of new tokens in `cu_seqlens_q`, got 2; seq_lens "
        "includes the new tokens",
    ),
    "negative": (
        {"seq_lens": [-1, 40], "cu_seqlens_q": [0, 0, 5]},
        "`seq_lens` expected 0 or more at index 0, its number of new tokens in `cu_seqlens_q`, got -1; seq_lens "
        "includes the new tokens",
    ),
    "too_long": (
        {"seq_lens": [20, 49]},
        "`seq_lens` expected at most max_pages * page_size = 48 at index 1, got 49; give `block_table` more columns",
    ),
    "longest_k": (
        {"max_seqlen_k": 39},
        "`max_seqlen_k` expected 40 or more, the length of sequence 1 in `seq_lens`, got 39; give an upper bound "
        "of all lengths",
    ),
    "no_page": (
        {"block_table": [[0, 1, GARBAGE], [2, 3, 6]]},
        "`block_table` expected a page from 0 to pages - 1 = 5 at (1, 2), got 6; check the allocator that gave "
        "the pages",
    ),
    "negative_page": (
        {"block_table": [[0, -1, GARBAGE], [2, 3, 6]]},
        "`block_table` expected a page from 0 to pages - 1 = 5 at (0, 1), got -1; check the allocator that gave "
        "the pages",
    ),
}


@pytest.mark.parametrize("op", [paged_attention, paged_attention_lse], ids=["paged_attention", "paged_attention_lse"])
@pytest.mark.parametrize(("change", "message"), BROKEN.values(), ids=BROKEN)
def test_unsound_index_data_is_refused(op, change, message):
    given = {
        "cu_seqlens_q": [0, 3, 8],
        "seq_lens": [20, 40],
        "block_table": [[0, 1, GARBAGE], [2, 3, 4]],
        "max_seqlen_q": 6,
        "max_seqlen_k": 48,
    } | change
    index = [torch.tensor(given.pop(n), dtype=torch.int32) for n in ("cu_seqlens_q", "seq_lens", "block_table")]
    with pytest.raises(InvalidArgument) as caught:
        op.reference(torch.zeros(8, 2, 4), torch.zeros(6, 16, 1, 4), torch.zeros(6, 16, 1, 4), *index, **given)
    name = "paged_attention" if op is paged_attention else "paged_attention_lse"
    assert str(caught.value) == f"{name}: {message}"
