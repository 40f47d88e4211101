"""Which config a gradient of grouped weights gets.

As in `model`, the time is that of the busiest multiprocessor, or that of the bytes where they take longer. Every group
has the same tiles, and on average ``m / groups`` rows that are summed.
"""

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from opmux.plugin import Arch
from opmux_deepgemm.configs import MOST_VALUES, Config, most_stages
from opmux_deepgemm.model import ALONE, BANDWIDTH, COPY_RATE, MOST_STAGES, RATE, START, UNITS, Scored

BLOCK_ROWS = 64
"""Rows that are summed in a stage."""


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
    share = min(1.0, config.block_n / 128) * min(1.0, 0.9 + 64 * config.block_n / 163_840)
    multiplied = 2.0 * config.block_m * config.block_n * BLOCK_ROWS / (RATE[2] * share)
    block = max(multiplied, config.stage_bytes / COPY_RATE) * (ALONE if config.consumers == 1 else 1.0)
    epilogue = config.block_m * config.block_n * 8 / COPY_RATE
    work = math.ceil(tiles / UNITS) * (blocks * block + epilogue)
    memory = (2 * m * (n + k) + 8 * with_rows * n * k) / BANDWIDTH  # what is added to is read and written
    return float(START + (work**4 + memory**4) ** 0.25)


@lru_cache(maxsize=1024)
def scored_gradients(m: int, n: int, k: int, groups: int) -> tuple[Scored, ...]:
    """Every config with its predicted time, the fastest first; of equals the one that comes first."""
    found = [Scored(predict(m, n, k, groups, config), config) for config in configs(n, k)]
    return tuple(sorted(found, key=lambda one: one.time))


def grouped_weight_grad_scores(arch: Arch, features: Mapping[str, Any]) -> tuple[Scored, ...]:
    """Every legal config with its predicted time, the fastest first."""
    m = max(int(features["bucket(m, 8)"]), 1)
    return scored_gradients(m, features["n"], features["k"], max(features["groups"], 1))


def grouped_weight_grad(arch: Arch, features: Mapping[str, Any]) -> Config:
    """The config with the least predicted time."""
    return grouped_weight_grad_scores(arch, features)[0].config


def grouped_weight_grad_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[Config]:
    """Every legal config, by predicted time."""
    return (one.config for one in grouped_weight_grad_scores(arch, features))
