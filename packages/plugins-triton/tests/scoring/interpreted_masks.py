"""Run by `scoring/test_masks` under TRITON_INTERPRET=1: limits and masks against every pair of a query and a key."""

import itertools
import sys

import torch
import triton
import triton.language as tl

from opmux_triton.launch import launch
from opmux_triton.scoring.masks import attends, key_limits

ROWS, BLOCK = 8, 4


@triton.jit
def limits_and_seen(
    limits, seen, queries, keys, left, right,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, MOST: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
):  # fmt: skip
    """A tile's limits, and which keys each of its queries sees."""
    start = tl.program_id(0) * ROWS
    begin, full_begin, full_end, end = key_limits(start, queries, keys, left, right, ROWS, BLOCK, LEFT, RIGHT)
    at = limits + tl.program_id(0) * 4
    tl.store(at, begin)
    tl.store(at + 1, full_begin)
    tl.store(at + 2, full_end)
    tl.store(at + 3, end)
    query, key = start + tl.arange(0, ROWS)[:, None], tl.arange(0, MOST)[None, :]
    found = attends(query, key, queries, keys, left, right, LEFT, RIGHT)
    tl.store(seen + query * MOST + key, found.to(tl.int32), mask=query < queries)


for queries, keys, left, right in itertools.product((1, 9, 16), (1, 7, 12, 30), (-1, 0, 3, 40), (-1, 0, 2, 40)):
    tiles, most = -(-queries // ROWS), 32
    limits = torch.zeros(tiles, 4, dtype=torch.int32)
    seen = torch.zeros(queries, most, dtype=torch.int32)
    meta = {"ROWS": ROWS, "BLOCK": BLOCK, "MOST": most, "LEFT": left >= 0, "RIGHT": right >= 0}
    launch(limits_and_seen, (tiles,), (limits, seen, queries, keys, max(left, 0), max(right, 0)), meta)
    position = torch.arange(queries)[:, None] + keys - queries
    key = torch.arange(most)[None, :]
    band = (key < keys) & ((left < 0) | (key >= position - left)) & ((right < 0) | (key <= position + right))
    what = f"{queries} {keys} {left} {right}"
    assert torch.equal(seen.bool(), band), what
    for tile, (begin, full_begin, full_end, end) in enumerate(limits.tolist()):
        rows = band[tile * ROWS : (tile + 1) * ROWS]
        assert not rows[:, :begin].any(), what
        assert not rows[:, end:].any(), what
        assert rows[:, full_begin:full_end].all(), what
        assert begin % BLOCK == full_begin % BLOCK == full_end % BLOCK == 0, what
        assert begin <= full_begin <= full_end, what
sys.stdout.write("all equal")
