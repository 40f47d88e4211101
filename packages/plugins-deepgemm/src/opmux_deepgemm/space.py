"""Which configs a product can have: every one that is legal and worth a time. Imports no toolchain."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from opmux_deepgemm.configs import COPIED_BLOCKS, MOST_VALUES, Config, most_stages
from opmux_deepgemm.generation.source import blocks_touched

TURN = 3
"""Steps of a block of k after which a consumer's turn ends, where two alternate, which only gradients do by default."""
MOST_STAGES = 16
"""Beyond so many blocks of k, more hide no more latency."""
UNITS = 132
"""Multiprocessors of an H100 or H200 (SXM)."""
FEWEST_STAGED = 3
"""Stages that are left where the whole results of a tile have room in shared memory."""
FEWEST_COPIED = 128
"""Rows of x that one w is multiplied by, above which copied scales are scored: of fewer they were no faster than
those that threads load, and sometimes slower."""
FEWEST_GROUPED = 32
"""Columns of a tile where rows come in groups: of 16 columns it was 1.06 to 1.25 times as slow on an H200, in three of
three products with fewer rows than groups."""
MOST_PIECES = 4
"""Of narrower ones the matrix unit is slower."""
SMALL_ROWS = {False: 128, True: 64}
"""Rows of a tile of the kernel for few rows at most, by whether there are scales: those of more take too many
registers."""
TILES = ((64, 1), (128, 1), (128, 2), (256, 2))
"""Rows of a tile, and consumers."""
FEWEST_ROWS = {False: 16, True: 32}
"""Rows up to which only the kernel for few rows is scored, by whether there are scales: of one row it was never slower
on an H200, and of 17 to 32 rows of codes the persistent one was not timed."""
FEWEST_TRIED_ROWS = 16
"""Rows up to which tuning does not try anything else, and that a tile has more than where there are several."""
ADDED_TILES = ((128, 128, 1), (128, 176, 0), (128, 192, 0), (256, 128, 1), (128, 256, 2))
"""Rows of x and of w, and pieces, of tiles with copied scales of products that are added: each was the fastest, or
within 0.2 % of it, in one of ten products on an H100. The first scales one block of k while the next is multiplied."""
TRIED_ADDED_TILES = ((128, 128, 0), (128, 160, 2), (128, 208, 0))
"""Likewise those that were near the fastest in one product, for tuning alone. The last one took 1 % longer than it at
least, and 12 % in the mean."""
MOST_CUT_ROWS = 256
"""Rows up to which the kernel for few rows is scored, in one to four tiles of rows: it cuts k, where the persistent one
has few tiles."""


