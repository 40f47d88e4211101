"""The space of norms: its rules with their reasons, and the tile of a call."""

import itertools

import pytest

from opmux.plugin import parse_arch
from opmux_ck.norms.configs import (
    QUANTIZED_TILES,
    TILES,
    NormConfig,
    QuantizedNormConfig,
    broken_rules,
    misfit,
    norm_config,
    norm_space,
    one_pass_space,
    quantized_config,
    quantized_space,
)
from opmux_ck.norms.instances import TEMPLATES, Norm

GFX942 = parse_arch("gfx942")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"vector": 3}, "vector = 3 is not 1, 2, 4 or 8"),
        ({"repeats": 0}, "rows, threads and repeats = 1, 256, 0: one is less than 1"),
        ({"threads": 96}, "rows * threads = 96 is not a multiple of 64 up to 1024"),
        ({"rows": 8}, "rows * threads = 2048 is not a multiple of 64 up to 1024"),
        ({"rows": 8, "threads": 32}, "threads = 32 is not a multiple of 64"),
        ({"repeats": 9}, "repeats * vector = 72 is more than 64 elements a thread"),
    ],
)
def test_what_no_instance_can_be(fields, reason) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        NormConfig(**{"rows": 1, "threads": 256, "repeats": 2, **fields})
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("config", "columns", "reason"),
    [
        (NormConfig(1, 256, 2), 4097, "4097 columns are not a multiple of the vector, 8"),
        (NormConfig(1, 256, 2), 4104, "4104 columns do not fit into the tile of 4096"),
        (NormConfig(1, 256, 2, pads=False), 4088, "4088 columns do not fill the tile of 4096, and it does not pad"),
        (NormConfig(1, 256, 2, pads=False, two_passes=True), 8200,
         "8200 columns do not fill the tile of 4096, and it does not pad"),
        (NormConfig(1, 256, 2, pads=False, two_passes=True), 8192, None),
        (NormConfig(1, 256, 2), 8, None),
    ],
)  # fmt: skip
def test_what_does_not_fit_a_call(config, columns, reason) -> None:
    assert misfit(config, columns) == reason


@pytest.mark.parametrize(
    ("columns", "tile"),
    [(8, (4, 512)), (512, (4, 512)), (520, (1, 2048)), (4096, (1, 4096)), (8192, (1, 8192)), (16384, (1, 16384)),
     (16392, (1, 16384))],
)  # fmt: skip
def test_the_smallest_tile_that_holds_a_row(columns, tile) -> None:
    found = norm_config(GFX942, {"hidden": columns})
    assert (found.rows, found.columns, found.two_passes) == (*tile, columns > 16384)


@pytest.mark.parametrize("columns", [8, 1000, 4096, 5120, 100000])
def test_the_space_is_legal_without_repeats_and_has_the_default(columns) -> None:
    space = list(norm_space(GFX942, {"hidden": columns}))
    assert len(set(space)) == len(space) > 0
    assert all(misfit(config, columns) is None for config in space)
    assert norm_config(GFX942, {"hidden": columns}) in space


def test_the_names_tell_the_instances_apart() -> None:
    configs = [*TILES, NormConfig(1, 256, 1, vector=4), NormConfig(1, 256, 1, pads=False)]
    made = [Norm(*parts) for parts in itertools.product(TEMPLATES, ("bf16", "fp16"), ("bf16", "fp32"), configs)]
    assert len({one.name for one in made}) == len(made)
    codes = [Norm("rms_norm_quantize", "bf16", "bf16", TILES[0], code, block) for code, block in
             itertools.product(("int8", "fp8"), (0, 32, 128))]  # fmt: skip
    assert len({one.name for one in codes}) == len(codes)
    assert codes[0].name == "rms_norm_quantize_bf16_bf16_int8_row_b4x512_t4x64_v8_pad"
    assert Norm("rms_norm", "bf16", "fp32", TILES[-1]).name == "rms_norm_bf16_fp32_b1x16384_t1x1024_v8_pad_two"


def test_a_translation_unit_is_one_line_of_a_template() -> None:
    assert Norm("add_rms_norm", "fp16", "fp32", NormConfig(1, 256, 2, pads=False)).text() == (
        "// add_rms_norm_fp16_fp32_b1x4096_t1x256_v8\n"
        '#include "rms_norm.h"\n\n'
        "OPMUX_CK_ADD_RMS_NORM(ck_tile::fp16_t, float, 1, 256, 2, 8, false, false)\n"
    )


def test_a_quantised_norm_names_its_codes_and_their_block() -> None:
    assert Norm("rms_norm_quantize", "fp16", "fp16", QUANTIZED_TILES[0], "int8", 128).text() == (
        "// rms_norm_quantize_fp16_fp16_int8_128_b4x512_t4x64_v8_pad\n"
        '#include "norm_quantize.h"\n\n'
        "OPMUX_CK_RMS_NORM_QUANTIZE(ck_tile::fp16_t, ck_tile::fp16_t, ck_tile::int8_t, 128, 4, 64, 1, 8, true, false)\n"
    )


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"two_passes": True}, "two_passes: a row that is quantised is held whole"),
        ({"vector": 1}, "vector = 1: a block of 128 columns has more than 64 threads"),
    ],
)
def test_what_no_quantised_norm_can_be(fields, reason) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        QuantizedNormConfig(**{"rows": 1, "threads": 256, "repeats": 2, **fields})
    assert str(caught.value) == reason


@pytest.mark.parametrize("columns", [8, 1000, 4096, 16384])
def test_the_space_of_quantised_norms(columns) -> None:
    space = list(quantized_space(GFX942, {"hidden": columns}))
    assert len(set(space)) == len(space) > 0
    assert quantized_config(GFX942, {"hidden": columns}) in space


def test_every_default_keeps_the_rules() -> None:
    assert [list(broken_rules(tile)) for tile in TILES] == [[]] * len(TILES)


def test_a_sum_is_held_whole() -> None:
    assert not any(config.two_passes for config in one_pass_space(GFX942, {"hidden": 4096}))
