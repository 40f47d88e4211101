"""The reference of the cache's write and the block table, against loops over tokens and pages."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from opmux.errors import InvalidArgument
from opmux.ops.kv_cache import block_table_from_csr, write_kv_cache

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
CACHES = ("contiguous", "one of layers", "keys beside values", "some heads", "transposed")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def caches(kind: str, pages: int, page_size: int, heads: int, dims: tuple[int, int], dtype: torch.dtype):
    """Two caches, as slices of larger tensors where kind says so, and those larger tensors."""
    if kind == "keys beside values":
        whole = torch.randn(pages, page_size, heads, sum(dims)).to(dtype)
        return whole[..., : dims[0]], whole[..., dims[0] :], (whole,)
    shapes = [(pages, page_size, heads, dim) for dim in dims]
    if kind == "contiguous":
        whole = tuple(torch.randn(*s).to(dtype) for s in shapes)
        return *whole, whole
    if kind == "one of layers":
        whole = tuple(torch.randn(pages, 3, *s[1:]).to(dtype) for s in shapes)
        return *(w[:, 1] for w in whole), whole
    if kind == "some heads":
        whole = tuple(torch.randn(pages, page_size, heads + 3, s[3]).to(dtype) for s in shapes)
        return *(w[:, :, 2:-1] for w in whole), whole
    whole = tuple(torch.randn(heads, pages, s[3], page_size).to(dtype) for s in shapes)
    return *(w.permute(1, 3, 0, 2) for w in whole), whole


def naive_write(values: Tensor, cache: Tensor, slots: list[int]) -> None:
    page_size = cache.shape[1]
    for token, slot in enumerate(slots):
        if slot != -1:
            for head in range(cache.shape[2]):
                for dim in range(cache.shape[3]):
                    cache[slot // page_size, slot % page_size, head, dim] = values[token, head, dim]


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("cache_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("pages", "page_size"), [(3, 16), (5, 1)])
def test_write_kv_cache(pages, page_size, dtype, cache_dtype, kind):
    k_cache, v_cache, whole = caches(kind, pages, page_size, 2, (3, 5), cache_dtype)
    slots = [*torch.randperm(pages * page_size)[:4].tolist(), -1]
    # The heads lie before the tokens, with a gap behind each row, and the slots are every other number.
    k, v = (torch.randn(2, 5, d + 1).to(dtype).transpose(0, 1)[..., :d] for d in (3, 5))
    slot_mapping = torch.tensor(slots).repeat_interleave(2)[::2]

    expected = tuple(w.clone() for w in whole)
    copies = dict(zip(map(id, whole), expected, strict=True))
    for values, cache in ((k, k_cache), (v, v_cache)):
        copy = copies[id(cache if cache._base is None else cache._base)]
        naive_write(values, copy.as_strided(cache.shape, cache.stride(), cache.storage_offset()), slots)

    assert write_kv_cache.reference(k, v, k_cache, v_cache, slot_mapping) is None
    for actual, wanted in zip(whole, expected, strict=True):
        assert torch.equal(actual, wanted)  # what lies beside the slots included


def test_a_skipped_token_writes_nothing():
    k_cache, v_cache, whole = caches("contiguous", 2, 16, 1, (2, 2), torch.float32)
    before = [w.clone() for w in whole]
    k = torch.full((3, 1, 2), float("nan"))
    write_kv_cache.reference(k, k, k_cache, v_cache, torch.tensor([-1, -1, -1]))
    assert all(torch.equal(w, b) for w, b in zip(whole, before, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_and_infinity_are_written_and_nothing_else(dtype):
    k_cache, v_cache, _ = caches("contiguous", 1, 16, 1, (2, 1), dtype)
    k = torch.tensor([[[float("nan"), float("inf")]]], dtype=dtype)
    write_kv_cache.reference(k, k[..., 1:], k_cache, v_cache, torch.tensor([7]))
    assert k_cache[0, 7, 0, 0].isnan()
    assert k_cache[0, 7, 0, 1] == float("inf")
    assert v_cache[0, 7, 0, 0] == float("inf")
    assert k_cache.isfinite().sum() == 30


def test_of_equal_slots_one_is_kept_whole():
    k_cache, v_cache, _ = caches("contiguous", 1, 16, 2, (3, 3), torch.float32)
    k = torch.randn(4, 2, 3)
    write_kv_cache.reference(k, k, k_cache, v_cache, torch.tensor([5, 5, 5, 5]))
    assert any(torch.equal(k_cache[0, 5], token) for token in k)


@pytest.mark.parametrize(("pages", "tokens"), [(2, 0), (0, 0), (0, 3)])
def test_no_tokens_and_no_pages(pages, tokens):
    k_cache, v_cache, whole = caches("contiguous", pages, 16, 2, (3, 5), torch.float32)
    before = [w.clone() for w in whole]
    write_kv_cache.reference(
        torch.randn(tokens, 2, 3), torch.randn(tokens, 2, 5), k_cache, v_cache, torch.full((tokens,), -1)
    )
    assert all(torch.equal(w, b) for w, b in zip(whole, before, strict=True))


@pytest.mark.parametrize(
    ("slots", "line"),
    [
        (
            [0, -1, 31, 900, 32],
            "write_kv_cache: `slot_mapping` expected -1 or a slot below pages * page_size = 32 at index 3, got "
            "900; check the allocator that gave the slots",
        ),
        (
            [32],
            "write_kv_cache: `slot_mapping` expected -1 or a slot below pages * page_size = 32 at index 0, got "
            "32; check the allocator that gave the slots",
        ),
        (
            [3, -2],
            "write_kv_cache: `slot_mapping` expected -1 or a slot below pages * page_size = 32 at index 1, got "
            "-2; check the allocator that gave the slots",
        ),
    ],
)
def test_a_slot_outside_of_the_cache(slots, line):
    k_cache, v_cache, whole = caches("contiguous", 2, 16, 1, (2, 2), torch.float32)
    before = [w.clone() for w in whole]
    k = torch.randn(len(slots), 1, 2)
    with pytest.raises(InvalidArgument) as raised:
        write_kv_cache.reference(k, k, k_cache, v_cache, torch.tensor(slots))
    assert str(raised.value).splitlines() == [line]
    assert all(torch.equal(w, b) for w, b in zip(whole, before, strict=True))


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def naive_table(indptr: list[int], indices: list[int], width: int) -> list[list[int]]:
    lists = [indices[first:end] for first, end in pairwise(indptr)]
    return [(pages + [0] * width)[:width] for pages in lists]


@pytest.mark.parametrize(
    ("indptr", "indices"),
    [
        ((0, 3, 3, 4, 9), (7, 8, 9, 3, 1, 2, 3, 4, 5)),
        ((0, 1), (6,)),
        ((2, 4, 5), (7, 8, 9, 3, 1, 2)),  # a part of longer lists
        ((0, 0, 0), ()),
        ((0, 0), (4, 5)),
        ((0,), ()),
        ((0,), (1, 2)),
    ],
)
def test_block_table_from_csr(indptr, indices):
    longest = max((end - first for first, end in pairwise(indptr)), default=0)
    for width in (None, longest, longest + 3):
        table = block_table_from_csr(int32(*indptr), int32(*indices), width)
        wanted = longest if width is None else width
        assert table.shape == (len(indptr) - 1, wanted)
        assert table.dtype == torch.int32
        assert table.is_contiguous()
        assert table.tolist() == naive_table(list(indptr), list(indices), wanted)


def test_block_table_of_strided_lists():
    indptr, indices = int32(0, 9, 2, 9, 5, 9)[::2], int32(4, 9, 5, 9, 6, 9, 7, 9, 8, 9)[::2]
    assert block_table_from_csr(indptr, indices).tolist() == [[4, 5, 0], [6, 7, 8]]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            (torch.tensor([0, 1]), int32(1)),
            "block_table_from_csr: `page_indptr` expected int32 with one dim, got int64[2]; convert it with "
            ".to(torch.int32), or flatten it",
        ),
        (
            (int32(0, 1), int32(1)[None]),
            "block_table_from_csr: `page_indices` expected int32 with one dim, got int32[1, 1]; convert it with "
            ".to(torch.int32), or flatten it",
        ),
        (
            (int32(0, 1), torch.empty(1, dtype=torch.int32, device="meta")),
            "block_table_from_csr: `page_indices` expected device cpu, where `page_indptr` is, got meta; move one"
            " of them with .to(device)",
        ),
        (
            ([0, 1], int32(1)),
            "block_table_from_csr: `page_indptr` expected a torch.Tensor, got a list; convert it with "
            "torch.tensor(..., dtype=torch.int32)",
        ),
        (
            (int32(0, 1), int32(1), 1.5),
            "block_table_from_csr: `max_pages` expected a whole number, got 1.5; omit it to measure the longest list",
        ),
        (
            (int32(), int32(1)),
            "block_table_from_csr: `page_indptr` expected batch + 1 offsets, got none; begin it with 0",
        ),
        (
            (int32(0, 1), int32(1), -2),
            "block_table_from_csr: `max_pages` expected 1 or more, the length of the longest list, so that no "
            "page is lost, got -2; omit it to measure the longest list",
        ),
        (
            (int32(0, 3, 4), int32(1, 2, 3, 4), 1),
            "block_table_from_csr: `max_pages` expected 3 or more, the length of the longest list, so that no "
            "page is lost, got 1; omit it to measure the longest list",
        ),
        (
            (int32(0, 3, 2), int32(1, 2, 3)),
            "block_table_from_csr: `page_indptr` expected 3 (the offset before it) to 3 (the length of "
            "`page_indices`) at index 2, got 2; check how the lists were joined",
        ),
        (
            (int32(0, 4), int32(1, 2, 3)),
            "block_table_from_csr: `page_indptr` expected 0 (the offset before it) to 3 (the length of "
            "`page_indices`) at index 1, got 4; check how the lists were joined",
        ),
        (
            (int32(-1, 2), int32(1, 2, 3)),
            "block_table_from_csr: `page_indptr` expected 0 (the offset before it) to 3 (the length of "
            "`page_indices`) at index 0, got -1; check how the lists were joined",
        ),
    ],
)
def test_block_table_errors(arguments, line):
    with pytest.raises(InvalidArgument) as raised:
        block_table_from_csr(*arguments)
    assert str(raised.value).splitlines() == [line]
