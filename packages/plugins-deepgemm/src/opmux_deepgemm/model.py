"""Which config a product gets: a cost model that scores every one of `space`. Imports no toolchain.

Times are those of `opmux tune`: from an event before a call to one behind it, with a second-level cache that holds
other calls' bytes. That of a product follows from the time of its busiest multiprocessor and that of its bytes, of
which the longer one counts most:

    large:  work   = rounds * (blocks * both(multiply, shared, copy, chain) + epilogue)
    small:  work   = rounds * (blocks * (hypot(multiply, copy, latency / stages) + scales) + sums + round)
    time  = timed + start + both(work, memory, empty) + meeting

``both(a, b, ...)`` is ``(a**4 + b**4 + ...)**(1/4)``. ``rounds`` is how many tiles the busiest multiprocessor computes,
``blocks`` the blocks of 128 bytes of k of each. Of such a block ``multiply`` is the time of the matrix unit, ``shared``
that of the bytes which shared memory takes and gives, ``copy`` that of the bytes from the second-level cache, ``chain``
that of one consumer, which waits for its products and scales them, and ``scales`` that of sharing them out. ``sums`` is
the time in which a block of the small kernel writes its sums to shared memory and reads them, and ``empty`` that of the
rows of zeros which are copied where a tile reaches beyond x. ``meeting`` comes after the last bytes: the blocks of a
cluster of the small kernel add their sums.

Rates are the hardware's own at the clock of 1.98 GHz, or a measurement that is named. What says "fitted" was fitted to
times on an H200, all constants of a kernel together: one of them alone is no measurement of what it stands for. Those
of ``large`` come from 660 configs of 69 products and 62 tuned rows; those of ``small``, ``WAIT`` and ``TURNED`` of one
consumer and ``EMPTY_RATE`` were fitted later, to 231 more configs of 44 products with up to 256 rows too.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch

from opmux.plugin import Arch
from opmux_deepgemm.configs import Config
from opmux_deepgemm.grids import clusters
from opmux_deepgemm.space import Sizes, configs, untimed

TIMED = 4.0
"""Microseconds by which events around a call are further apart than its kernel takes: the median of 22 products that
were timed in both ways."""
BANDWIDTH = 4.29e6
"""Bytes in a microsecond that a large copy on an H200 reads and writes; the datasheet says 4.8e6."""
WRITTEN_BACK = 0.37
"""Bytes of others that the second-level cache writes to memory for each byte it takes in; fitted."""
MOST_WRITTEN_BACK = 34.6e6
"""Bytes that it writes back at most, of the 50 MB that it holds; fitted."""
ADDED = 315e3
"""Sums in float32 that the second-level cache adds to in a microsecond, if they come from memory: of 8 products which
do little else, between 295e3 and 326e3."""
RATE = {1: 15.0e6, 2: 7.5e6}
"""Operations in a microsecond of a multiprocessor's matrix unit, by bytes of an operand: the datasheet's."""
SCALING = 2.0e-6
"""Microseconds by which a sum that is scaled holds up the matrix unit, which shares the registers; fitted."""
SHARED_RATE = 253e3
"""Bytes in a microsecond that a multiprocessor's shared memory takes and gives: 128 a clock."""
COPY_RATE = 127e3
"""Bytes in a microsecond that a multiprocessor copies from the second-level cache: 64 a clock."""
PAIRED = 1.133
"""By how much longer a block of k takes for each doubling of a cluster, whose blocks wait for each other; fitted."""
COPIED, COPIED_IN_PIECES, COPIED_IN_GROUPS = 0.99, 0.96, 0.95
"""By how much shorter a block of k takes where the copy engine brings the scales of x: of a tile without two pieces of
its columns, with them, and with them in groups without staged results; with these they took as long as where threads
load scales. Fitted to 29 products of many rows."""
TALL_STAGED = 1.16
"""By how much longer it takes in tiles of 256 rows and fewer than 128 columns whose one piece overlaps, where results
are staged: 32 times on an H200 were 1.04 to 1.30 times the model's, the median 1.16, where neither overlap nor staged
results alone were off by more than 0.05 in the median. Why is not known: their loops have the same instructions."""
WIDE_ADDED = 0.925
"""By how much shorter it takes in tiles of 128x192 where products are added with copied scales; fitted to ten products
on an H100. Why these tiles are faster than those of 176 and 208 columns is not known."""
EMPTY_RATE = 10.5e3
"""Rows of zeros that all multiprocessors together copy in a microsecond, for those of a tile beyond the last row of x;
fitted. Why these are slow is not known: 119 of 128 rows took 1.6 times as long as none."""
LATENCY = 1.02
"""Microseconds from the start of a copy to its bytes, in the small kernel; fitted."""
WAIT = {1: 0.085, 2: 0.01}
"""Microseconds from the end of a consumer's products to the start of the next, without what is done between them, by
the number of consumers; fitted."""
TURNED = {1: 0.066, 2: 0.016}
"""Microseconds that a consumer loses with each piece, where one is scaled while the next is made, by the number of
consumers; fitted."""
CHOICE = 0.008
"""Microseconds to choose between the scales of two blocks of rows of w, for each place where the second may begin;
fitted."""
SCALED_RATE = 1980.0
"""Sums of each of its threads that a consumer scales and adds in a microsecond: one a clock."""
SCALED_BY_ROW_RATE, SCALED_BY_ROW, LEAST_SCALED_BY_ROW = 156.0, 0.17, 0.6
"""The same where each row of w has scales of its own, which come from shared memory; microseconds of each block of k
besides, and what it takes at least where there are enough sums for that. Fitted, the last two to tiles of 32 to 160
columns of nine products on an H100 and an H200."""
COPIED_BY_ROW_RATE, COPIED_BY_ROW = 200.0, 0.05
"""The same where the copy engine brings them and they are multiplied while products are made, and microseconds of each
block of k besides, where no pieces overlap. Fitted to nine tiles of seven products on an H100, whose times it has
within 6 %, and to one whose pieces overlap."""
START = 2.24
"""Microseconds of a kernel's start, its first copies and its last store; fitted."""
EPILOGUE = 0.7
"""Microseconds from a tile's last products to the next tile's first ones, without the stores; fitted."""
STAGED_EPILOGUE = 0.2
"""The same where the whole results of a tile have room in shared memory: 8 dense products of 4096 rows took 0.6 to 1.0
less for each tile."""
SLICE = 0.04
"""Microseconds in which a consumer changes to its next slice of shared memory, by which it stores results; fitted."""
STORE_RATE = 63e3
"""Elements of the result in a microsecond that a multiprocessor stores: shared memory takes 2 bytes and gives them."""
SUMS_RATE = 2365.0
"""Sums in float32 that a block of the small kernel writes to shared memory and reads in a microsecond; fitted."""
MEETING = 0.48
"""Microseconds for the blocks of a cluster to meet; fitted."""
DOUBLED = 0.11
"""Microseconds by which it takes longer for each doubling of the cluster; fitted."""
CLUSTERED_UNITS = {1: 132, 2: 132, 4: 120, 8: 112}
"""Multiprocessors that clusters of so many blocks can use: a cluster lies within a group of 16 or 18 of them."""
ROUND = 0.98
"""Microseconds from one of the small kernel's blocks to the next on a multiprocessor: nothing is copied meanwhile;
fitted."""
SCALES_RATE = 1340.0
"""Rows of x whose scale a consumer of the small kernel shares out among its threads in a microsecond; fitted."""
MULTIPROCESSOR_BYTES = 233_472
"""Shared memory of a multiprocessor: 228 KB, of which a block takes 1 KB more than it asks for."""


