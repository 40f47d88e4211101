"""Packed sequences and the paged cache give what each sequence gives alone."""

from typing import Any

import pytest
import torch
from nn.blocks import HEADS, HIDDEN, KV_HEADS, Block, inputs, randomise
from torch import Tensor

from opmux import nn
from opmux.errors import GradientRefused, InvalidArgument

LENGTHS = [5, 1, 19, 3]
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture
def block() -> Block:
    block = Block(window=(7, 0))
    randomise(block)
    return block


OFFSETS = torch.tensor([0, 3, 8], dtype=torch.int32)


def each_alone(block: Block, x: Tensor, lengths: list[int] = LENGTHS) -> Tensor:
    return torch.cat([block(one[None])[0] for one in x.split(lengths)])


def test_packed_sequences(block: Block) -> None:
    x = inputs(sum(LENGTHS), HIDDEN)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    packed = nn.PackedSequences.of(LENGTHS)
    assert packed.positions.tolist() == [p for length in LENGTHS for p in range(length)]
    got, wanted = block(a, context=packed), each_alone(block, b)
    torch.testing.assert_close(got, wanted, **CLOSE)
    got.square().sum().backward()
    wanted.square().sum().backward()
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-3)
    given = nn.PackedSequences(packed.cu_seqlens, packed.max_seqlen)
    torch.testing.assert_close(block(x, packed.positions, given), wanted, **CLOSE)


