"""Which tiles the persistent Hopper kernel computes together: simulated on the host, once for each shape.

A program's tiles follow from its number alone (`opmux_triton.hopper.order`), so some programs may get more work than
others: where masks make tiles differ, and where the tiles do not fill the last round. How much more depends on the
rows of a tile and on how many (batch, head) pairs are visited at a time. Few pairs at a time keep their keys and
values in the cache; more of them, of which several programs read each, do so too.
"""

from functools import lru_cache
from typing import NamedTuple

import torch

_START = 1.5
"""Blocks of keys that could be computed in the time that a tile takes to begin and to end."""
_NARROW = 1.08
"""Time of a row in tiles of two warpgroups, by that in tiles of three (H200, heads of 64)."""
_SHARED_BY = 3
"""Programs that have to read the same keys for the cache to keep up with them."""
_CANDIDATES = 6
_MANY = 64
"""Tiles of a program from which on the differences even out."""


class Work(NamedTuple):
    """What a launch computes.

    Attributes:
        pairs: (batch, head) pairs.
        groups: heads that share a kv head.
        band: (bounded left, bounded right, left, right), see `opmux_triton.scoring.options.Scoring.band`.
        block: keys of a block.
        key_bytes: bytes of a key and its value.
    """

    queries: int
    keys: int
    pairs: int
    groups: int
    band: tuple[bool, bool, int, int]
    block: int
    key_bytes: int


class Schedule(NamedTuple):
    """Tiles of ``64 * warpgroups`` queries, of ``section`` (batch, head) pairs at a time."""

    warpgroups: int
    section: int


@lru_cache(maxsize=4096)
def schedule(work: Work, choices: tuple[int, ...], programs: int, cache: int) -> Schedule:
    """The schedule whose longest program is the shortest.

    Args:
        work: the work.
        choices: the numbers of warpgroups to choose from.
        programs: programs that run at the same time.
        cache: bytes of keys and values that stay in the cache.
    """
    found = []
    for warpgroups in choices:
        costs = _costs(work, 64 * warpgroups)
        cost_of_row = warpgroups * (1.0 if warpgroups == max(choices) else _NARROW)
        even = min(costs) == max(costs) or len(costs) * work.pairs > _MANY * programs
        for number, section in enumerate(_sections(work, programs, cache)[: 1 if even else _CANDIDATES]):
            longest = _longest(costs, work.pairs, section, programs) * cost_of_row
            found.append((round(longest, 3), -warpgroups, number, Schedule(warpgroups, section)))
    return min(found)[3]


def _costs(work: Work, rows: int) -> tuple[float, ...]:
    """Blocks of each tile, in the order of visits: with a bound on the right, the last queries come first."""
    bounded_left, bounded_right, left, right = work.band
    offset = work.keys - work.queries
    costs = []
    for start in range(0, work.queries, rows):
        last = min(start + rows, work.queries) - 1
        high = min(max(last + offset + right + 1, 0), work.keys) if bounded_right else work.keys
        low = min(max(start + offset - left, 0), high) if bounded_left else 0
        costs.append(max(1, -(-high // work.block) - low // work.block) + _START)
    return tuple(reversed(costs)) if bounded_right else tuple(costs)


def _sections(work: Work, programs: int, cache: int) -> list[int]:
    """Numbers of pairs at a time, largest first: even parts of all, whose keys the cache can keep."""
    kv_heads = work.pairs // work.groups
    fitting = cache // max(1, work.keys * work.key_bytes)
    most = max(1, fitting, programs // _SHARED_BY)
    fewest_parts = -(-kv_heads // most)
    parts = range(fewest_parts, min(kv_heads, fewest_parts + _CANDIDATES) + 1)
    return list(dict.fromkeys(-(-kv_heads // n) * work.groups for n in parts))


def _longest(costs: tuple[float, ...], pairs: int, section: int, programs: int) -> float:
    """The largest sum of costs that a program gets; see `opmux_triton.hopper.order.place_of`."""
    each = torch.tensor(costs, dtype=torch.float64, device="cpu")  # whatever torch's defaults are
    whole, left = divmod(pairs, section)
    order = torch.cat([each.repeat_interleave(section).repeat(whole), each.repeat_interleave(left)])
    rounds = -(-order.numel() // programs)
    order = torch.cat([order, order.new_zeros(rounds * programs - order.numel())]).view(rounds, programs)
    order[1::2] = order[1::2].flip(1)
    return float(order.sum(0).max())
