"""Configs: what there is a kernel for, and what shared memory it takes."""

import re
from dataclasses import replace

import pytest

from opmux_deepgemm.configs import SHARED_BYTES, Config, added_scales_bytes, most_stages

LARGE = {"kernel": "large", "block_m": 128, "block_n": 128, "stages": 4, "consumers": 2}
SMALL = {"kernel": "small", "block_m": 8, "block_n": 64, "stages": 4, "consumers": 1}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (LARGE | {"kernel": "medium"}, "kernel expected 'large' or 'small', got 'medium'"),
        (LARGE | {"block_m": 192}, "block_m expected 64 or 128 or 256, got 192"),
        (LARGE | {"block_n": 100}, "block_n expected a multiple of 16 up to 256, got 100"),
        (LARGE | {"consumers": 3}, "consumers expected 1 or 2, got 3"),
        (LARGE | {"block_m": 256, "consumers": 1}, "block_m / consumers expected 64 or 128, got 256"),
        (LARGE | {"block_m": 64}, "block_m / consumers expected 64 or 128, got 32"),
        (LARGE | {"cluster": 8}, "cluster expected 1 or 2 or 4, got 8"),
        (LARGE | {"group": 0}, "group expected 1 or more, got 0"),
        (LARGE | {"stages": 1}, "stages expected 2 or more, got 1"),
        (LARGE | {"stages": 9}, "it takes 328848 bytes of shared memory, a block has 232448"),
        (
            LARGE | {"block_m": 256, "block_n": 224, "stages": 2},
            "a thread would hold 224 values of the tile, more than 192",
        ),
        (SMALL | {"block_m": 12}, "block_m expected a multiple of 8 up to 128, got 12"),
        (SMALL | {"block_n": 96}, "block_n expected 64 or 128, got 96"),
        (SMALL | {"consumers": 2}, "consumers expected 1, got 2"),
        (SMALL | {"cluster": 3}, "cluster expected 1 or 2 or 4 or 8, got 3"),
        (SMALL | {"group": 8}, "group expected 1, got 8"),
        (LARGE | {"alternate": 1}, "alternate expected 0 or 2 or 3 or 4, got 1"),
        (SMALL | {"alternate": 3}, "alternate expected two consumers of the kernel 'large'"),
        (
            LARGE | {"block_m": 64, "consumers": 1, "alternate": 3},
            "alternate expected two consumers of the kernel 'large'",
        ),
        *((given | {"share_x": True}, "share_x expected the kernel 'large' in clusters") for given in (LARGE, SMALL)),
        (SMALL | {"staged": True}, "staged expected the kernel 'large'"),
        *(
            (
                given | {"copied_scales": True},
                f"copied_scales expected the kernel 'large' without turns, got {got}",
            )
            for given, got in (
                (SMALL, "'small', 8x64, alternate = 0"),
                (LARGE | {"alternate": 3}, "'large', 128x128, alternate = 3"),
            )
        ),
        (LARGE | {"pieces": 5}, "pieces expected 0 or 1 or 2 or 3 or 4, got 5"),
        *(
            (given, "pieces expected the kernel 'large' without turns, and block_n a multiple of 8 in each piece")
            for given in (SMALL | {"pieces": 1}, LARGE | {"pieces": 3}, LARGE | {"pieces": 2, "alternate": 3})
        ),
    ],
)
def test_what_there_is_no_kernel_for(given, message) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Config(**given)


@pytest.mark.parametrize("given", [LARGE, LARGE | {"block_n": 256, "cluster": 2}, SMALL, SMALL | {"block_m": 128}])
def test_the_most_stages_are_the_most(given) -> None:
    most = most_stages(given["kernel"], given["block_m"], given["block_n"], given["consumers"])
    assert Config(**given | {"stages": most}).shared_bytes(4) <= SHARED_BYTES
    with pytest.raises(ValueError, match="bytes of shared memory"):
        Config(**given | {"stages": most + 1})


@pytest.mark.parametrize(("block_n", "out_bytes", "width"), [(128, 2, 128), (160, 2, 64), (160, 4, 128), (96, 2, 64)])
def test_slices_are_as_wide_as_divides_the_tile(block_n, out_bytes, width) -> None:
    assert Config(**LARGE | {"block_n": block_n}).slice_width(out_bytes) == width


def test_threads() -> None:
    assert Config(**LARGE).threads == 384
    assert Config(**SMALL).threads == 256


def test_scales_of_each_row_take_room_in_every_stage() -> None:
    config = Config(**LARGE)
    assert config.shared_bytes(4, row_scales=True) - config.shared_bytes(4) == config.stages * 4 * config.block_n
    most = most_stages("large", config.block_m, config.block_n, config.consumers, row_scales=True)
    assert Config(**LARGE | {"stages": most}).shared_bytes(4, row_scales=True) <= SHARED_BYTES


def test_copied_scales_take_room_in_every_stage() -> None:
    config, copied = Config(**LARGE), Config(**LARGE | {"copied_scales": True})
    assert copied.shared_bytes(4) - config.shared_bytes(4) == config.stages * 16 * (config.block_m + 16)
    most = most_stages("large", config.block_m, config.block_n, config.consumers, copied_scales=True)
    assert Config(**LARGE | {"stages": most, "copied_scales": True}).shared_bytes(4) <= SHARED_BYTES
    with pytest.raises(ValueError, match=r"bytes of shared memory"):
        Config(**LARGE | {"stages": most + 1, "copied_scales": True})


@pytest.mark.parametrize("tile", [(128, 128), (128, 192), (256, 96)])
def test_copied_scales_of_both_take_room_in_slots_of_four_blocks(tile) -> None:
    config = Config(**LARGE | {"block_m": tile[0], "block_n": tile[1], "stages": 3, "copied_scales": True})
    plain = replace(config, copied_scales=False)
    for stages, slots in ((2, 3), (3, 3), (4, 3)):
        copied = replace(config, stages=stages).shared_bytes(4, row_scales=True)
        assert copied - replace(plain, stages=stages).shared_bytes(4) == slots * 16 * sum(tile)
    most = most_stages("large", *tile, config.consumers, row_scales=True, copied_scales=True)
    assert replace(config, stages=most).shared_bytes(4, row_scales=True) <= SHARED_BYTES
    more = added_scales_bytes(*tile, most + 1) + replace(plain, stages=2).stage_bytes
    assert replace(config, stages=most).shared_bytes(4) - most * 16 * (tile[0] + 16) + more > SHARED_BYTES


@pytest.mark.parametrize(
    ("tile", "pieces", "overlaps"),
    [
        ((128, 192, 2), 0, False), ((128, 192, 2), 1, False),
        ((128, 128, 2), 1, True), ((128, 192, 2), 2, True), ((256, 96, 2), 1, True),
        ((256, 128, 2), 1, False), ((128, 256, 2), 2, False), ((128, 256, 2), 4, True), ((64, 96, 1), 3, False),
    ],
)  # fmt: skip
def test_pieces_overlap_where_two_of_them_fit_beside_the_sums(tile, pieces, overlaps) -> None:
    block_m, block_n, consumers = tile
    assert Config("large", block_m, block_n, 4, consumers, pieces=pieces).overlaps == overlaps
