"""Which config a product gets: a cost model that scores every legal one. Imports no toolchain.

The time of a product is that of its busiest multiprocessor and that of its bytes, of which the longer one counts most:

    large:  work   = rounds * (blocks * both(multiply, shared, copy, chain) + epilogue)
    small:  work   = rounds * (blocks * max(multiply, copy, latency / stages) + epilogue + round) + meeting
    time  = start + both(work, memory)

``both(a, b, ...)`` is ``(a**4 + b**4 + ...)**(1/4)``. ``rounds`` is how many tiles the busiest multiprocessor computes,
``blocks`` the blocks of 128 bytes of k of each. Of such a block ``multiply`` is the time of the matrix unit, ``shared``
that of the bytes which shared memory takes and gives, ``copy`` that of the bytes from the second-level cache, and
``chain`` that of one consumer, which waits for its products and scales them. The constants were fitted to configs that
were timed on an H200.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

from opmux.plugin import Arch
from opmux_deepgemm.configs import MOST_VALUES, Config, most_stages
from opmux_deepgemm.generation.source import blocks_touched
from opmux_deepgemm.grids import clusters

# The constants were fitted together: one of them alone is no measurement of what it stands for.
UNITS = 132
"""Multiprocessors of an H100 or H200 (SXM)."""
BANDWIDTH = 4.8e6
"""Bytes in a microsecond from memory: an H200's datasheet."""
WRITTEN_BACK = 6.5e6
"""Bytes of the second-level cache that are written to memory before others take their place."""
RATE = {1: 12.7e6, 2: 9.0e6}
"""Operations in a microsecond of a multiprocessor's matrix unit, by bytes of an operand."""
SCALING = 2.0e-6
"""Microseconds by which a sum that is scaled holds up the matrix unit, which shares the registers."""
SHARED_RATE = 176e3
"""Bytes in a microsecond that a multiprocessor's shared memory takes and gives."""
COPY_RATE = 90e3
"""Bytes in a microsecond that a multiprocessor copies from the second-level cache."""
PAIRED = 1.15
"""By how much longer a block of k takes for each doubling of a cluster, whose blocks wait for each other."""
LATENCY = 0.56
"""Microseconds from the start of a copy to its bytes."""
WAIT = 0.039
"""Microseconds from the end of a consumer's products to the start of the next, without what is done between them."""
CHOICE = 0.02
"""Microseconds to choose between the scales of two blocks of rows of w, for each place where the second may begin."""
SCALED_RATE = 810.0
"""Sums of each of its threads that a consumer scales and adds in a microsecond."""
START = 1.6
"""Microseconds of a launch, the first copies and the last store."""
EPILOGUE = 1.24
"""Microseconds from a tile's last products to the next tile's first ones, without the stores."""
STORE_RATE = 200e3
"""Elements of the result in a microsecond that a multiprocessor stores."""
MEETING = 1.57
"""Microseconds for the blocks of a cluster to add their sums."""
CLUSTERED_UNITS = {1: 132, 2: 132, 4: 120, 8: 112}
"""Multiprocessors that clusters of so many blocks can use: a cluster lies within a group of 16 or 18 of them."""
ROUND = 1.53
"""Microseconds from one of the small kernel's blocks to the next on a multiprocessor: nothing is copied meanwhile."""
WIDE = 1.7
"""By how much longer a block of k of the small kernel takes with more than 64 rows of x."""
ALONE = 1.05
"""By how much longer a single consumer of gradients takes."""
TURN = 3
"""Steps of a block of k after which a consumer's turn ends, where two alternate, which only gradients do by default."""
MOST_STAGES = 16
"""Beyond so many blocks of k, more hide no more latency."""
MOST_PIECES = 4
"""Of narrower ones the matrix unit is slower."""
SMALL_ROWS = {False: 128, True: 64}
"""Rows up to which the kernel for few rows is scored, by whether there are scales: those of more take too many
registers."""
TILES = ((64, 1), (128, 1), (128, 2), (256, 2))
"""Rows of a tile, and consumers."""
FEWEST_ROWS = 16
"""Rows up to which only the kernel for few rows is scored: of one row it was never slower on an H200."""
MULTIPROCESSOR_BYTES = 233_472
"""Shared memory of a multiprocessor: 228 KB, of which a block takes 1 KB more than it asks for."""


class Sizes(NamedTuple):
    """A product: rows of x, rows of w, bytes of k, and whether the operands are codes with scales.

    Where the rows of x come in groups, ``groups`` is their number, and n the rows of each one's w; else it is 0.
    ``added`` says that the product is added to float32, with scales of each row of w. ``x_across`` and ``w_across`` say
    that the operand lies across k.
    """

    m: int
    n: int
    k_bytes: int
    scaled: bool
    groups: int = 0
    added: bool = False
    x_across: bool = False
    w_across: bool = False

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


class Scored(NamedTuple):
    """A config and its predicted time in microseconds."""

    time: float
    config: Config


