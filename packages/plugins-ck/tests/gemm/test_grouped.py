"""Products of groups of rows: the tile, the instance, and why the records refuse a call."""

import pytest
import torch

import opmux
from opmux.plugin import parse_arch
from opmux_ck.gemm.choice import (
    FEW_ROWS_OF_GROUPS,
    GROUPED_BLOCK_TILES,
    GROUPED_CODES_TILES,
    GROUPED_TILES,
    grouped_blocks_config,
    grouped_blocks_space,
    grouped_codes_config,
    grouped_codes_space,
    grouped_config,
    grouped_space,
)
from opmux_ck.gemm.configs import GroupedConfig, misfit
from opmux_ck.gemm.grouped_targets import MOST_STRIDE, _near, grouped_product_of

GFX942 = parse_arch("gfx942")


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("features", "tile"),
    [
        ({"bucket(m)": 12, "groups": 8}, GROUPED_TILES[0]),
        ({"bucket(m)": 9, "groups": 8}, GROUPED_TILES[1]),
        ({"bucket(m)": 7, "groups": 8}, FEW_ROWS_OF_GROUPS),
        ({"bucket(m)": 0, "groups": 0}, FEW_ROWS_OF_GROUPS),
        ({"bucket(expected_m)": 5}, GROUPED_TILES[1]),
        ({"bucket(expected_m)": 4}, FEW_ROWS_OF_GROUPS),
    ],
)
def test_the_largest_tile_that_a_group_fills_on_average(features, tile) -> None:
    sizes = {**features, "n": 4096, "k": 2048}
    found = grouped_config(GFX942, sizes)
    assert (type(found), found.m, found.n, found.pads_n, found.pads_k) == (GroupedConfig, tile.m, tile.n, False, False)
    space = list(grouped_space(GFX942, sizes))
    assert len(space) == len(set(space)) > 0
    assert all(misfit(one, 4096, 2048) is None for one in space)


@pytest.mark.parametrize(
    ("config", "space", "tiles"),
    [
        (grouped_codes_config, grouped_codes_space, GROUPED_CODES_TILES),
        (grouped_blocks_config, grouped_blocks_space, GROUPED_BLOCK_TILES),
    ],
)
def test_the_tile_of_codes(config, space, tiles) -> None:
    for expected_m, tile in ((4, tiles[0]), (6, tiles[2]), (9, tiles[1])):
        sizes = {"bucket(expected_m)": expected_m, "n": 4096, "k": 2048}
        found = config(GFX942, sizes)
        assert (type(found), found.m) == (type(tile), tile.m)
        legal = list(space(GFX942, sizes))
        assert found in legal
        assert len(legal) == len(set(legal))


def test_a_translation_unit_of_codes_in_groups() -> None:
    made = grouped_product_of(torch.int8, 4096, GROUPED_CODES_TILES[1], torch.bfloat16)
    assert made.text() == (
        "// scaled_grouped_linear_int8_bf16_b128x128x128_w2x2_x32x32x16_v3l3_s8_padn_padk\n"
        '#include "scaled_grouped_gemm.h"\n\n'
        "OPMUX_CK_SCALED_GROUPED_LINEAR(ck_tile::int8_t, ck_tile::bf16_t, 128, 128, 128, 2, 2, 32, 16, 2, 3, 8, "
        "true, true)\n"
    )
    assert (made.op, made.kernel, made.signature) == (*["scaled_grouped_linear"] * 2, "p" * 7 + "i" * 8)
    made = grouped_product_of(torch.int8, 4096, GROUPED_BLOCK_TILES[1], torch.float16)
    assert made.text() == (
        "// block_scaled_grouped_linear_int8_fp16_b128x128x128_w2x2_x32x32x16_s8_padn_padk\n"
        '#include "scaled_grouped_gemm.h"\n\n'
        "OPMUX_CK_BLOCK_SCALED_GROUPED_LINEAR(ck_tile::int8_t, ck_tile::fp16_t, 128, 128, 128, 2, 2, 32, 16, 8, "
        "true, true)\n"
    )
    assert (made.op, made.signature) == ("scaled_grouped_linear", "p" * 7 + "i" * 16)


