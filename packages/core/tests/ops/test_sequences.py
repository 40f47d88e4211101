"""Reading index data: what is accepted, and each message about what is not."""

import pytest
import torch

from opmux.errors import InvalidArgument
from opmux.ops._sequences import check_block_table, count_pairs, read_lengths, read_offsets


def test_pairs_are_counted_within_sequences() -> None:
    queries, keys = torch.tensor([2, 0, 3], dtype=torch.int32), torch.tensor([4, 9, 1], dtype=torch.int32)
    assert count_pairs(queries, keys, 5, 10) == 2 * 4 + 3
    assert count_pairs(queries.to("meta"), keys.to("meta"), 5, 10) == 3 * 5 * 10, "an upper bound without the data"
    many = torch.tensor([1 << 20], dtype=torch.int32)
    assert count_pairs(many, many, 1, 1) == 1 << 40, "more than 32 bits hold"


OFFSETS = [
    ([1, 3], "`cu_seqlens_q` expected 0 at index 0, got 1; it is the running sum of the sequence lengths, with a 0 in"),
    ([0, 3, 2], "`cu_seqlens_q` expected 3 or more at index 2, as at index 1, got 2; it is the running sum"),
    ([0, 1, 6], "`max_seqlen_q` expected 5 or more, the length of sequence 1 in `cu_seqlens_q`, got 4; give an upper"),
    ([0, 4, 8], "`cu_seqlens_q` expected at most 7, the number of tokens, at its end, got 8; check the lengths"),
]


@pytest.mark.parametrize(("offsets", "told"), OFFSETS)
def test_unsound_offsets(offsets: list[int], told: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read_offsets("op", "q", torch.tensor(offsets), tokens=7, longest=4)
    assert str(caught.value).startswith(f"op: {told}")


def test_sound_offsets_are_read() -> None:
    for offsets in ([0], [0, 4, 7], [0, 0, 4, 4], [0, 2]):
        assert read_offsets("op", "q", torch.tensor(offsets), tokens=7, longest=4) == offsets


LENGTHS = [
    ([2, 1], "`seq_lens` expected 2 or more at index 1, its number of new tokens in `cu_seqlens_q`, got 1; seq_lens"),
    ([2, 9], "`seq_lens` expected at most max_pages * page_size = 8 at index 1, got 9; give `block_table` more"),
    ([7, 2], "`max_seqlen_k` expected 7 or more, the length of sequence 0 in `seq_lens`, got 6; give an upper bound"),
]


@pytest.mark.parametrize(("lengths", "told"), LENGTHS)
def test_unsound_lengths(lengths: list[int], told: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read_lengths("op", torch.tensor(lengths), [0, 1, 3], capacity=8, longest=6)
    assert str(caught.value).startswith(f"op: {told}")


def test_sound_lengths_are_read() -> None:
    assert read_lengths("op", torch.tensor([1, 6]), [0, 1, 3], capacity=8, longest=6) == [1, 6]


@pytest.mark.parametrize("page", [-1, 4])
def test_a_page_outside_of_the_cache(page: int) -> None:
    table = torch.tensor([[0, 99, -5], [3, page, 99]])
    with pytest.raises(InvalidArgument) as caught:
        check_block_table("op", table, [2, 3], pages=4, page_size=2)
    assert str(caught.value) == (
        f"op: `block_table` expected a page from 0 to pages - 1 = 3 at (1, 1), got {page}; "
        "check the allocator that gave the pages"
    )
    check_block_table("op", table, [2, 2], pages=4, page_size=2)  # what lies past a sequence may be anything
