"""Sources: constants of the shape at hand, no headers, a name for each."""

from dataclasses import replace

import pytest

from opmux_deepgemm.configs import Config
from opmux_deepgemm.generation import source
from opmux_deepgemm.generation.source import Product, blocks_touched, constants, name, text

LARGE, SMALL = Config("large", 128, 160, 4, 2, 2, 8), Config("small", 8, 128, 4, 2, 4)
BF16, FP8 = Product("bfloat16", "bfloat16", 2112, 7168), Product("float8_e4m3fn", "float32", 576, 512, True)


@pytest.mark.parametrize("product", [BF16, FP8])
@pytest.mark.parametrize("config", [LARGE, SMALL])
def test_a_source_needs_no_header_and_has_one_kernel(product, config) -> None:
    found = text(product, config)
    assert "#include" not in found
    assert found.count("\nKERNEL(") == 1
    assert f"constexpr int N = {product.n};" in found


def test_the_multiplication_has_the_width_of_the_tile() -> None:
    assert "m64n160k16.f32.bf16.bf16" in text(BF16, LARGE)
    assert "m64n160k32.f32.e4m3.e4m3" in text(FP8, LARGE)
    assert "m64n8k16.f32.bf16.bf16" in text(BF16, SMALL)


def test_constants() -> None:
    assert constants(FP8, LARGE) == {
        "N": 576, "K": 512, "OPERAND_BYTES": 1, "OUT_BYTES": 4, "BIAS": 1, "SCALED": 1, "W_BY_ROW": 0,
        "ACCUMULATE": 0, "W_SCALE_ROWS": 5,
        "BLOCK_M": 128, "BLOCK_N": 160, "STAGES": 4, "CONSUMERS": 2, "ALTERNATE": 0, "CLUSTER": 2,
        "GROUP": 8, "SLICE_WIDTH": 128, "W_SCALES": 2, "X_ACROSS": 0, "W_ACROSS": 0,
        "PIECES": 0, "OVERLAP": 0, "SHARE_X": 0, "STAGED": 0,
    }  # fmt: skip
    assert constants(BF16, SMALL)["SPLIT"] == 4


@pytest.mark.parametrize(
    ("block_n", "blocks"), [(32, 1), (64, 1), (96, 2), (128, 1), (160, 2), (192, 2), (224, 3), (256, 2)]
)
def test_blocks_of_scales_that_a_tile_touches(block_n, blocks) -> None:
    assert blocks_touched(block_n) == blocks


def test_a_tile_over_three_blocks_of_scales_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^block_n = 224 expected one whose tiles touch two blocks .* at most, got 3$"
    ):
        constants(FP8, Config("large", 64, 224, 4, 1))
    assert constants(BF16, Config("large", 64, 224, 4, 1))["W_SCALES"] == 1


@pytest.mark.parametrize(
    "product", [FP8, Product("float8_e4m3fn", "float32", 64, 64, groups="ragged", accumulate=True)]
)
def test_results_of_4_bytes_are_not_staged(product) -> None:
    staged = replace(LARGE, staged=True)
    with pytest.raises(
        ValueError, match=r"^staged expected a result of 2 bytes, got float32; take a config without it$"
    ):
        constants(product, staged)
    assert constants(replace(product, out="bfloat16", groups="", accumulate=False), staged)["STAGED"] == 1


@pytest.mark.parametrize(
    ("product", "config", "reason"),
    [
        (
            Product("float8_e4m3fn", "float32", 64, 64, groups="ragged", accumulate=True),
            Config("large", 256, 192, 3, 2), "from codes expected .*threads of 96 sums at most, got 192",
        ),
        (
            Product("float8_e4m3fn", "float32", 64, 64, groups="ragged", accumulate=True), SMALL,
            "from codes expected the kernel 'large'",
        ),
        (Product("bfloat16", "float32", 64, 64, groups="masked", accumulate=True), LARGE, "expected ragged groups, "),
        (Product("bfloat16", "float32", 64, 64, groups="ragged", accumulate=True), LARGE, ".*no clusters, and block_n"),
    ],
)  # fmt: skip
def test_gradients_that_have_no_kernel(product, config, reason) -> None:
    with pytest.raises(ValueError, match=rf"^the gradient of weights {reason}"):
        constants(product, config)


def test_names_tell_kernels_apart() -> None:
    found = {name(product, config) for product in (BF16, FP8) for config in (LARGE, SMALL)}
    assert found == {
        "bf16_bfloat16_2112x7168_large_128x160_4_2_2", "bf16_bfloat16_2112x7168_small_8x128_4_2_4",
        "fp8_float32_576x512_bias_large_128x160_4_2_2", "fp8_float32_576x512_bias_small_8x128_4_2_4",
    }  # fmt: skip