def test_a_translation_unit_of_groups() -> None:
    made = grouped_product_of(torch.bfloat16, 4096, GROUPED_TILES[1])
    assert made.text() == (
        "// grouped_linear_bf16_bf16_b64x64x128_w2x2_x16x16x32_v3l3_s8_padn_padk\n"
        '#include "grouped_gemm.h"\n\n'
        "OPMUX_CK_GROUPED_LINEAR(ck_tile::bf16_t, ck_tile::bf16_t, 64, 64, 128, 2, 2, 16, 32, opmux_ck::V3, 2, 3, 8, "
        "true, true)\n"
    )
    assert (made.op, made.kernel, made.signature) == ("grouped_linear", "grouped_linear", "ppppp" + "i" * 8)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (("v4", 1), "pipeline = 'v4' is not one of v3, mem"),
        (("v3", 2), "split_k = 2 is more than 1"),
    ],
)
def test_what_no_instance_of_groups_can_be(fields, reason) -> None:
    pipeline, split = fields
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        GroupedConfig(64, 64, 64, 2, 2, 32, 8, pipeline, split_k=split)
    assert str(caught.value) == reason


def explained(x: torch.Tensor, w: torch.Tensor) -> str:
    offsets = meta(len(w) + 1, dtype=torch.int32)
    explanation = opmux.explain(opmux.grouped_linear, x, w, offsets, arch="gfx942")
    return next(c.reason for c in explanation.candidates if c.name == "ck")


def test_explain_shows_the_instance() -> None:
    assert explained(meta(4096, 2048), meta(8, 512, 2048)).startswith(
        "priority 9; m 128, n 128, k 64, waves_m 2, waves_n 2, mfma 32, mfma_k 16, pipeline v3, store 8, "
    )


@pytest.mark.parametrize(
    ("x", "w", "reason"),
    [
        (
            meta(4, 64, dtype=torch.float32),
            meta(2, 8, 64, dtype=torch.float32),
            "x is float32, takes bfloat16, float16",
        ),
        (meta(4, 60), meta(2, 8, 60), "k = 60 is not a multiple of 8"),
        (meta(4, 128)[:, ::2], meta(2, 8, 64), "the last stride of x is not 1: strides [128, 2]"),
        (meta(4, 64), meta(2, 8, 68)[..., :64], "w is not aligned to 16 bytes"),
    ],
)
def test_refusals(x, w, reason) -> None:
    assert explained(x, w) == reason


FNUZ = torch.float8_e4m3fnuz
KEPT = {"out_dtype": torch.bfloat16}


@pytest.mark.parametrize(
    ("dtype", "scales", "options", "reasons"),
    [
        (FNUZ, ((40, 1), (2, 256, 1)), KEPT, {"channels": "priority 9;", "blocks": "x_scale is [40, 1], takes one "}),
        (torch.int8, ((40, 2), (2, 2, 2)), KEPT, {"channels": "x_scale is [40, 2], takes", "blocks": "priority 9;"}),
        (torch.float8_e4m3fn, ((40, 1), (2, 256, 1)), KEPT, {"channels": "x is float8_e4m3fn, takes float8_e4m3fnuz"}),
        (FNUZ, ((40, 2), (2, 256, 2)), KEPT, {"blocks": "w_scale is [2, 256, 2], takes one scale per [1, 128, 128]"}),
        (FNUZ, ((40, 1), (2, 256, 1)), {"out_dtype": torch.float32},
         {"channels": "out_dtype is float32, takes bfloat16, float16"}),
    ],
)  # fmt: skip
def test_groups_of_codes(dtype, scales, options, reasons) -> None:
    x_scale, w_scale = (meta(*shape, dtype=torch.float32) for shape in scales)
    x, w = meta(40, 256, dtype=dtype), meta(2, 256, 256, dtype=dtype)
    offsets = meta(3, dtype=torch.int32)
    explanation = opmux.explain(opmux.scaled_grouped_linear, x, w, offsets, x_scale, w_scale, arch="gfx942", **options)
    found = {c.name: c.reason for c in explanation.candidates}
    for name, reason in reasons.items():
        assert found[f"ck:{name}_gfx942"].startswith(reason), found
    masked = opmux.explain(
        opmux.scaled_masked_grouped_linear, x.view(2, 20, 256), w, offsets[1:], x_scale.view(2, 20, -1), w_scale,
        expected_m=7, arch="gfx942", **options,
    )  # fmt: skip
    found = {c.name: c.reason for c in masked.candidates}
    assert all(found[f"ck:{name}_gfx942"][:9] == reason[:9] for name, reason in reasons.items()), found


def test_rows_too_far_apart_for_a_tile_are_copied() -> None:
    far = torch.empty_strided((4, 64), (MOST_STRIDE + 1, 1), dtype=torch.bfloat16, device="meta")
    assert _near(far).stride() == (64, 1)
    near = torch.empty_strided((4, 64), (MOST_STRIDE, 1), dtype=torch.bfloat16, device="meta")
    assert _near(near) is near