def configs(sizes: Sizes) -> Iterator[Config]:
    """Every config that is legal for a product and no more than twice as large, in a fixed order."""
    across = sizes.x_across or sizes.w_across
    small = not across and not sizes.groups and not sizes.added and sizes.m <= SMALL_ROWS[sizes.scaled]
    for config in _large(sizes) if not small or sizes.m > FEWEST_ROWS else ():
        if config.block_m < 2 * max(sizes.together, 33) and config.block_n < 2 * max(sizes.n, 17):
            yield config
    if small:
        yield from _small(sizes)


def _large(sizes: Sizes) -> Iterator[Config]:
    for (block_m, consumers), block_n in itertools.product(TILES, range(16, 257, 16)):
        stages = min(most_stages("large", block_m, block_n, consumers, sizes.added), MOST_STAGES)
        if stages < 2 or block_m * block_n // consumers // 128 > MOST_VALUES:
            continue
        if sizes.w_across and block_n % 64:
            continue  # it comes in chunks of 64 rows
        if sizes.scaled and ((block_n % 32 and block_n > 96) or (not sizes.added and blocks_touched(block_n) > 2)):
            continue
        if block_m == 256 and sizes.scaled and (sizes.groups or sizes.added):
            continue  # the scales of so many rows, and where their group lies, do not fit into the registers
        base = Config("large", block_m, block_n, stages, consumers, group=8)
        for config in _in_pieces(base) if sizes.scaled else (base,):
            yield from _in_clusters(sizes, config)


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


