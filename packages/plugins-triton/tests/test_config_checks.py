"""What configs refuse, whoever gives the values: parameters that would leave out a part of a result, or all of it."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from opmux.plugin import parse_arch
from opmux_triton.gemm.configs import HopperConfig, LinearConfig, TilesConfig, VectorConfig
from opmux_triton.norm.configs import BackwardConfig, RowsConfig, backward_config

TILES = TilesConfig(block_m=64, block_n=64, block_k=32, num_warps=4, num_stages=2)
HOPPER = HopperConfig(192, 128, 64, 5, 3, TILES, slots=1)
VECTOR = VectorConfig(rows=4, block_k=512, num_warps=4)
BACKWARD = backward_config(parse_arch("sm_90"), {"hidden": 4096})


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: RowsConfig(block=3, rows=1, num_warps=4), "block expected a power of two, got 3"),
        (lambda: RowsConfig(block=64, rows=-1, num_warps=4), "rows expected a power of two, got -1"),
        (lambda: replace(BACKWARD, tail=3), "tail expected a power of two, got 3"),
        (lambda: replace(BACKWARD, tail=1024, again="all"), "tail expected 0 where again is 'all', got 1024"),
        (lambda: replace(BACKWARD, programs=0), "programs expected at least 1, got 0"),
        (lambda: replace(TILES, block_m=8), "block_m expected at least 16, got 8"),
        (lambda: replace(TILES, num_stages=0), "num_stages expected at least 1, got 0"),
        (lambda: replace(TILES, sum_rows=128), "sum_rows expected a divisor of block_m = 64, got 128"),
        (lambda: replace(HOPPER, sum_rows=128), "sum_rows expected a divisor of block_m = 192, got 128"),
        (lambda: replace(HOPPER, warpgroups=4), "warpgroups expected 1, 2 or 3, got 4"),
        (lambda: replace(HOPPER, parts=3, slots=2), "parts expected a multiple of slots = 2, got 3"),
        (LinearConfig, "expected either vector or tiles"),
        (lambda: LinearConfig(vector=VECTOR, tiles=TILES), "expected either vector or tiles"),
    ],
)
def test_a_config_refuses_values_that_do_not_fit(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        make()


def test_configs_of_the_heuristics_pass() -> None:
    assert isinstance(BACKWARD, BackwardConfig)
    assert LinearConfig(tiles=TILES).tiles is TILES
