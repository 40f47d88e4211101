"""Which config a product gets: a cost model that scores every legal one. Imports no toolchain.

The time of a product is that of its busiest multiprocessor, or that of its bytes where they take longer:

    large:  work   = rounds * (blocks * max(multiply, copy) + epilogue)
    small:  work   = rounds * (blocks * max(multiply, copy, latency / stages) + epilogue + round) + meeting
    time  = start + (work**4 + memory**4)**(1/4)

``rounds`` is how many tiles the busiest multiprocessor computes, ``blocks`` the blocks of 128 bytes of k of each. The
constants are an H200's datasheet, estimates, and a first run on one; they are not fitted.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

from opmux.plugin import Arch
from opmux_deepgemm.configs import MOST_VALUES, Config, most_stages
from opmux_deepgemm.grids import clusters

UNITS = 132
"""Multiprocessors of an H100 or H200 (SXM)."""
BANDWIDTH = 4.3e6
"""Bytes in a microsecond from memory: of a large copy on an H200."""
RATE = {1: 14.0e6, 2: 7.0e6}
"""Operations in a microsecond of a multiprocessor's matrix unit, by bytes of an operand."""
COPY_RATE = 55e3
"""Bytes in a microsecond that a multiprocessor copies from the second-level cache."""
LATENCY = 1.0
"""Microseconds from the start of a copy to its bytes."""
START = 3.0
"""Microseconds of a launch, the first copies and the last store."""
MEETING = 2.0
"""Microseconds for the blocks of a cluster to add their sums."""
ALONE = 1.05
"""By how much longer a single consumer takes."""
PAIRED = 1.05
"""By how much longer two blocks take that share their rows of w: on an H200 between 0.9 and 1.1 times as long."""
CLUSTERED_UNITS = {1: 132, 2: 132, 4: 120, 8: 112}
"""Multiprocessors that clusters of so many blocks can use: a cluster lies within a group of 16 or 18 of them."""
ROUND = 2.5
"""Microseconds from one of the small kernel's blocks to the next on a multiprocessor: nothing is copied meanwhile."""
PROMOTION = 150e3
"""Sums in a microsecond that a multiprocessor scales and adds in float32."""
TURN = 3
"""Steps of a block of k after which a consumer's turn ends, where two alternate."""
MOST_STAGES = 16
"""Beyond so many blocks of k, more hide no more latency."""
SMALL_ROWS = {False: 128, True: 64}
"""Rows up to which the kernel for few rows is scored, by whether there are scales: those of more take too many
registers."""
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
    held = 2 if sizes.scaled else 1  # the sums of a block of k beside those of all
    for block_m, consumers in ((64, 1), (128, 1), (128, 2), (256, 2)):
        if block_m == 256 and sizes.scaled and (sizes.groups or sizes.added):
            continue  # the scales of so many rows, and where their group lies, do not fit into the registers
        for block_n in range(32, 257, 32):
            stages = min(most_stages("large", block_m, block_n, consumers, sizes.added), MOST_STAGES)
            if stages < 2 or held * block_m // consumers * block_n // 128 > MOST_VALUES:
                continue
            for cluster in (1, 2):
                if sizes.w_across and block_n // cluster % 64:
                    continue  # w comes in chunks of 64 rows
                if cluster == 1 or sizes.together > block_m:
                    base = Config("large", block_m, block_n, stages, consumers, cluster, group=8)
                    yield base
                    if sizes.scaled and consumers == 2:
                        yield replace(base, alternate=TURN)


