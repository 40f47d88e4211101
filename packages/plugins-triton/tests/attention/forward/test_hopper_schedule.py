"""The schedule of attention's persistent Hopper kernel: who gets which tiles, and how evenly."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from opmux_triton.attention.forward.hopper_schedule import Work, _costs, _longest, _sections, schedule

FULL = (False, False, 0, 0)
CAUSAL = (False, True, 0, 0)
CACHE = 32 << 20


def loads(costs: Sequence[float], pairs: int, section: int, programs: int) -> list[float]:
    """What each program gets, visit by visit as the kernel finds its tiles."""
    found = [0.0] * programs
    place = 0
    for first in range(0, pairs, section):
        for cost in costs:
            for _ in range(min(section, pairs - first)):
                visit, program = divmod(place, programs)
                found[programs - 1 - program if visit & 1 else program] += cost
                place += 1
    return found


@given(
    costs=st.lists(st.integers(1, 40).map(float), min_size=1, max_size=12),
    pairs=st.integers(1, 24),
    section=st.integers(1, 24),
    programs=st.integers(1, 16),
)
def test_the_longest_program_is_that_of_the_kernels_order(
    costs: list[float], pairs: int, section: int, programs: int
) -> None:
    section = min(section, pairs)
    assert _longest(tuple(costs), pairs, section, programs) == max(loads(costs, pairs, section, programs))


def test_the_schedule_does_not_depend_on_torchs_default_dtype() -> None:
    costs = tuple(n + 1.5 for n in range(257))
    expected = max(loads(costs, 24, 24, 132))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert _longest(costs, 24, 24, 132) == expected
    finally:
        torch.set_default_dtype(before)


def test_a_causal_tile_costs_the_blocks_that_it_sees() -> None:
    work = Work(512, 512, 1, 1, CAUSAL, 128, 512)
    assert [cost - 1.5 for cost in _costs(work, 128)] == [4, 3, 2, 1]
    assert [cost - 1.5 for cost in _costs(work._replace(band=FULL), 128)] == [4] * 4
    # A window of 128 to the left: two blocks, but one at the start.
    assert [cost - 1.5 for cost in _costs(work._replace(band=(True, True, 127, 0)), 128)] == [2, 2, 2, 1]
    # More queries than keys: the first ones see nothing, and one block is computed all the same.
    assert [cost - 1.5 for cost in _costs(work._replace(keys=256), 128)] == [2, 1, 1, 1]


@pytest.mark.parametrize("groups", [1, 4])
def test_sections_are_whole_groups_of_heads(groups: int) -> None:
    for pairs in (groups, 12 * groups, 96 * groups):
        sections = _sections(Work(8192, 8192, pairs, groups, CAUSAL, 128, 512), 132, CACHE)
        assert sections
        assert all(section % groups == 0 and 0 < section <= pairs for section in sections)


def test_uneven_work_is_spread_better_than_by_the_cache_alone() -> None:
    # 2 x 4096 queries, 16 heads of 256: the cache holds the keys of 8 pairs, whose tiles fill 1.9 rounds.
    work = Work(4096, 4096, 32, 1, CAUSAL, 64, 1024)
    found = schedule(work, (2,), 132, CACHE)
    costs = _costs(work, 128)
    even = sum(costs) * 32 / 132
    assert _longest(costs, 32, 8, 132) > 1.5 * even
    assert _longest(costs, 32, found.section, 132) < 1.05 * even


def test_few_rows_of_a_last_tile_decide_how_wide_tiles_are() -> None:
    # 435 rows: three tiles of 192 compute 576, four of 128 compute 512. 4096 rows waste little either way.
    assert schedule(Work(435, 435, 736, 4, FULL, 128, 256), (3, 2), 132, CACHE).warpgroups == 2
    assert schedule(Work(4096, 4096, 64, 1, FULL, 128, 256), (3, 2), 132, CACHE).warpgroups == 3
    assert schedule(Work(4096, 4096, 64, 1, FULL, 128, 256), (2,), 132, CACHE).warpgroups == 2


def test_much_work_is_not_simulated_for_every_section() -> None:
    found = schedule(Work(65536, 65536, 64, 1, CAUSAL, 128, 512), (2,), 132, CACHE)
    assert found.section == _sections(Work(65536, 65536, 64, 1, CAUSAL, 128, 512), 132, CACHE)[0]