class Sizes(NamedTuple):
    """A product: rows of x, rows of w, bytes of k, and whether the operands are codes with scales.

    Where the rows of x come in groups, ``groups`` is their number, and n the rows of each one's w; else it is 0.
    ``added`` says that the product is added to float32, with scales of each row of w. ``x_across`` and ``w_across`` say
    that the operand lies across k. ``float32`` says that a result which is not added has 4 bytes, so that it is not
    staged; its configs and times are otherwise those of 2 bytes.
    """

    m: int
    n: int
    k_bytes: int
    scaled: bool
    groups: int = 0
    added: bool = False
    x_across: bool = False
    w_across: bool = False
    float32: bool = False

    @property
    def together(self) -> float:
        """Rows of x that one w is multiplied by, on average."""
        return self.m / max(self.groups, 1)

    @property
    def operand_bytes(self) -> int:
        """Bytes of an element of x and w."""
        return 1 if self.scaled else 2

    @property
    def blocks(self) -> int:
        """Blocks of 128 bytes of k."""
        return -(-self.k_bytes // 128)


def configs(sizes: Sizes) -> Iterator[Config]:
    """Every config that is legal for a product and no more than twice as large, in a fixed order."""
    small = _takes_small(sizes)
    if not small or sizes.m > FEWEST_ROWS[sizes.scaled]:
        yield from _large(sizes)
        yield from _copied_scales(sizes)
        yield from _added_by_copied_scales(sizes, ADDED_TILES)
    if small:
        yield from _in_tiles(sizes)


def untimed(sizes: Sizes) -> Iterator[Config]:
    """Further configs that are legal, for tuning alone.

    They are the persistent kernel of 17 to 32 rows of codes, whose like no GPU has timed, and tiles of products that
    are added which were the fastest in none of those that one has. The model does not take them.
    """
    if _takes_small(sizes) and FEWEST_TRIED_ROWS < sizes.m <= FEWEST_ROWS[sizes.scaled]:
        yield from _large(sizes)
    yield from _added_by_copied_scales(sizes, TRIED_ADDED_TILES)


def _takes_small(sizes: Sizes) -> bool:
    """Whether the kernel for few rows can compute it."""
    across = sizes.x_across or sizes.w_across
    return not across and not sizes.groups and not sizes.added and sizes.m <= MOST_CUT_ROWS


def _in_tiles(sizes: Sizes) -> Iterator[Config]:
    """The kernel for few rows, with one to four tiles of rows."""
    whole, *parts = (-(-sizes.m // (8 * tiles)) * 8 for tiles in (1, 2, 3, 4))
    for block_m in dict.fromkeys((whole, *(rows for rows in parts if rows > FEWEST_TRIED_ROWS))):
        if block_m <= SMALL_ROWS[sizes.scaled]:
            yield from _small(sizes, block_m)


def _large(sizes: Sizes, copied_scales: bool = False) -> Iterator[Config]:
    for (block_m, consumers), block_n in itertools.product(TILES, range(16, 257, 16)):
        stages = min(most_stages("large", block_m, block_n, consumers, sizes.added), MOST_STAGES)
        if stages < 2 or block_m * block_n // consumers // 128 > MOST_VALUES:
            continue
        if sizes.w_across and block_n % 64:
            continue  # it comes in chunks of 64 rows
        if sizes.groups and block_n < min(FEWEST_GROUPED, sizes.n):
            continue  # of few rows the copies of x, whose 64 rows each tile has, took longer than w's
        if sizes.scaled and ((block_n % 32 and block_n > 96) or (not sizes.added and blocks_touched(block_n) > 2)):
            continue
        if block_m == 256 and sizes.scaled and (sizes.groups or sizes.added) and not copied_scales:
            continue  # the scales of so many rows, and where their group lies, do not fit into the registers
        if block_m >= 2 * max(sizes.together, 33) or block_n >= 2 * max(sizes.n, 33 if sizes.w_across else 17):
            continue  # most of it would be empty
        base = Config("large", block_m, block_n, stages, consumers, group=8)
        for config in _in_pieces(base) if sizes.scaled else (base,):
            yield from _in_clusters(sizes, config)
            if sizes.scaled and not sizes.added and not sizes.float32:
                yield from _staged(sizes, config)


def _staged(sizes: Sizes, config: Config) -> Iterator[Config]:
    """The config with room for the whole results of a tile, which takes a stage or two, and in clusters.

    The last results of a multiprocessor are waited for in either case, so that there must be more tiles than these.
    """
    fit = most_stages("large", config.block_m, config.block_n, config.consumers, staged=True)
    tiles = -(-sizes.m // config.block_m) * -(-sizes.n // config.block_n)
    if fit >= FEWEST_STAGED and tiles > UNITS:
        yield from _in_clusters(sizes, replace(config, stages=min(fit, config.stages), staged=True))


def _copied_scales(sizes: Sizes) -> Iterator[Config]:
    """Configs of many rows whose scales of x the copy engine brings: in rows those of multiples of four blocks of k.

    Tiles that are twice as wide as high are walked in groups of 16 rows of tiles, so that what all multiprocessors read
    at a time is about square; where rows come in groups that was no faster.
    """
    many = sizes.scaled and not sizes.added and sizes.m > MOST_CUT_ROWS and sizes.together > FEWEST_COPIED
    if not many or sizes.blocks % COPIED_BLOCKS:
        return
    for config in _large(sizes, copied_scales=True):
        shape = config.block_m, config.block_n, config.consumers
        fit = most_stages("large", *shape, staged=config.staged, copied_scales=True)
        if config.takes_copied_scales and fit >= FEWEST_STAGED:
            group = 16 if config.block_n == 2 * config.block_m and not sizes.groups else config.group
            yield replace(config, stages=min(fit, config.stages), group=group, copied_scales=True)


def _added_by_copied_scales(sizes: Sizes, tiles: Iterable[tuple[int, int, int]]) -> Iterator[Config]:
    """Configs of products of many rows that are added, whose scales of both operands the copy engine brings."""
    if not sizes.added or sizes.m <= MOST_CUT_ROWS:
        return
    for block_m, block_n, pieces in tiles:
        stages = most_stages("large", block_m, block_n, 2, row_scales=True, copied_scales=True)
        if block_n < 2 * max(sizes.n, 17) and (sizes.blocks % COPIED_BLOCKS == 0 or sizes.blocks > stages):
            yield Config("large", block_m, block_n, stages, 2, group=8, pieces=pieces, copied_scales=True)


def _in_pieces(config: Config) -> Iterator[Config]:
    """The config with the fewest pieces that have room beside the sums, and with the fewest that overlap.

    One piece that overlaps with that of the next block of k was never faster than none on an H200.
    """
    cuts = [replace(config, pieces=n) for n in range(1, MOST_PIECES + 1) if config.block_n % (8 * n) == 0]
    if 2 * config.values <= MOST_VALUES:
        yield config
    else:
        yield from [one for one in cuts if config.values + one.piece_values <= MOST_VALUES and not one.overlaps][:1]
    yield from [one for one in cuts if one.overlaps and one.runs > 1][:1]


def _in_clusters(sizes: Sizes, config: Config) -> Iterator[Config]:
    """The config by itself, and in clusters that share rows of w or of x, where there are tiles for all blocks."""
    yield config
    for cluster in (2, 4):
        share = 64 if sizes.w_across else 8
        if config.block_n % (share * cluster) == 0 and sizes.together > config.block_m * (cluster - 1):
            yield replace(config, cluster=cluster)
        if sizes.n > config.block_n * (cluster - 1) and not (sizes.x_across or sizes.w_across):
            yield replace(config, cluster=cluster, share_x=True)


def _small(sizes: Sizes, block_m: int) -> Iterator[Config]:
    for block_n, cluster in itertools.product((64, 128), (1, 2, 4, 8)):
        if cluster > sizes.blocks:
            continue
        fit = min(most_stages("small", block_m, block_n, block_n // 64), MOST_STAGES // 2)
        most = min(fit, max(-(-sizes.blocks // cluster), 2))
        for stages in sorted({most, max(most // 2, 2)}):  # fewer, so that more blocks are resident
            yield Config("small", block_m, block_n, stages, block_n // 64, cluster)