def test_groups_are_a_kernel_of_their_own() -> None:
    ragged, masked = (Product("bfloat16", "bfloat16", 2112, 7168, groups=layout) for layout in ("ragged", "masked"))
    assert "#define GROUPS RAGGED\n" in text(ragged, LARGE)
    assert "#define GROUPS MASKED\n" in text(masked, LARGE)
    assert "#define GROUPS" not in text(BF16, LARGE)
    assert name(ragged, LARGE) == "bf16_bfloat16_2112x7168_ragged_large_128x160_4_2_2"
    for product, config in ((ragged, SMALL), (Product("bfloat16", "bfloat16", 8, 64, True, "ragged"), LARGE)):
        with pytest.raises(ValueError, match=r"^groups expected the kernel 'large' and no bias$"):
            constants(product, config)


def test_operands_across_k_are_a_kernel_of_their_own() -> None:
    across = Product("bfloat16", "bfloat16", 2112, 7168, x_across=True, w_across=True)
    config = Config("large", 128, 128, 4, 2, 2, 8)
    assert (constants(across, config)["X_ACROSS"], constants(across, config)["W_ACROSS"]) == (1, 1)
    assert name(across, config) == "bf16_bfloat16_2112x7168_x_across_w_across_large_128x128_4_2_2"
    with pytest.raises(ValueError, match=r"^operands that lie across k expected bfloat16$"):
        constants(Product("float8_e4m3fn", "bfloat16", 64, 64, w_across=True), config)
    with pytest.raises(ValueError, match=r"block_n / cluster a multiple of 64, got 'large', 160 / 2$"):
        constants(across, LARGE)
    with pytest.raises(
        ValueError, match=r"^operands that lie across k expected the kernel 'large' without share_x, .* got 'small'"
    ):
        constants(across, SMALL)


def test_weights_of_groups_across_k_are_copied_by_matrices() -> None:
    ragged = Product("bfloat16", "bfloat16", 2112, 7168, groups="ragged", w_across=True)
    config = Config("large", 128, 128, 4, 2, 2, 8)
    assert name(ragged, config) == "bf16_bfloat16_2112x7168_ragged_w_across_large_128x128_4_2_2"
    assert "cp.async.bulk.tensor.3d" in text(ragged, config)
    for other in (replace(ragged, w_across=False), replace(ragged, groups="")):
        assert "tensor.3d" not in text(other, config)
        assert "tma_load_of(w_at" not in text(other, config)


def test_rows_of_groups_across_k_are_a_kernel_of_their_own() -> None:
    config = Config("large", 128, 128, 4, 2, 2, 8)
    for layout in ("ragged", "masked"):
        product = Product("bfloat16", "bfloat16", 2112, 7168, groups=layout, x_across=True)
        found = text(product, config)
        assert name(product, config) == f"bf16_bfloat16_2112x7168_{layout}_x_across_large_128x128_4_2_2"
        assert "load_x(" in found
        assert "cp.async.bulk.tensor.3d" in found
        assert "tma_load_of(w_at" not in found
        with pytest.raises(ValueError, match=r"^x of groups that lies across k expected no staged results$"):
            constants(product, replace(config, staged=True))


GRADIENT = Product("bfloat16", "float32", 2112, 7168, groups="ragged", accumulate=True)


def test_turned_operands_of_gradients_are_a_kernel_of_their_own() -> None:
    config = Config("large", 128, 128, 4, 2)
    for dy, x in ((True, False), (False, True), (True, True)):
        product = replace(GRADIENT, dy_turned=dy, x_turned=x)
        found = text(product, config)
        assert (constants(product, config)["DY_TURNED"], constants(product, config)["X_TURNED"]) == (dy, x)
        assert "keep_rows" in found
        assert f"p, 1, 1, {int(not dy)}, {int(not x)};" in found  # which operand the matrix unit transposes
        suffix = "_dy_turned" * dy + "_x_turned" * x
        assert name(product, config) == f"bf16_float32_2112x7168_ragged_added{suffix}_large_128x128_4_2_1"
    assert "DY_TURNED" not in constants(GRADIENT, config)


@pytest.mark.parametrize(
    ("product", "reason"),
    [
        (replace(BF16, x_turned=True), "dy_turned and x_turned expected a gradient of weights"),
        *(
            (wrong, "the gradient of weights expected operands whose rows are next to each other as dy_turned or")
            for wrong in (replace(GRADIENT, x_across=True), replace(GRADIENT, dtype="float8_e4m3fn", dy_turned=True))
        ),
    ],
)
def test_what_cannot_be_turned(product, reason) -> None:
    with pytest.raises(ValueError, match=rf"^{reason}"):
        constants(product, Config("large", 128, 128, 4, 2))


@pytest.mark.parametrize("part", source.PARTS)
@pytest.mark.parametrize(
    "product",
    [
        BF16, FP8, Product("bfloat16", "bfloat16", 2112, 7168, groups="ragged"), GRADIENT,
        Product("bfloat16", "bfloat16", 2112, 7168, groups="masked", w_across=True),
        Product("bfloat16", "bfloat16", 2112, 7168, x_across=True, w_across=True),
    ],
)  # fmt: skip
def test_other_kernels_have_no_trace_of_a_part(part, product) -> None:
    found = text(product, Config("large", 128, 128, 4, 2))
    assert part not in found
    assert "walk.lead" not in found
    assert "TURNED" not in found


