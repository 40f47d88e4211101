"""Patterns of index data."""

import pytest
import torch

from opmux.callpath.op import OPS
from opmux.testing import cases_of
from opmux.testing.patterns import PATTERNS, indices, lengths

EXPECTED = {
    "consecutive": [0, 1, 2, 3],
    "reversed": [3, 2, 1, 0],
    "repeated": [0, 0, 1, 1],
    "gaps": [0, 2, 4, 6],
    "equal": [4, 4, 4, 4],
    "ends": [0, 7, 0, 7],
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_indices_are_as_the_pattern_says(pattern: str) -> None:
    found = indices(pattern, 4, 8, torch.Generator().manual_seed(0)).tolist()
    if pattern == "permutation":
        assert sorted(found) == [0, 1, 2, 3]
    else:
        assert found == EXPECTED[pattern]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("batch", "tokens"), [(0, 5), (1, 0), (3, 2), (4, 50)])
def test_lengths_fit(pattern: str, batch: int, tokens: int) -> None:
    found = lengths(pattern, batch, tokens)
    if found is None:
        assert pattern == "permutation"
        return
    assert len(found) == batch
    assert min(found, default=0) >= 0
    assert sum(found) <= tokens


@pytest.mark.parametrize("op", ["apply_rope", "write_kv_cache", "attention_varlen", "paged_attention"])
def test_every_index_argument_comes_in_every_pattern(op: str) -> None:
    assert any(not next(iter(t.dtypes)).is_floating_point for t in OPS[op].signature.tensors)
    assert set(PATTERNS) <= {c.data for c in cases_of(op, "small")}
