"""The rules of a product's tile, with their reasons, and the loop that a length of k takes."""

from dataclasses import replace

import pytest

from opmux_ck.gemm.configs import BlockCodesConfig, CodesConfig, GemmConfig, broken_rules, loops, misfit

TILE = GemmConfig(128, 128, 64, 2, 2, 32, 16)
MEM = GemmConfig(32, 32, 64, 2, 2, 16, 32, "mem")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"split_k": 0}, "m, n, k, waves_m, waves_n and split_k = 128, 128, 64, 2, 2, 0: one is less than 1"),
        ({"mfma_k": 32}, "mfma = 32x32x32 is not one of 16x16x16, 16x16x32, 32x32x8, 32x32x16"),
        ({"pipeline": "v5"}, "pipeline = 'v5' is not one of v3, v4, mem"),
        ({"store": 16}, "store = 16 is not 1, 2, 4 or 8"),
        ({"waves_m": 4, "waves_n": 4}, "waves_m * waves_n = 16 is more than 8 waves"),
        ({"m": 96}, "m = 96 is not a multiple of waves_m * mfma = 64"),
        ({"n": 96}, "n = 96 is not a multiple of waves_n * mfma = 64"),
        ({"m": 64, "k": 16}, "m * k = 1024 is not a multiple of 8 elements for each of 256 threads"),
        ({"mfma": 16, "mfma_k": 32, "k": 16}, "k = 16 is not a multiple of mfma_k = 32"),
        ({"k": 96}, "k = 96 does not divide the 512 elements that a wave loads at a time"),
        ({"k": 256}, "the tiles take 131072 bytes of LDS, more than 65536"),
        ({"k": 128, "pipeline": "v4"}, "the tiles take 131072 bytes of LDS, more than 65536"),
        ({"m": 256, "n": 256}, "m * n = 65536 is more than 128 accumulators for each of 256 threads"),
        ({"split_k": 65}, "split_k = 65 is more than 64"),
        ({"m": 512, "n": 32, "k": 32, "waves_n": 1, "waves_m": 4}, "m = 512 is more than 256"),
        ({"m": 32, "n": 512, "k": 64, "waves_n": 4, "waves_m": 1}, "n = 512 is more than 256"),
    ],
)
def test_what_no_instance_can_be(fields, reason) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        replace(TILE, **fields)
    assert str(caught.value) == reason


def test_a_legal_tile_breaks_no_rule() -> None:
    assert list(broken_rules(TILE)) == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"mfma_k": 8}, "mfma = 32x32x8 is not one of 16x16x32, 32x32x16"),
        ({"pipeline": "mem"}, "pipeline = 'mem' is not one of v3"),
        ({"split_k": 2}, "split_k = 2 is more than 1"),
        ({"k": 16}, "m * k = 2048 is not a multiple of 16 elements for each of 256 threads"),
        ({"k": 512}, "the tiles take 131072 bytes of LDS, more than 65536"),
    ],
)
def test_what_no_instance_of_codes_can_be(fields, reason) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        replace(CodesConfig(128, 128, 128, 2, 2, 32, 16), **fields)
    assert reason in str(caught.value)


@pytest.mark.parametrize("fields", [{"k": 64}, {"n": 256, "m": 64}])
def test_a_tile_of_blocks_has_one_scale_of_each_row_in_a_step(fields) -> None:
    with pytest.raises(ValueError, match="blocks of scales take k = 128 and an n that divides it"):
        replace(BlockCodesConfig(128, 128, 128, 2, 2, 32, 16), **fields)


@pytest.mark.parametrize(
    ("fields", "n", "k", "reason"),
    [
        ({}, 128, 60, "k = 60 is not a multiple of 8"),
        ({}, 132, 64, "n = 132 is not a multiple of the elements of a store, 8"),
        ({"pads_n": False}, 136, 64, "n = 136 does not fill the tile of 128, and it does not pad"),
        ({"pads_k": False}, 128, 72, "k = 72 does not fill the steps of 64, and it does not pad"),
        ({"split_k": 4}, 128, 384, "k = 384 is not 4 equal parts of steps of 64"),
        ({"split_k": 4, "pads_k": False}, 128, 512, None),
        ({"store": 4}, 132, 72, None),
    ],
)
def test_what_does_not_fit_a_call(fields, n, k, reason) -> None:
    assert misfit(replace(TILE, **fields), n, k) == reason


@pytest.mark.parametrize(
    ("config", "steps", "found"),
    [
        (TILE, (1, 2, 3, 4, 100), (1, 2, 3, 3, 3)),
        (replace(TILE, k=32, pipeline="v4"), (1, 2, 3, 4, 5, 6, 101), (1, 2, 3, 4, 3, 4, 3)),
        (MEM, (1, 4, 5, 6, 7, 8, 9), (1, 4, 5, 6, 7, 8, 5)),
    ],
)
def test_loops_that_end_alike_are_one(config, steps, found) -> None:
    assert tuple(loops(config, config.k * count) for count in steps) == found
    split = replace(config, split_k=2)
    assert tuple(loops(split, 2 * config.k * count) for count in steps) == found


def test_the_stages_that_are_loaded_ahead() -> None:
    """32 KiB are in flight on a compute unit, in at least two stages and at most eight."""
    assert MEM.stages == 4
    assert replace(MEM, k=128).stages == 2
    assert TILE.stages == 2