def _small(sizes: Sizes) -> Iterator[Config]:
    block_m = -(-sizes.m // 8) * 8
    for block_n, cluster in itertools.product((64, 128), (1, 2, 4, 8)):
        if cluster > sizes.blocks:
            continue
        fit = min(most_stages("small", block_m, block_n, block_n // 64), MOST_STAGES // 2)
        most = min(fit, max(-(-sizes.blocks // cluster), 2))
        for stages in sorted({most, max(most // 2, 2)}):  # fewer, so that more blocks are resident
            yield Config("small", block_m, block_n, stages, block_n // 64, cluster)


def predict(sizes: Sizes, config: Config) -> float:
    """Microseconds."""
    work = _large_work(sizes, config) if config.kernel == "large" else _small_work(sizes, config)
    result = (8 if sizes.added else 2) * sizes.m * sizes.n  # what is added to is read and written
    moved = (sizes.m + sizes.n * max(sizes.groups, 1)) * sizes.k_bytes + result
    memory = (moved + min(moved, WRITTEN_BACK)) / BANDWIDTH
    return START + _both(work, memory)


def _both(*times: float) -> float:
    return float(sum(time**4 for time in times) ** 0.25)


def _large_work(sizes: Sizes, config: Config) -> float:
    rounds = -(-_parts(sizes, config) // (CLUSTERED_UNITS[config.cluster] // config.cluster))
    copied = (config.block_m / config.x_share + config.block_n / config.w_share) * 128
    multiply = _multiply(sizes, config)
    block = _both(multiply, _shared(config) / SHARED_RATE, copied / COPY_RATE, _chain(sizes, config, multiply))
    block *= float(PAIRED ** math.log2(config.cluster))
    epilogue = config.block_m * config.block_n * (4 if sizes.added else 1) / STORE_RATE + EPILOGUE
    return rounds * (sizes.blocks * block + epilogue)


def _multiply(sizes: Sizes, config: Config) -> float:
    """Microseconds that a multiprocessor's matrix unit needs for a block of k."""
    operations = 2.0 * config.block_m * config.block_n * 128 / sizes.operand_bytes
    return operations / RATE[sizes.operand_bytes] + sizes.scaled * SCALING * config.block_m * config.block_n


def _shared(config: Config) -> float:
    """Bytes of a block of k that shared memory takes, and gives to the matrix unit, which reads w for each 64 rows."""
    return config.stage_bytes + config.block_m // 64 * 128.0 * (64 * max(config.pieces, 1) + config.block_n)


def _chain(sizes: Sizes, config: Config, multiply: float) -> float:
    """Microseconds from one block of k of a consumer to its next one, if it had the matrix unit for itself."""
    alone = multiply / config.consumers
    if not sizes.scaled:
        return alone
    alone += (128 // math.gcd(config.block_n, 128) - 1) * CHOICE
    if config.overlaps:
        return alone + WAIT / 2  # it waits for all of its products once in two blocks
    return alone + (config.runs if config.pieces else 1) * WAIT + config.values / SCALED_RATE


def _parts(sizes: Sizes, config: Config) -> int:
    """Parts that clusters compute; of each group the last one is half full, where the sizes of groups vary."""
    if not sizes.groups:
        return clusters(config, sizes.m, sizes.n)
    rows = max(sizes.together / (config.block_m * config.cluster) + 0.5, 1.0)
    return math.ceil(rows * sizes.groups) * -(-sizes.n // config.block_n)


def _small_work(sizes: Sizes, config: Config) -> float:
    registers = 64 + 1.5 * config.block_m
    fit = int(min(MULTIPROCESSOR_BYTES // (config.shared_bytes(4) + 1024), 65_536 // (registers * config.threads)))
    resident = max(1, fit)
    programs = clusters(config, sizes.m, sizes.n) * config.cluster
    units = CLUSTERED_UNITS[config.cluster]
    rounds = -(-programs // (units * resident))
    together = min(resident, -(-programs // units))
    blocks = -(-sizes.blocks // config.cluster)
    copy = config.stage_bytes * together / COPY_RATE
    multiply = 2.0 * config.block_m * config.block_n * 128 / sizes.operand_bytes / RATE[sizes.operand_bytes] * together
    block = max(multiply, copy, LATENCY / config.stages) * (WIDE if config.block_m > 64 else 1)
    return rounds * (blocks * block + EPILOGUE) + (rounds - 1) * ROUND + (MEETING if config.cluster > 1 else 0.0)


@lru_cache(maxsize=1024)
def scored(sizes: Sizes) -> tuple[Scored, ...]:
    """Every config with its predicted time, the fastest first; of equals the one that comes first."""
    found = [Scored(predict(sizes, config), config) for config in configs(sizes)]
    return tuple(sorted(found, key=lambda one: one.time))


def _linear(features: Mapping[str, Any]) -> Sizes:
    lie = (features.get(f"lies({name})") == "across" for name in "xw")
    return Sizes(max(int(features["bucket(tokens, 8)"]), 1), features["n"], 2 * features["k"], False, 0, False, *lie)


def _scaled(features: Mapping[str, Any]) -> Sizes:
    rows = int(features["bucket(m, 8)"]) << int(features["bucket(batch)"])
    return Sizes(max(rows, 1), features["n"], features["k"], True)


def _added(features: Mapping[str, Any]) -> Sizes:
    return Sizes(max(int(features["bucket(m, 8)"]), 1), features["n"], features["k"], True, added=True)


def _ragged(features: Mapping[str, Any], scaled: bool) -> Sizes:
    return _grouped(features, int(features["bucket(m, 8)"]), scaled)


def _masked(features: Mapping[str, Any], scaled: bool) -> Sizes:
    return _grouped(features, int(features["bucket(expected_m, 8)"]) * features["groups"], scaled)


def _grouped(features: Mapping[str, Any], rows: int, scaled: bool) -> Sizes:
    k_bytes = features["k"] * (1 if scaled else 2)
    return Sizes(max(rows, 1), features["n"], k_bytes, scaled, max(features["groups"], 1))


_SIZES: dict[str, Callable[[Mapping[str, Any]], Sizes]] = {
    "linear": _linear,
    "scaled_linear": _scaled,
    "scaled_linear_accumulate": _added,
    "grouped_linear": partial(_ragged, scaled=False),
    "scaled_grouped_linear": partial(_ragged, scaled=True),
    "masked_grouped_linear": partial(_masked, scaled=False),
    "scaled_masked_grouped_linear": partial(_masked, scaled=True),
}


_Scores = Callable[[Arch, Mapping[str, Any]], tuple[Scored, ...]]
_Best = Callable[[Arch, Mapping[str, Any]], Config]
_Space = Callable[[Arch, Mapping[str, Any]], Iterator[Config]]


def _functions(op: str) -> tuple[_Best, _Space, _Scores]:
    """What the record of an op names: its config, its space, and its scores."""

    def scores(arch: Arch, features: Mapping[str, Any]) -> tuple[Scored, ...]:
        """Every legal config with its predicted time, the fastest first."""
        return scored(_SIZES[op](features))

    def best(arch: Arch, features: Mapping[str, Any]) -> Config:
        """The config with the least predicted time."""
        return scores(arch, features)[0].config

    def space(arch: Arch, features: Mapping[str, Any]) -> Iterator[Config]:
        """Every legal config, by predicted time."""
        return (one.config for one in scores(arch, features))

    return best, space, scores


linear, linear_space, linear_scores = _functions("linear")
scaled_linear, scaled_linear_space, scaled_linear_scores = _functions("scaled_linear")
scaled_linear_accumulate, scaled_linear_accumulate_space, scaled_linear_accumulate_scores = _functions(
    "scaled_linear_accumulate"
)
grouped_linear, grouped_linear_space, grouped_linear_scores = _functions("grouped_linear")
scaled_grouped_linear, scaled_grouped_linear_space, scaled_grouped_linear_scores = _functions("scaled_grouped_linear")
masked_grouped_linear, masked_grouped_linear_space, masked_grouped_linear_scores = _functions("masked_grouped_linear")
scaled_masked_grouped_linear, scaled_masked_grouped_linear_space, scaled_masked_grouped_linear_scores = _functions(
    "scaled_masked_grouped_linear"
)
