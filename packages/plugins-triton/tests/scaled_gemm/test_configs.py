"""Launch parameters of scaled products: what an arch has, tiles of few rows, and what has no registers left."""

from typing import Any

import pytest
from family_shapes import ARCHS, TOKENS, WIDTHS, assert_launchable

from opmux.plugin import parse_arch
from opmux_triton.archs import shared_memory
from opmux_triton.scaled_gemm import heuristics, hopper_heuristics
from opmux_triton.scaled_gemm.hopper_configs import BLOCK_K, HopperScaledConfig

HOPPER = parse_arch("sm_90")
ROWS = (1, 3, 16, 17, 64, 100, 128, 2048, 4096, 16384)
FORMATS = (heuristics.scaled_linear, heuristics.scaled_linear_fnuz, heuristics.scaled_linear_int8)


@pytest.mark.parametrize("arch", ARCHS, ids=lambda arch: arch.name)
def test_a_program_keeps_to_what_an_arch_has(arch: Any) -> None:
    found = [
        config(arch, {"bucket(batch)": batch, "bucket(m)": m, "n": n, "k": k, "k_blocks": 1})
        for config in FORMATS
        for batch, m in ((0, 0), (2, 3), *((0, bucket) for bucket in TOKENS))
        for n, k in zip(WIDTHS, reversed(WIDTHS), strict=True)
    ]
    assert_launchable(found, arch)


def gluon(m: int, n: int, k: int, k_blocks: int = 1, w_rows: int = 1, added: bool = False) -> HopperScaledConfig:
    features = {"bucket(m, 8)": m, "n": n, "k": k, "k_blocks": k_blocks, "w_rows": w_rows}
    config = hopper_heuristics.scaled_linear_accumulate if added else hopper_heuristics.scaled_linear
    return config(HOPPER, features if added else {**features, "bucket(batch)": 0})


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("m", ROWS)
def test_the_ring_and_the_results_fit_shared_memory(m: int, added: bool) -> None:
    for n, k in ((7168, 16384), (24576, 1536), (4096, 7168), (136, 272)):
        for k_blocks, w_rows in ((1, 1), (1, n), (-(-k // 128), -(-n // 128)), (-(-k // 128), n)):
            config = gluon(m, n, k, k_blocks, w_rows, added)
            ring = config.stages * (config.block_m + config.block_n) * BLOCK_K
            results = 4 * config.block_m * config.block_n // config.parts * config.slots
            assert config.stages >= 2
            assert ring + results < shared_memory("sm_90")


def test_few_rows_are_the_columns_of_a_tile() -> None:
    for m in (1, 8, 16):
        config = gluon(m, 7168, 16384)
        assert config.swap
        assert config.block_n == 16


def test_blocks_that_are_scaled_one_by_one_make_other_tiles_the_fastest() -> None:
    """Measured on an H200: 128x128, cut along k, took 38 us with scales of blocks, and 128x64 45."""
    blocks, once = gluon(375, 2560, 11008, k_blocks=86, w_rows=20), gluon(375, 2560, 11008, w_rows=2560)
    assert (blocks.block_m, blocks.block_n, blocks.cut) == (128, 128, "all")
    assert once.cut == "none"


@pytest.mark.parametrize(
    ("m", "batch", "k_blocks", "refused"),
    [(8, 0, 20, True), (16, 0, 20, True), (17, 0, 20, False), (8, 2, 20, False), (8, 0, 1, False)],
)
def test_few_rows_with_scales_of_blocks_are_left_out(m: int, batch: int, k_blocks: int, refused: bool) -> None:
    features = {"bucket(batch)": batch, "bucket(m, 8)": m, "n": 6144, "k": 2560, "k_blocks": k_blocks, "w_rows": 48}
    why = hopper_heuristics.why_not_scaled_linear(features)
    expected = "up to 16 rows with scales of blocks, the portable kernel was measured to be as fast or faster"
    assert why == (expected if refused else None)


@pytest.mark.parametrize(
    ("name", "m", "n", "rows"),
    [("sm_90", 8, 19456, 128), ("sm_90", 8, 6144, 64), ("sm_90", 17, 19456, 64), ("sm_89", 8, 19456, 64)],
)
def test_few_rows_take_a_wide_tile_where_each_unit_has_one(name: str, m: int, n: int, rows: int) -> None:
    features = {"bucket(batch)": 0, "bucket(m)": (m - 1).bit_length(), "n": n, "k": 2560}
    made = heuristics.scaled_linear(parse_arch(name), features)
    assert (made.block_n, made.parts) == (rows, made.parts if rows == 64 else 1)


def test_scales_of_columns_do_not_meet_the_widest_tile() -> None:
    """It has no registers for them."""
    widest = gluon(4096, 7168, 16384, k_blocks=128, w_rows=56)
    assert (widest.warpgroups, widest.swap) == (3, False)
    assert gluon(4096, 7168, 16384, k_blocks=128, w_rows=7168).warpgroups < 3


def test_a_product_that_is_added_is_computed_whole() -> None:
    for m in ROWS:
        assert gluon(m, 4096, 7168, added=True).cut == "none"


def test_no_rows_have_a_config() -> None:
    assert gluon(0, 4096, 7168).block_m


def test_int8_products_on_hopper_take_the_tiles_that_were_fastest_there() -> None:
    def tile(m: int, n: int, k: int, arch: str = "sm_90", k_blocks: int = 1) -> tuple[int, ...]:
        config = heuristics.scaled_linear_int8(
            parse_arch(arch), {"bucket(m)": (m - 1).bit_length(), "n": n, "k": k, "k_blocks": k_blocks}
        )
        return config.block_m, config.block_n, config.num_warps, config.num_stages, config.parts

    assert tile(2393, 3584, 2560) == tile(12326, 7168, 896) == (128, 128, 4, 3, 1)
    assert tile(667, 1536, 6144) == tile(101, 8192, 1536) == (64, 128, 4, 4, 1)
    assert tile(244, 3072, 6144) == (64, 64, 4, 4, 1)
    assert tile(182, 896, 16384) == (64, 32, 4, 4, 1), "84 tiles for 132 multiprocessors"
    assert tile(8, 9216, 11008) == (16, 64, 4, 4, 2), "144 programs would be one round and a tenth"
    assert tile(8, 9216, 2304) == (16, 64, 4, 4, 1), "short parts cost more than they fill"
    assert tile(2393, 3584, 2560, arch="sm_100") == (128, 128, 8, 4, 1)
    assert tile(2393, 3584, 2560, k_blocks=20) == tile(2393, 3584, 2570) == (128, 128, 8, 4, 1), "no registers for more"