def _small(sizes: Sizes) -> Iterator[Config]:
    block_m = -(-sizes.m // 8) * 8
    for block_n in (64, 128):
        stages = min(most_stages("small", block_m, block_n, block_n // 64), MOST_STAGES)
        for cluster in (1, 2, 4, 8):
            if cluster <= sizes.blocks:
                yield Config("small", block_m, block_n, stages, block_n // 64, cluster)


def predict(sizes: Sizes, config: Config) -> float:
    """Microseconds."""
    work = _large_work(sizes, config) if config.kernel == "large" else _small_work(sizes, config)
    result = (8 if sizes.added else 2) * sizes.m * sizes.n  # what is added to is read and written
    moved = (sizes.m + sizes.n * max(sizes.groups, 1)) * sizes.k_bytes + result
    memory = moved / BANDWIDTH
    return float(START + (work**4 + memory**4) ** 0.25)


def _large_work(sizes: Sizes, config: Config) -> float:
    rounds = -(-_parts(sizes, config) // (UNITS // config.cluster))
    epilogue = config.block_m * config.block_n * 4 / COPY_RATE / 2 + 0.3
    copied = (config.block_m + config.block_n / config.cluster) * 128
    block = max(_multiply(sizes, config), copied / COPY_RATE)
    if config.consumers == 1:  # the matrix units are idle while it waits, scales or stores
        block *= ALONE
    if config.cluster > 1:
        block *= PAIRED
    return rounds * (sizes.blocks * block + epilogue)


def _parts(sizes: Sizes, config: Config) -> int:
    """Parts that clusters compute; of each group the last one is half full, where the sizes of groups vary."""
    if not sizes.groups:
        return clusters(config, sizes.m, sizes.n)
    rows = max(sizes.together / (config.block_m * config.cluster) + 0.5, 1.0)
    return math.ceil(rows * sizes.groups) * -(-sizes.n // config.block_n)


def _small_work(sizes: Sizes, config: Config) -> float:
    resident = max(1, min(MULTIPROCESSOR_BYTES // (config.shared_bytes(4) + 1024), 2048 // config.threads))
    programs = clusters(config, sizes.m, sizes.n) * config.cluster
    units = CLUSTERED_UNITS[config.cluster]
    rounds = -(-programs // (units * resident))
    together = min(resident, -(-programs // units))
    blocks = -(-sizes.blocks // config.cluster)
    copy = config.stage_bytes * together / COPY_RATE
    block = max(_multiply(sizes, config) * together, copy, LATENCY / config.stages)
    return rounds * (blocks * block + 0.3) + (rounds - 1) * ROUND + (MEETING if config.cluster > 1 else 0.0)


def _multiply(sizes: Sizes, config: Config) -> float:
    """Microseconds that a multiprocessor multiplies a block of k."""
    operations = 2.0 * config.block_m * config.block_n * 128 / sizes.operand_bytes
    # Both operands are read from shared memory: 64 rows on the left are read once for up to 256 on the right.
    left, right = (64, config.block_n) if config.kernel == "large" else (64, config.block_m)
    share = min(1.0, right / 128) * (0.9 if config.consumers == 1 else 1.0) * min(1.0, 0.9 + left * right / 163_840)
    time = operations / (RATE[sizes.operand_bytes] * share)
    if sizes.scaled:
        promoted = config.block_m * config.block_n / PROMOTION
        # One consumer's promotion runs beside the other's products.
        time = max(time, promoted) if config.consumers > 1 else time + promoted
    return time


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


def _best(op: str) -> Callable[[Arch, Mapping[str, Any]], Config]:
    def best(arch: Arch, features: Mapping[str, Any]) -> Config:
        """The config with the least predicted time."""
        return scored(_SIZES[op](features))[0].config

    return best


def _space(op: str) -> Callable[[Arch, Mapping[str, Any]], Iterator[Config]]:
    def space(arch: Arch, features: Mapping[str, Any]) -> Iterator[Config]:
        """Every legal config, by predicted time."""
        return (one.config for one in scored(_SIZES[op](features)))

    return space


linear, linear_space = _best("linear"), _space("linear")
scaled_linear, scaled_linear_space = _best("scaled_linear"), _space("scaled_linear")
scaled_linear_accumulate = _best("scaled_linear_accumulate")
scaled_linear_accumulate_space = _space("scaled_linear_accumulate")
grouped_linear, grouped_linear_space = _best("grouped_linear"), _space("grouped_linear")
scaled_grouped_linear, scaled_grouped_linear_space = _best("scaled_grouped_linear"), _space("scaled_grouped_linear")
masked_grouped_linear, masked_grouped_linear_space = _best("masked_grouped_linear"), _space("masked_grouped_linear")
scaled_masked_grouped_linear = _best("scaled_masked_grouped_linear")
scaled_masked_grouped_linear_space = _space("scaled_masked_grouped_linear")
