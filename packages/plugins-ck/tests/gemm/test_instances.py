"""Translation units and names."""

from dataclasses import replace

import torch

from opmux_ck.gemm.choice import BLOCK_TILES, CODES_TILES, TILES
from opmux_ck.gemm.configs import GemmConfig
from opmux_ck.gemm.targets import product_of, scaled_product_of

TILE = TILES[1]


def test_a_translation_unit_is_one_line_of_a_template() -> None:
    made = product_of(torch.bfloat16, True, 4096, TILE)
    assert made.text() == (
        "// linear_bf16_bf16_b128x128x64_w2x2_x32x32x16_v3l3_s4_padn_padk_bias\n"
        '#include "gemm.h"\n\n'
        "OPMUX_CK_LINEAR(ck_tile::bf16_t, ck_tile::bf16_t, 128, 128, 64, 2, 2, 32, 16, opmux_ck::V3, 2, 3, 4, true, "
        "true, true)\n"
    )


def test_a_translation_unit_of_codes() -> None:
    made = scaled_product_of(torch.int8, torch.float16, 4096, CODES_TILES[0])
    assert made.text() == (
        "// scaled_linear_int8_fp16_b128x128x128_w2x2_x32x32x16_v3l3_s8_padn_padk\n"
        '#include "scaled_gemm.h"\n\n'
        "OPMUX_CK_SCALED_LINEAR(ck_tile::int8_t, ck_tile::fp16_t, 128, 128, 128, 2, 2, 32, 16, 2, 3, 8, true, true)\n"
    )
    assert (made.kernel, made.signature) == ("scaled_linear", "pppppiiiiiiii")


def test_a_translation_unit_of_codes_with_scales_of_blocks() -> None:
    made = scaled_product_of(torch.float8_e4m3fnuz, torch.bfloat16, 4096, BLOCK_TILES[1])
    assert made.text() == (
        "// block_scaled_linear_fp8_bf16_b64x64x128_w2x2_x16x16x32_s8_padn_padk\n"
        '#include "block_scaled_gemm.h"\n\n'
        "OPMUX_CK_BLOCK_SCALED_LINEAR(ck_tile::fp8_t, ck_tile::bf16_t, 64, 64, 128, 2, 2, 16, 32, 8, true, true)\n"
    )
    assert (made.op, made.kernel, made.signature) == ("scaled_linear", "block_scaled_linear", "ppppp" + "i" * 16)


def test_the_names_tell_the_instances_apart() -> None:
    configs = [
        TILE,
        replace(TILE, store=4),
        replace(TILE, pads_n=False),
        replace(TILE, pads_k=False),
        replace(TILE, k=32),
        replace(TILE, k=32, pipeline="mem"),
        replace(TILE, split_k=2),
        GemmConfig(128, 128, 64, 2, 2, 32, 8),
        GemmConfig(128, 128, 64, 2, 2, 16, 32),
    ]
    made = {
        product_of(dtype, bias, k, config)
        for config in configs
        for dtype in (torch.bfloat16, torch.float16)
        for bias in (False, True)
        for k in (64, 128, 4096)
    }
    texts = {one.text().partition("\n")[2] for one in made}
    assert len({one.name for one in made}) == len(texts)


def test_parts_of_k_are_summed_in_float32_before_the_bias() -> None:
    made = product_of(torch.float16, True, 4096, replace(TILE, split_k=4))
    assert (made.x, made.out, made.bias, made.store) == ("fp16", "fp32", False, 4)


def test_a_bias_is_added_to_what_a_thread_has_side_by_side() -> None:
    assert [product_of(torch.float16, True, 64, replace(TILE, store=store)).store for store in (8, 4, 2, 1)] == [
        4, 4, 1, 1,
    ]  # fmt: skip
