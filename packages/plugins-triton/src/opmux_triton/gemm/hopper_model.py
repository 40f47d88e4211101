"""Which tile of the Gluon kernel a product gets on sm_90: a cost model that scores every tile, cut along k or not.

The time of a product is that of its busiest multiprocessor, or that of its bytes where those take longer:

    compute = block * blocks + load * blocks * busy + round * rounds
    memory  = memory * bytes / bandwidth
    time    = start + (compute**4 + memory**4)**(1/4) + cut + sum * shares

``blocks`` counts blocks of 64 of k on the busiest multiprocessor; ``busy`` is the share of multiprocessors that work at
the same time: all read through the second-level cache, so blocks arrive later where more of them load. ``shares`` is
the number of parts that a tile is cut into along k. The constants differ by tile: `opmux_triton.gemm.hopper_tiles`.
Loads no Triton.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

from opmux_triton.archs import shared_memory, usual_units
from opmux_triton.gemm.configs import HopperConfig, TilesConfig
from opmux_triton.gemm.cuts import even_shares, halves_of, rest_of
from opmux_triton.gemm.hopper_tiles import TILES, Tile

Cut = Literal["none", "rest", "all"]

UNITS = usual_units("sm_90")
BANDWIDTH = 4.3e6
"""Bytes in a microsecond, of a large copy on an H200, reads and writes together."""

_MARGIN = 1.04
"""By how much faster tiles that are cut must seem than whole ones: their times scatter more."""

_RESERVED = 1024
"""Bytes of shared memory that barriers and the compiler's own use take."""
_MOST_STAGES = 10
GROUP = 8
"""Rows of tiles that are walked together."""


class Choice(NamedTuple):
    """A tile and how it is used, with the time predicted, in microseconds."""

    time: float
    tile: Tile
    cut: Cut
    swap: bool


class Work(NamedTuple):
    """What a product asks of a tile, of which the model's terms are multiples.

    Attributes:
        blocks: blocks of 64 of k on the busiest multiprocessor.
        busy_blocks: the same, each times the share of multiprocessors that work meanwhile, and of a tile that lies
            inside of the result.
        rounds: how many tiles or parts of tiles the busiest multiprocessor computes.
        shares: into how many parts the tiles that are cut are cut; 0 where none is.
        megabytes: the operands and the result.
    """

    blocks: float
    busy_blocks: float
    rounds: int
    shares: int
    megabytes: float


@lru_cache(maxsize=1024)
def best(m: int, n: int, k: int) -> Choice:
    """The choice with the least predicted time for a product of (m, k) by (k, n); of equals the smallest tile."""
    return min(choices(m, n, k))


def choices(m: int, n: int, k: int) -> Iterator[Choice]:
    """Every legal choice, in a fixed order: tiles as they are and, after a swap, with their columns along m."""
    for tile in TILES:
        for swap in (True, False):
            rows, columns = (n, m) if swap else (m, n)
            if not _fits_well(tile, rows, columns):
                continue
            for cut in cuts_of(tile, rows, columns, k):
                yield Choice(predict(tile, work_of(tile, cut, rows, columns, k)), tile, cut, swap)


def _fits_well(tile: Tile, rows: int, columns: int) -> bool:
    """Whether a tile is no more than twice the size of the result, either way."""
    return tile.block_m <= max(2 * rows - 1, 64) and tile.block_n <= max(2 * columns - 1, 16)


def cuts_of(tile: Tile, rows: int, columns: int, k: int) -> Iterator[Cut]:
    """How tiles may be cut along k: not into fewer than two parts."""
    tiles, blocks = _tiles(tile, rows, columns), -(-k // tile.block_k)
    yield "none"
    if tiles > UNITS and rest_of(tiles, blocks, UNITS):
        yield "rest"
    if 2 * tiles <= UNITS and blocks >= 2:
        yield "all"


def work_of(tile: Tile, cut: Cut, rows: int, columns: int, k: int) -> Work:
    """What a product of ``rows`` of the tile's rows by ``columns`` of its columns asks of it."""
    tiles, blocks = _tiles(tile, rows, columns), -(-k // tile.block_k)
    rest = {"none": 0, "rest": rest_of(tiles, blocks, UNITS), "all": tiles}[cut]
    full, last = divmod(tiles - rest, UNITS)
    share, programs, shares = 0, 0, 0
    if rest:
        share, length = even_shares(rest, blocks, UNITS)
        shares = length // share
        programs = rest * shares
    steps = tile.block_k / 64
    # What lies outside of an operand is not loaded.
    inside = rows * tile.block_m / _whole(rows, tile.block_m) + columns * tile.block_n / _whole(columns, tile.block_n)
    loaded = steps * inside / (tile.block_m + tile.block_n)
    return Work(
        blocks=(full * blocks + (blocks if last else 0) + share) * steps,
        busy_blocks=(full * blocks + blocks * last / UNITS + share * programs / UNITS) * loaded,
        rounds=full + (1 if last else 0) + (1 if rest else 0),
        shares=shares,
        megabytes=2e-6 * (rows * k + columns * k + rows * columns),
    )


def predict(tile: Tile, work: Work) -> float:
    """Microseconds."""
    cost = tile.cost
    compute = cost.block * work.blocks + cost.load * work.busy_blocks + cost.round * work.rounds
    memory = cost.memory * work.megabytes * 1e6 / BANDWIDTH
    time = float(cost.start + (compute**4 + memory**4) ** 0.25)
    return (time + cost.cut + cost.sum * work.shares) * _MARGIN if work.shares else time


def config(choice: Choice, m: int, otherwise: TilesConfig) -> HopperConfig:
    """The launch parameters of a choice for m rows, with as many stages as shared memory holds.

    Programs that run side by side read the same block of the weight, where the tiles along m are few.
    """
    _, tile, cut, swap = choice
    parts = 2 if tile.block_n >= 64 else 1
    few = swap and -(-m // tile.block_n) <= GROUP
    return HopperConfig(
        tile.block_m, tile.block_n, tile.block_k, stages_of(tile, parts), tile.warpgroups, otherwise,
        alternate=tile.alternate, parts=parts, slots=1, group=1 if few else GROUP, cut=cut, swap=swap,
    )  # fmt: skip


def stages_of(tile: Tile, parts: int) -> int:
    """How many blocks of both operands shared memory holds beside the slots that results are stored through."""
    left, right = halves_of(tile.block_n)
    rows = tile.block_m * (tile.warpgroups if tile.alternate else 1)
    slots = 2 * rows * (left // parts + right)
    block = 2 * (tile.block_m + tile.block_n) * tile.block_k
    return min(_MOST_STAGES, (shared_memory("sm_90") - _RESERVED - slots) // block)


def _whole(size: int, block: int) -> int:
    return -(-size // block) * block


def _tiles(tile: Tile, rows: int, columns: int) -> int:
    return -(-rows // tile.block_m) * -(-columns // tile.block_n)