def test_a_part_is_taken_or_left_out() -> None:
    given = "a\n#ifdef TURNED_OPERANDS\nb\n#else   // TURNED_OPERANDS\nc\n#endif  // TURNED_OPERANDS\nd\n"
    assert source.with_parts(given, ["TURNED_OPERANDS"]) == "a\nb\nd\n"
    assert source.with_parts(given, ["GROUPS_X_ACROSS"]) == "a\nc\nd\n"
    assert source.with_parts("#ifdef GROUPS\na\n#endif\n", []) == "#ifdef GROUPS\na\n#endif\n"
    for file in ("large.cuh", "gradients.cuh"):
        for names in ((), source.PARTS):
            assert not any(part in source.with_parts(source.read(file), names) for part in source.PARTS)


def test_products_whose_scales_are_copied_are_kernels_of_their_own() -> None:
    config = replace(LARGE, copied_scales=True)
    assert (name(FP8, config), text(FP8, config)) == (name(FP8, LARGE), text(FP8, LARGE))  # threads load them
    copied = [replace(FP8, x_scales=lie, w_together=w) for lie in ("rows", "columns") for w in (False, True)]
    assert name(copied[0], config) == "fp8_float32_576x512_bias_scales_in_rows_large_128x160_4_2_2"
    assert name(copied[3], config) == "fp8_float32_576x512_bias_scales_in_columns_together_large_128x160_4_2_2"
    assert len({text(one, config) for one in (FP8, *copied)}) == 5
    for one in copied:
        assert (constants(one, config)["X_IN_ROWS"], constants(one, config)["W_TOGETHER"]) == (
            one.x_scales == "rows", one.w_together,
        )  # fmt: skip
    assert "tma_load_of" in text(replace(copied[0], bias=False, groups="masked"), config)
    assert "tma_load_of" not in text(copied[0], config).partition("KERNEL(")[0].partition("#ifdef GROUPS")[0]


def test_scales_that_cannot_be_copied() -> None:
    config = replace(LARGE, copied_scales=True)
    with pytest.raises(ValueError, match=r"^x_scales expected a config with copied_scales, got 'rows' without$"):
        constants(replace(FP8, x_scales="rows"), LARGE)
    for product in (FP8, replace(FP8, x_scales="rows")):
        with pytest.raises(
            ValueError,
            match=r"^copied_scales of a product that is not added expected pieces that do not overlap, got 128x160 in "
            r"pieces = 2; take other pieces or a config without$",
        ):
            constants(product, replace(config, pieces=2))
    added = Product("float8_e4m3fn", "float32", 576, 512, accumulate=True)
    for product in (BF16, replace(added, groups="ragged")):
        with pytest.raises(
            ValueError, match=r"^copied_scales expected a product of codes, which is no gradient of weights$"
        ):
            constants(product, config)
    for product in (replace(added, x_scales="rows"), replace(FP8, x_scales="rows", w_scales="rows")):
        with pytest.raises(
            ValueError,
            match=r"^w_scales expected x_scales of a product that is added, and these expect it, got '\w*' and",
        ):
            constants(product, config)
    with pytest.raises(
        ValueError, match=r"^copied_scales of a product that is added expected no clusters, got 2; take a config of one"
    ):
        constants(replace(added, x_scales="rows", w_scales="rows"), replace(config, cluster=2))


def test_what_is_added_by_copied_scales_is_a_kernel_of_its_own() -> None:
    added, config = Product("float8_e4m3fn", "float32", 576, 512, accumulate=True), replace(LARGE, cluster=1)
    copied = replace(config, copied_scales=True)
    loaded = [replace(added, n=n) for n in (576, 584)]
    for one in loaded:  # warps bring them, however they lie
        assert text(one, copied) == text(one, config)
    lie = {"x_scales": "columns", "w_scales": "columns"}
    assert (
        name(replace(added, **lie), copied)
        == "fp8_float32_576x512_added_scales_in_columns_and_columns_large_128x160_4_2_1"
    )
    found = [
        constants(replace(added, x_scales=x, w_scales=w), copied) for x, w in (("rows", "columns"), ("columns", "rows"))
    ]
    assert [(one["X_IN_ROWS"], one["W_IN_ROWS"]) for one in found] == [(1, 0), (0, 1)]
    assert "load_scales" not in text(replace(added, **lie), copied)


def test_what_is_added_is_a_kernel_of_its_own() -> None:
    added = Product("float8_e4m3fn", "float32", 576, 512, accumulate=True)
    found = constants(added, LARGE)
    assert (found["ACCUMULATE"], found["W_BY_ROW"], found["W_SCALES"]) == (1, 1, 1)
    assert name(added, LARGE) == "fp8_float32_576x512_added_large_128x160_4_2_2"
    for product, config in ((added, SMALL), (Product("float8_e4m3fn", "bfloat16", 8, 64, accumulate=True), LARGE)):
        with pytest.raises(ValueError, match=r"^a product that is added expected the kernel 'large', float32, no bias"):
            constants(product, config)
