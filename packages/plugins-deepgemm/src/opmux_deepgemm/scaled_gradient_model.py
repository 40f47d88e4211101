"""Which config a gradient of grouped weights from codes gets: as `gradient_model`, with blocks of 128 rows.

The time is that of the kernel: codes which have to be copied first take longer.
"""

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from opmux_deepgemm.configs import MOST_VALUES, Config, most_stages
from opmux_deepgemm.model import COPY_RATE, START, TIMED, Scored, both, functions, memory_of
from opmux_deepgemm.space import MOST_STAGES, TURN, UNITS

BLOCK_ROWS = 128
"""Rows that are summed in a stage: those that share a scale."""
SCALED = 46.5e3
"""Sums in a microsecond that a multiprocessor multiplies, scales by row and column and adds in float32, where two
consumers do so: on an H200, of tiles from 128x128 to 256x96."""
BLOCK = 0.39
"""Microseconds of a block of rows besides those of its sums, by the same run."""
LONE = 1.05
"""By how much longer a single consumer takes than half of what two do: nothing is made while it scales."""
TURNS = 1.12
"""By how much longer it takes where consumers take turns."""
UNSHARED = 1.01
"""By how much longer where each block copies all of its columns of x; an estimate."""
TALL = 0.96
"""By how much less where a consumer has two parts, which are multiplied by the same columns of x."""
GROUPS = 8
"""Rows of tiles that are walked together, so that what they read stays in the cache."""


def configs(n: int, k: int) -> Iterator[Config]:
    """Every config that is legal and no more than twice as large as the result, in a fixed order."""
    for block_m, consumers in ((64, 1), (128, 1), (128, 2), (256, 2)):
        for block_n in range(32, 257, 32):
            if 2 * (block_m // consumers * block_n // 128) > MOST_VALUES or block_m >= 2 * max(n, 33):
                continue
            if block_n >= 2 * max(k, 17):
                continue
            stages = min(most_stages("large", block_m, block_n, consumers, True), MOST_STAGES)
            if stages < 2:
                continue
            for cluster in (1, 2):
                if cluster == 2 and n <= block_m:
                    continue
                for alternate in (TURN, 0) if consumers == 2 else (0,):
                    yield Config("large", block_m, block_n, stages, consumers, cluster, GROUPS, alternate)


def predict(m: int, n: int, k: int, groups: int, config: Config) -> float:
    """Microseconds."""
    with_rows = min(groups, m)
    rows = math.ceil(n / config.block_m / config.cluster) * config.cluster
    tiles = with_rows * rows * math.ceil(k / config.block_n)
    blocks = math.ceil(m / with_rows / BLOCK_ROWS)
    area = config.block_m * config.block_n
    together = BLOCK + area / SCALED * (2 * LONE if config.consumers == 1 else 1.0)
    if config.block_m // config.consumers > 64:
        together *= TALL
    copied = (config.block_m + config.block_n / config.cluster) * BLOCK_ROWS / COPY_RATE
    block = max(together, copied) * (TURNS if config.alternate else 1.0) * (UNSHARED if config.cluster == 1 else 1.0)
    epilogue = config.block_m * config.block_n * 8 / COPY_RATE
    work = math.ceil(tiles / UNITS) * (blocks * block + epilogue)
    return TIMED + START + both(work, memory_of(m * (n + k), with_rows * n * k))


@lru_cache(maxsize=1024)
def scored_gradients(m: int, n: int, k: int, groups: int) -> tuple[Scored, ...]:
    """Every config with its predicted time, the fastest first; of equals the one that comes first."""
    found = [Scored(predict(m, n, k, groups, config), config) for config in configs(n, k)]
    return tuple(sorted(found, key=lambda one: one.time))


def _scores(features: Mapping[str, Any]) -> tuple[Scored, ...]:
    m = max(int(features["bucket(m, 8)"]), 1)
    return scored_gradients(m, features["n"], features["k"], max(features["groups"], 1))


scaled_grouped_weight_grad, scaled_grouped_weight_grad_space, scaled_grouped_weight_grad_scores = functions(_scores)
