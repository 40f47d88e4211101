"""What the configs of the products refuse: parameters that would leave out a part of a result, or all of it."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from opmux_triton.gemm.configs import HopperConfig, LinearConfig, TilesConfig, VectorConfig, VectorsConfig

TILES = TilesConfig(block_m=64, block_n=64, block_k=32, num_warps=4, num_stages=2)
HOPPER = HopperConfig(192, 128, 64, 5, 3, TILES, slots=1)
VECTOR = VectorConfig(rows=4, block_k=512, num_warps=4)
VECTORS = VectorsConfig(rows=1, block_k=256, blocks=4, num_warps=1, otherwise=TILES)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: replace(TILES, block_m=8), "block_m expected at least 16, got 8"),
        (lambda: replace(TILES, num_stages=0), "num_stages expected at least 1, got 0"),
        (lambda: replace(TILES, sum_rows=128), "sum_rows expected a divisor of block_m = 64, got 128"),
        (lambda: replace(HOPPER, sum_rows=128), "sum_rows expected a divisor of block_m = 192, got 128"),
        (lambda: replace(HOPPER, warpgroups=4), "warpgroups expected 1, 2 or 3, got 4"),
        (lambda: replace(HOPPER, parts=3, slots=2), "parts expected a multiple of slots = 2, got 3"),
        (lambda: replace(VECTORS, block_k=200), "block_k expected a power of two, got 200"),
        (lambda: replace(VECTORS, blocks=0), "blocks expected at least 1, got 0"),
        (LinearConfig, "expected one of vector, tiles and vectors"),
        (lambda: LinearConfig(vector=VECTOR, tiles=TILES), "expected one of vector, tiles and vectors"),
        (lambda: LinearConfig(vectors=VECTORS, tiles=TILES), "expected one of vector, tiles and vectors"),
    ],
)
def test_a_config_refuses_values_that_do_not_fit(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        make()


def test_one_of_vector_tiles_and_vectors_is_a_config() -> None:
    assert LinearConfig(tiles=TILES).tiles is TILES
    assert LinearConfig(vector=VECTOR).vector is VECTOR
    assert LinearConfig(vectors=VECTORS).vectors is VECTORS
