"""Which config a gradient of grouped weights gets.

As in `model`, the time is that of the busiest multiprocessor, or that of the bytes where they take longer. Every group
has the same tiles, and on average ``m / groups`` rows that are summed.
"""

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from opmux_deepgemm.configs import MOST_VALUES, Config, most_stages
from opmux_deepgemm.model import (
    COPY_RATE,
    RATE,
    SHARED_RATE,
    START,
    TIMED,
    Scored,
    both,
    functions,
    memory_of,
    shared_traffic,
)
from opmux_deepgemm.space import MOST_STAGES, UNITS

BLOCK_ROWS = 64
"""Rows that are summed in a stage."""
ACROSS = 1.06
"""By how much longer a block of rows takes, as the matrix unit transposes both operands: fitted to two products of ten
configs on an H200, of which tiles from 128x128 on agree within 11 %."""
LONE = 1.015
"""By how much longer a single consumer takes, by the same run."""


def configs(n: int, k: int) -> Iterator[Config]:
    """Every config that is legal and no more than twice as large as the result, in a fixed order."""
    for block_m, consumers in ((64, 1), (128, 1), (128, 2), (256, 2)):
        for block_n in range(64, 257, 64):
            if block_m // consumers * block_n // 128 > MOST_VALUES or block_m >= 2 * max(n, 33):
                continue
            if block_n >= 2 * max(k, 33):
                continue
            stages = min(most_stages("large", block_m, block_n, consumers), MOST_STAGES)
            if stages >= 2:
                yield Config("large", block_m, block_n, stages, consumers)


def predict(m: int, n: int, k: int, groups: int, config: Config) -> float:
    """Microseconds."""
    with_rows = min(groups, m)
    tiles = with_rows * math.ceil(n / config.block_m) * math.ceil(k / config.block_n)
    blocks = math.ceil(m / with_rows / BLOCK_ROWS) + 0.5  # the last block of a group is half full
    multiply = 2.0 * config.block_m * config.block_n * BLOCK_ROWS / RATE[2]
    block = ACROSS * both(multiply, shared_traffic(config) / SHARED_RATE, config.stage_bytes / COPY_RATE)
    block *= LONE if config.consumers == 1 else 1.0
    epilogue = config.block_m * config.block_n * 8 / COPY_RATE
    work = math.ceil(tiles / UNITS) * (blocks * block + epilogue)
    return TIMED + START + both(work, memory_of(2 * m * (n + k), with_rows * n * k))


@lru_cache(maxsize=1024)
def scored_gradients(m: int, n: int, k: int, groups: int) -> tuple[Scored, ...]:
    """Every config with its predicted time, the fastest first; of equals the one that comes first."""
    found = [Scored(predict(m, n, k, groups, config), config) for config in configs(n, k)]
    return tuple(sorted(found, key=lambda one: one.time))


def _scores(features: Mapping[str, Any]) -> tuple[Scored, ...]:
    m = max(int(features["bucket(m, 8)"]), 1)
    return scored_gradients(m, features["n"], features["k"], max(features["groups"], 1))


grouped_weight_grad, grouped_weight_grad_space, grouped_weight_grad_scores = functions(_scores)
