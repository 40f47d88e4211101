"""The band of keys that queries attend to, against its definition position by position."""

import itertools

import pytest
import torch

from opmux.ops._band import Band

CPU = torch.device("cpu")
SIDES = (None, 0, 1, 3)
BANDS = [
    Band(queries, keys, left, right)
    for queries, keys in ((4, 4), (3, 7), (7, 3), (1, 5))
    for left, right in itertools.product(SIDES, SIDES)
]


def attended(band: Band) -> torch.Tensor:
    """Whether query i attends to key j: ``(queries, keys)``."""
    position = torch.arange(band.queries)[:, None] + band.keys - band.queries
    key = torch.arange(band.keys)[None]
    seen = torch.ones(band.queries, band.keys, dtype=torch.bool)
    if band.left is not None:
        seen &= key >= position - band.left
    if band.right is not None:
        seen &= key <= position + band.right
    return seen


def blocks(size: int) -> list[slice]:
    return [slice(a, b) for a, b in itertools.combinations(range(size + 1), 2)]


@pytest.mark.parametrize("band", BANDS, ids=str)
def test_every_block_is_masked_as_position_by_position(band: Band) -> None:
    seen = attended(band)
    for query, key in itertools.product(blocks(band.queries), blocks(band.keys)):
        assert band.covers(query, key) == bool(seen[query, key].all())
        mask = band.masked_out(query, key, 2, CPU)
        expected = ~seen[query, key].repeat_interleave(2, 0)
        assert torch.equal(expected if mask is None else mask.broadcast_to(expected.shape), expected)
    assert band.partial == (not bool(seen.all()))


@pytest.mark.parametrize("band", BANDS, ids=str)
def test_the_blocks_of_keys_hold_every_key_that_is_attended_to_once(band: Band) -> None:
    seen = attended(band)
    for query, rows in band.query_blocks(2, 3):
        assert (rows.start, rows.stop) == (3 * query.start, 3 * query.stop)
        keys = [j for block in band.key_blocks(query, 2) for j in range(block.start, block.stop)]
        assert len(keys) == len(set(keys))
        assert set(seen[query].any(0).nonzero().flatten().tolist()) <= set(keys)


@pytest.mark.parametrize("band", BANDS, ids=str)
def test_bounds_are_those_of_each_row(band: Band) -> None:
    first, last = band.bounds(2, 3, CPU)
    seen = attended(band).repeat_interleave(2, 0).repeat_interleave(3, 1)
    columns = torch.arange(seen.shape[1])
    assert torch.equal((columns >= first[:, None]) & (columns < last[:, None]), seen)


@pytest.mark.parametrize("band", BANDS, ids=str)
def test_transposed_is_the_same_band_seen_from_the_keys(band: Band) -> None:
    assert torch.equal(attended(band.transposed()), attended(band).T)


@pytest.mark.parametrize(
    ("causal", "window", "sides"),
    [(False, (-1, -1), (None, None)), (True, (-1, -1), (None, 0)), (True, (4, 2), (4, 0)), (False, (0, 2), (0, 2))],
)
def test_options_name_the_sides(causal: bool, window: tuple[int, int], sides: tuple[int | None, int | None]) -> None:
    band = Band.of(3, 5, causal, window)
    assert (band.left, band.right, band.offset) == (*sides, 2)