class Scored(NamedTuple):
    """A config and its predicted time in microseconds."""

    time: float
    config: Config


def predict(sizes: Sizes, config: Config) -> float:
    """Microseconds."""
    work = _large_work(sizes, config) if config.kernel == "large" else _small_work(sizes, config)
    moved = (sizes.m + sizes.n * max(sizes.groups, 1)) * sizes.k_bytes + 2 * sizes.m * sizes.n * (not sizes.added)
    memory = memory_of(moved, sizes.m * sizes.n * sizes.added)
    return TIMED + START + both(work, memory, empty_rows(sizes, config) / EMPTY_RATE) + _meeting(config)


def both(*times: float) -> float:
    """The time of what is done at the same time: more than the longest, as each is in the others' way."""
    return float(sum(time**4 for time in times) ** 0.25)


def memory_of(moved: float, added: float) -> float:
    """Microseconds in which so many bytes are moved and so many sums in float32 are added to in memory."""
    return (moved + min(moved * WRITTEN_BACK, MOST_WRITTEN_BACK)) / BANDWIDTH + added / ADDED


def empty_rows(sizes: Sizes, config: Config) -> float:
    """Rows beyond the last one of x that are copied, each time that one is; there are none between groups.

    The last tile of a product ends with x where `Product.moves`, and a tile has no more rows than x but where blocks
    share them. Two blocks that share rows of x take as long as if each copied all of them, which was measured: 137 rows
    of 5120 x 8704 took 41.5 us in tiles of 128x80, 39.3 in clusters of two, and 158 rows of 5056 x 10368 took 45.9 and
    45.4.
    """
    if sizes.groups:
        return 0.0
    moves = config.kernel == "large" and not (sizes.added or sizes.x_across or config.copied_scales)
    if moves and (config.x_share == 1 or sizes.m >= config.block_m):
        return 0.0
    step = config.block_m * (config.w_share if config.kernel == "large" else 1)
    columns = -(-sizes.n // config.block_n)
    copied_by = config.x_share if config.x_share > 2 else 1
    return (-sizes.m % step) * columns * sizes.blocks / copied_by


def _large_work(sizes: Sizes, config: Config) -> float:
    rounds = -(-_parts(sizes, config) // (CLUSTERED_UNITS[config.cluster] // config.cluster))
    copied = (config.block_m / config.x_share + config.block_n / config.w_share) * 128
    multiply = _multiply(sizes, config)
    block = both(multiply, shared_traffic(config) / SHARED_RATE, copied / COPY_RATE, _chain(sizes, config, multiply))
    block *= float(PAIRED ** math.log2(config.cluster)) * _copying(sizes, config)
    if sizes.scaled and config.block_m == 256 and config.block_n < 128 and config.overlaps and config.staged:
        block *= TALL_STAGED
    return rounds * (sizes.blocks * block + _epilogue(sizes, config))


def _copying(sizes: Sizes, config: Config) -> float:
    """By how much a block of k takes longer or shorter for where the scales of x come from."""
    if not config.copied_scales:
        return 1.0
    if sizes.added:
        return WIDE_ADDED if (config.block_m, config.block_n, config.pieces) == (128, 192, 0) else 1.0
    if config.pieces < 2:
        return COPIED
    return COPIED_IN_PIECES if not sizes.groups else 1.0 if config.staged else COPIED_IN_GROUPS


def _epilogue(sizes: Sizes, config: Config) -> float:
    """Microseconds from a tile's last products to the next tile's first ones."""
    out_bytes = 4 if sizes.added else 2
    slices = config.block_m // config.consumers // 64 * (config.block_n * out_bytes // config.slice_width(out_bytes))
    stores = config.block_m * config.block_n * (4 if sizes.added else 1) / STORE_RATE
    if config.staged:
        return STAGED_EPILOGUE + stores
    return EPILOGUE + slices * SLICE + stores


def _multiply(sizes: Sizes, config: Config) -> float:
    """Microseconds that a multiprocessor's matrix unit needs for a block of k."""
    operations = 2.0 * config.block_m * config.block_n * 128 / sizes.operand_bytes
    return operations / RATE[sizes.operand_bytes] + sizes.scaled * SCALING * config.block_m * config.block_n


def shared_traffic(config: Config) -> float:
    """Bytes of a block of k that shared memory takes, and gives to the matrix unit, which reads w for each 64 rows."""
    return config.stage_bytes + config.block_m // 64 * 128.0 * (64 * max(config.pieces, 1) + config.block_n)


def _chain(sizes: Sizes, config: Config, multiply: float) -> float:
    """Microseconds from one block of k of a consumer to its next one, if it had the matrix unit for itself."""
    alone = multiply / config.consumers
    if not sizes.scaled:
        return alone
    if not sizes.added:
        alone += (128 // math.gcd(config.block_n, 128) - 1) * CHOICE
        if config.overlaps:
            return alone + config.runs * TURNED[config.consumers]
    waits = (config.runs if config.pieces else 1) * WAIT[config.consumers]
    if sizes.added and config.copied_scales:
        return alone + (0.0 if config.overlaps else waits + COPIED_BY_ROW) + config.values / COPIED_BY_ROW_RATE
    if sizes.added:
        scaling = config.values / SCALED_BY_ROW_RATE
        return alone + waits + max(scaling, min(scaling + SCALED_BY_ROW, LEAST_SCALED_BY_ROW))
    return alone + waits + config.values / SCALED_RATE


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
    scales = sizes.scaled * config.consumers * together * config.block_m / SCALES_RATE
    block = math.hypot(multiply, copy, LATENCY / config.stages) + scales
    sums = config.block_m * config.block_n * together / SUMS_RATE
    return rounds * (blocks * block + sums) + (rounds - 1) * ROUND


def _meeting(config: Config) -> float:
    """Microseconds in which the blocks of a cluster of the small kernel add their sums."""
    if config.kernel == "large" or config.cluster == 1:
        return 0.0
    return MEETING + DOUBLED * math.log2(config.cluster)


@lru_cache(maxsize=1024)
def scored(sizes: Sizes) -> tuple[Scored, ...]:
    """Every config with its predicted time, the fastest first; of equals the one that comes first."""
    return _by_time(sizes, configs(sizes))


def tried(sizes: Sizes) -> Iterator[Config]:
    """Every config that tuning may try: the model's choice, then the others by predicted time, `untimed` ones too."""
    chosen, *others = scored(sizes)
    rest = sorted((*others, *_by_time(sizes, untimed(sizes))), key=lambda one: one.time)
    return (one.config for one in (chosen, *rest))


def _by_time(sizes: Sizes, found: Iterator[Config]) -> tuple[Scored, ...]:
    return tuple(sorted((Scored(predict(sizes, one), one) for one in found), key=lambda one: one.time))


def _linear(features: Mapping[str, Any]) -> Sizes:
    lie = (features.get(f"lies({name})") == "across" for name in "xw")
    return Sizes(max(int(features["bucket(tokens, 8)"]), 1), features["n"], 2 * features["k"], False, 0, False, *lie)


def _scaled(features: Mapping[str, Any]) -> Sizes:
    rows = int(features["bucket(m, 8)"]) << int(features["bucket(batch)"])
    return Sizes(max(rows, 1), features["n"], features["k"], True, float32=_float32(features))


def _added(features: Mapping[str, Any]) -> Sizes:
    return Sizes(max(int(features["bucket(m, 8)"]), 1), features["n"], features["k"], True, added=True)


def _ragged(features: Mapping[str, Any], scaled: bool) -> Sizes:
    """No more groups have rows than there are rows."""
    rows = int(features["bucket(m, 8)"])
    return _grouped(features, rows, min(features["groups"], rows), scaled)


def _masked(features: Mapping[str, Any], scaled: bool) -> Sizes:
    return _grouped(features, int(features["bucket(expected_m, 8)"]) * features["groups"], features["groups"], scaled)


def _grouped(features: Mapping[str, Any], rows: int, groups: int, scaled: bool) -> Sizes:
    k_bytes = features["k"] * (1 if scaled else 2)
    x_across, w_across = (features.get(f"lies({name})") == "across" for name in "xw")
    float32 = _float32(features)
    return Sizes(max(rows, 1), features["n"], k_bytes, scaled, max(groups, 1), False, x_across, w_across, float32)


def _float32(features: Mapping[str, Any]) -> bool:
    """Whether the call names a result in float32; only those of codes have the feature."""
    return features.get("out_dtype") is torch.float32


_SIZES: dict[str, Callable[[Mapping[str, Any]], Sizes]] = {
    "linear": _linear,
    "scaled_linear": _scaled,
    "scaled_linear_accumulate": _added,
    "grouped_linear": partial(_ragged, scaled=False),
    "scaled_grouped_linear": partial(_ragged, scaled=True),
    "masked_grouped_linear": partial(_masked, scaled=False),
    "scaled_masked_grouped_linear": partial(_masked, scaled=True),
}


_Features = Mapping[str, Any]
_Scores = Callable[[Arch, _Features], tuple[Scored, ...]]
_Best = Callable[[Arch, _Features], Config]
_Space = Callable[[Arch, _Features], Iterator[Config]]


def functions(
    scores_of: Callable[[_Features], tuple[Scored, ...]],
    space_of: Callable[[_Features], Iterator[Config]] | None = None,
) -> tuple[_Best, _Space, _Scores]:
    """What the record of an op names: its config, its space, and its scores.

    Args:
        scores_of: every config that the model may take with its predicted time, the fastest first.
        space_of: every config that tuning may try; None stands for those that have scores.
    """

    def scores(arch: Arch, features: _Features) -> tuple[Scored, ...]:
        """Every config that the model may take with its predicted time, the fastest first."""
        return scores_of(features)

    def best(arch: Arch, features: _Features) -> Config:
        """The config with the least predicted time."""
        return scores_of(features)[0].config

    def space(arch: Arch, features: _Features) -> Iterator[Config]:
        """Every config that tuning may try, the model's choice first."""
        return (one.config for one in scores_of(features)) if space_of is None else space_of(features)

    return best, space, scores


def _functions(op: str) -> tuple[_Best, _Space, _Scores]:
    sizes = _SIZES[op]
    return functions(lambda features: scored(sizes(features)), lambda features: tried(sizes(features)))


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