@pytest.mark.parametrize("chunk", [1, 4, 100])
@pytest.mark.parametrize("page_size", [1, 16])
@torch.no_grad()
def test_a_paged_cache(block: Block, chunk: int, page_size: int) -> None:
    x = inputs(sum(LENGTHS), HIDDEN)
    wanted = each_alone(block, x).split(LENGTHS)
    cache = nn.PagedCache(2, 40, page_size, KV_HEADS, HIDDEN // HEADS)
    cache.data.fill_(float("nan"))
    done = [0] * len(LENGTHS)
    while done != LENGTHS:
        counts = {i: min(chunk, LENGTHS[i] - done[i]) for i in range(len(LENGTHS)) if done[i] < LENGTHS[i]}
        tokens = torch.cat([x.split(LENGTHS)[i][done[i] : done[i] + n] for i, n in counts.items()])
        step = cache.step(counts)
        got = block(tokens, context=cache.layer(1, step)).split(list(counts.values()))
        for (i, n), one in zip(counts.items(), got, strict=True):
            torch.testing.assert_close(one, wanted[i][done[i] : done[i] + n], **CLOSE)
            done[i] += n
    assert bool(cache.data[:, 0].isnan().all())  # the other layer's
    for i in range(len(LENGTHS)):
        cache.release(i)
    assert cache.free_pages == 40


def test_a_step_by_hand() -> None:
    step = nn.PagedStep.of(starts=[15, 0], counts=[3, 2], pages=[[4, 2], [7]], page_size=16)
    assert step.positions.tolist() == [15, 16, 17, 0, 1]
    assert step.slot_mapping.tolist() == [79, 32, 33, 112, 113]
    assert step.cu_seqlens_q.tolist() == [0, 3, 5]
    assert step.seq_lens.tolist() == [18, 2]
    assert step.block_table.tolist() == [[4, 2], [7, 0]]
    assert (step.max_seqlen_q, step.max_seqlen_k) == (3, 18)
    assert {t.dtype for t in (step.positions, step.slot_mapping)} == {torch.int64}
    assert {t.dtype for t in (step.cu_seqlens_q, step.seq_lens, step.block_table)} == {torch.int32}


def test_pages_come_and_go() -> None:
    cache = nn.PagedCache(1, 3, 16, 1, 8, dtype=torch.bfloat16)
    assert (cache.data.dtype, cache.free_pages) == (torch.bfloat16, 3)
    cache.step({7: 16, 5: 1})
    assert cache.free_pages == 1
    assert cache.step({7: 1}).block_table.shape == (1, 2)
    cache.release(5)
    assert cache.step({7: 1, 2: 4}).seq_lens.tolist() == [18, 4]
    assert cache.free_pages == 0


@pytest.mark.parametrize("dtype", ["fp8", torch.float8_e5m2, torch.int8], ids=str)
@torch.no_grad()
def test_a_cache_in_8_bits(block: Block, dtype: Any) -> None:
    x = inputs(sum(LENGTHS), HIDDEN)
    wanted = each_alone(block, x)
    cache = nn.PagedCache(2, 40, 16, KV_HEADS, HIDDEN // HEADS, dtype=dtype)
    assert cache.data.dtype == (torch.float8_e4m3fn if dtype == "fp8" else dtype)
    assert cache.k_scale is not None
    assert cache.k_scale.shape == (2, KV_HEADS)
    assert bool((cache.k_scale == 1).all())
    if dtype == torch.int8:  # the keys and values of this block are about 1, and so would their codes be
        cache.calibrate(1, *(inputs(64, KV_HEADS, HIDDEN // HEADS) * 2 for _ in range(2)))
    context = cache.layer(1, cache.step(dict(enumerate(LENGTHS))))
    got = block(x, context=context)
    assert 0 < float((got - wanted).norm() / wanted.norm()) < 0.2
    assert not cache.data[:, 0].to(torch.float32).any()  # the other layer's


@torch.no_grad()
def test_a_cache_in_8_bits_by_name() -> None:
    assert nn.PagedCache(1, 1, 16, 1, 8, dtype="int8").data.dtype == torch.int8
    assert nn.PagedCache(1, 1, 16, 1, 8, dtype="fp8").data.dtype == torch.float8_e4m3fn


def test_calibrating_fits_the_largest_of_each_head() -> None:
    cache = nn.PagedCache(2, 4, 16, 2, 8, dtype="fp8")
    k, v = torch.ones(3, 2, 8), torch.ones(3, 2, 8)
    k[1, 0, 3], k[2, 1, 0], v[0, 1, 7] = -896.0, 44.8, float("nan")
    cache.calibrate(1, k, v)
    assert cache.k_scale is not None
    assert cache.v_scale is not None
    torch.testing.assert_close(cache.k_scale, torch.tensor([[1.0, 1.0], [2.0, 0.1]]))
    torch.testing.assert_close(cache.v_scale, torch.tensor([[1.0, 1.0], [1 / 448, 1 / 448]]))
    context = cache.layer(1, cache.step({0: 3}))
    context.attend(torch.randn(3, 4, 8), k, v, None, backend=None)
    stored = context.k_cache.float() * cache.k_scale[1][:, None]
    slots = context.step.slot_mapping
    torch.testing.assert_close(stored.flatten(0, 1)[slots], k, rtol=0.07, atol=0)


@pytest.mark.parametrize("counts", [{}, {3: 0}])
def test_a_step_has_tokens(counts: dict[int, int]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        nn.PagedCache(1, 1, 16, 1, 8).step(counts)
    assert str(caught.value) == (
        f"PagedCache: `counts` expected a mapping with at least one new token per sequence, got {counts}; "
        "leave out sequences that do not grow"
    )


@torch.no_grad()
def test_values_of_another_size() -> None:
    attention = randomise(nn.Attention(HIDDEN, HEADS, KV_HEADS, value_dim=12, rotary=nn.RotaryEmbedding(8, 32)))
    x = inputs(9, HIDDEN)
    wanted = torch.cat([attention(one[None])[0] for one in x.split([5, 4])])
    torch.testing.assert_close(attention(x, context=nn.PackedSequences.of([5, 4])), wanted, **CLOSE)
    cache = nn.PagedCache(2, 4, 16, KV_HEADS, 8, value_dim=12)
    context = cache.layer(1, cache.step({0: 5, 1: 4}))
    assert (context.k_cache.shape, context.v_cache.shape) == ((4, 16, KV_HEADS, 8), (4, 16, KV_HEADS, 12))
    torch.testing.assert_close(attention(x, context=context), wanted, **CLOSE)
    assert context.k_cache.untyped_storage().data_ptr() == cache.data.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: nn.PagedCache(1, 1, 8, 1, 8),
            "PagedCache: `page_size` expected 1 or a multiple of 16, got 8; round it up",
        ),
        (
            lambda: nn.PagedCache(1, 1, 16, 1, 8, dtype="fp4"),  # type: ignore[arg-type]
            'PagedCache: `dtype` expected a torch.dtype, "fp8", "int8" or None, got \'fp4\'; '
            'pass the dtype of the model\'s activations, as torch.bfloat16, or "fp8"',
        ),
        (
            lambda: nn.PagedCache(1, 1, 16, 1, 8, dtype=torch.int32),
            "PagedCache: `dtype` expected one of bfloat16, float16, float32, float64, float8_e4m3fn, float8_e4m3fnuz, "
            'float8_e5m2, float8_e5m2fnuz, int8, got int32; pass the dtype of the model\'s activations, or "fp8"',
        ),
        (
            lambda: nn.PagedCache(1, 1, 16, 1, 8).calibrate(0, torch.ones(1, 1, 8), torch.ones(1, 1, 8)),
            "PagedCache: `index` expected a layer of an 8-bit cache, got one in float32; "
            'make the cache with dtype="fp8"',
        ),
        (
            lambda: nn.PagedCache(1, 1, 16, 1, 8, dtype="fp8").calibrate(0, torch.ones(0, 1, 8), torch.ones(1, 1, 8)),
            "PagedCache: `k` expected shape [tokens, 1, 8] with at least one token, got shape [0, 1, 8]; "
            "pass what the layer's projection gives, heads apart",
        ),
        (
            lambda: nn.PagedCache(1, 1, 16, 1, 8, dtype="fp8").calibrate(
                0, torch.ones(1, 1, 8), torch.full((1, 1, 8), torch.inf)
            ),
            "PagedCache: `v` expected no infinities, got some; leave out the tokens whose projections have them",
        ),
        (
            lambda: nn.PagedCache(1, 1, 16, 1, 8, dtype="fp8").calibrate(0, torch.ones(1, 1, 9), torch.ones(1, 1, 8)),
            "PagedCache: `k` expected shape [tokens, 1, 8] with at least one token, got shape [1, 1, 9]; "
            "pass what the layer's projection gives, heads apart",
        ),
        (
            lambda: nn.PagedCache(1, 1, 16, 1, 8, value_dim=4, dtype="fp8").calibrate(
                0, torch.ones(1, 1, 8), torch.ones(1, 1, 8)
            ),
            "PagedCache: `v` expected shape [tokens, 1, 4] with at least one token, got shape [1, 1, 8]; "
            "pass what the layer's projection gives, heads apart",
        ),
        (
            lambda: nn.PagedCache(1, 1, 16, 1, 8, dtype=["fp8"]),  # type: ignore[arg-type]
            "PagedCache: `dtype` expected one of bfloat16, float16, float32, float64, float8_e4m3fn, float8_e4m3fnuz, "
            "float8_e5m2, float8_e5m2fnuz, int8, got ['fp8']; pass the dtype of the model's activations, or \"fp8\"",
        ),
        (
            lambda: nn.PagedCache(1, 1, 16, 1, 8, dtype="fp8").calibrate(0, [1.0], torch.ones(1, 1, 8)),  # type: ignore[arg-type]
            "PagedCache: `k` expected shape [tokens, 1, 8] with at least one token, got a list; "
            "pass what the layer's projection gives, heads apart",
        ),
        (
            lambda: nn.PagedCache(1, 1, 16, 1, 8, dtype="fp8").calibrate("0", *torch.ones(2, 1, 1, 8)),  # type: ignore[arg-type]
            "PagedCache: `index` expected a layer from 0 to below 1, got '0'; "
            "give the cache one layer for each layer that caches keys and values",
        ),
        (
            lambda: nn.PagedCache(1, 2, 16, 1, 8).step({3: 1.5}),  # type: ignore[dict-item]
            "PagedCache: `counts` expected a mapping with at least one new token per sequence, got {3: 1.5}; "
            "leave out sequences that do not grow",
        ),
        (
            lambda: nn.PagedCache(1, 0, 16, 1, 8),
            "PagedCache: `pages` expected a whole number, 1 or more, got 0; check the model's sizes",
        ),
        (
            lambda: nn.PagedCache(2, 1, 16, 1, 8).layer(-1, nn.PagedStep.of([0], [1], [[0]], 16)),
            "PagedCache: `index` expected a layer from 0 to below 2, got -1; "
            "give the cache one layer for each layer that caches keys and values",
        ),
        (
            lambda: nn.PagedStep.of([15], [3], [[4]], 16),
            "PagedStep: `pages` expected room for 15 cached and 3 new tokens, got 1 pages of 16; "
            "allocate its pages first; no number may be negative",
        ),
        (
            lambda: nn.PagedStep.of([-1], [3], [[4]], 16),
            "PagedStep: `pages` expected room for -1 cached and 3 new tokens, got 1 pages of 16; "
            "allocate its pages first; no number may be negative",
        ),
        (
            lambda: nn.PagedStep.of([0, 0], [3], [[4]], 16),
            "PagedStep: `counts` expected one count per sequence, like starts and pages, for at least one sequence, "
            "got 1, 2 starts and 1 lists of pages; give each sequence all three",
        ),
        (
            lambda: nn.PackedSequences.of([]),
            "PackedSequences: `lengths` expected at least one whole number, none below 0, got []; "
            "give the number of tokens of each sequence",
        ),
        (
            lambda: nn.PackedSequences.of([4, -1]),
            "PackedSequences: `lengths` expected at least one whole number, none below 0, got [4, -1]; "
            "give the number of tokens of each sequence",
        ),
        (
            lambda: nn.PackedSequences.of([1.5]),  # type: ignore[list-item]
            "PackedSequences: `lengths` expected at least one whole number, none below 0, got [1.5]; "
            "give the number of tokens of each sequence",
        ),
        (
            lambda: nn.PackedSequences.of(3),  # type: ignore[arg-type]
            "PackedSequences: `lengths` expected at least one whole number, none below 0, got 3; "
            "give the number of tokens of each sequence",
        ),
        (
            lambda: nn.PackedSequences(torch.tensor([0, 3]), 3),
            "PackedSequences: `cu_seqlens` expected int32[sequences + 1] for at least one sequence, got int64[2]; "
            "make it with PackedSequences.of",
        ),
        (
            lambda: nn.PackedSequences(OFFSETS, 5, torch.zeros(2, 4)),
            "PackedSequences: `positions` expected int64[tokens], got float32[2, 4]; flatten it",
        ),
        (
            lambda: nn.PackedSequences(OFFSETS, 5, torch.arange(7)),
            "PackedSequences: `positions` expected at least 8 tokens, where `cu_seqlens` ends, got 7; "
            "give each token of the sequences its position",
        ),
        (
            lambda: nn.PackedSequences(OFFSETS, 4),
            "PackedSequences: `max_seqlen` expected at least 5, the longest sequence in `cu_seqlens`, got 4; "
            "give an upper bound of all lengths",
        ),
        (
            lambda: nn.PackedSequences.of([3, 5]).attend(*inputs(3, 9, 2, 8), None),
            "PackedSequences: `q` expected 8 tokens, the total of all sequences, got 9; "
            "pass the PackedSequences of this call",
        ),
        (
            lambda: nn.PagedCache(1, 2, 16, 1, 8).step([3]),  # type: ignore[arg-type]
            "PagedCache: `counts` expected a mapping with at least one new token per sequence, got [3]; "
            "leave out sequences that do not grow",
        ),
    ],
    ids=[
        "page_size",
        "another dtype",
        "a dtype of no cache",
        "not in 8 bits",
        "no tokens to calibrate by",
        "infinities to calibrate by",
        "keys of another size to calibrate by",
        "values of another size to calibrate by",
        "dtypes",
        "numbers to calibrate by",
        "the name of a layer",
        "half a token of a step",
        "no pages",
        "layer",
        "too few pages",
        "below 0",
        "lists",
        "no sequences",
        "a length below 0",
        "half a token",
        "one length",
        "int64 offsets",
        "two dims of positions",
        "too few positions",
        "a bound too low",
        "another total",
        "a list",
    ],
)
def test_errors(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        make()
    assert str(caught.value) == message


def test_lengths_of_a_tensor() -> None:
    packed = nn.PackedSequences.of(torch.tensor([4, 0, 2]))
    assert (packed.cu_seqlens.tolist(), packed.max_seqlen) == ([0, 4, 4, 6], 4)
    assert type(packed.max_seqlen) is int


def test_too_few_pages_change_nothing() -> None:
    cache = nn.PagedCache(1, 2, 16, 1, 8)
    cache.step({0: 10})
    with pytest.raises(InvalidArgument) as caught:
        cache.step({0: 7, 1: 1})
    assert str(caught.value) == (
        "PagedCache: `counts` expected tokens for 1 free pages, got tokens for 2; "
        "release sequences that have ended, or give the cache more pages"
    )
    assert cache.free_pages == 1
    assert cache.step({0: 6}).seq_lens.tolist() == [16]


def test_release_once() -> None:
    cache = nn.PagedCache(1, 2, 16, 1, 8)
    cache.step({4: 1, 2: 1})
    cache.release(4)
    with pytest.raises(InvalidArgument) as caught:
        cache.release(4)
    assert str(caught.value) == "PagedCache: `number` expected a sequence of the cache (2), got 4; release it once"
    cache.release(2)
    with pytest.raises(InvalidArgument, match=r"a sequence of the cache \(none\), got 2"):
        cache.release(2)


def test_a_paged_cache_has_no_gradient(block: Block) -> None:
    cache = nn.PagedCache(1, 1, 16, KV_HEADS, HIDDEN // HEADS)
    step = cache.step({0: 2})
    with pytest.raises(GradientRefused, match=r"call it under torch\.no_grad\(\)"):
        block(inputs(2, HIDDEN), context=cache.layer(0, step))


def test_a_context_of_ones_own(block: Block) -> None:
    class Doubled:
        """Every value twice as large."""

        positions = None

        def attend(self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, **options: Any) -> Tensor:
            import opmux

            return opmux.attention(q, k, 2 * v, sinks, **options)

    x = inputs(2, 5, HIDDEN)
    attention = block.attention
    torch.testing.assert_close(attention(x, context=Doubled()), 2 * attention(x), **CLOSE)
