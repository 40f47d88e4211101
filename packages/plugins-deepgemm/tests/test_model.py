"""The cost model: every config is legal, the choice follows the shape, and times are those that were measured."""

from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
import torch

from opmux.plugin import parse_arch
from opmux.tuning.measured import MeasuredRow, read_measured
from opmux_deepgemm import gradient_model, model, plugin
from opmux_deepgemm.configs import SHARED_BYTES, Config, most_stages
from opmux_deepgemm.gradient_model import scored_gradients
from opmux_deepgemm.grids import clusters, grid_of
from opmux_deepgemm.model import predict, scored
from opmux_deepgemm.space import Sizes, untimed

SHAPES = [(m, n, k) for m in (1, 9, 64, 128, 129, 4096, 100_000) for n, k in ((8, 16), (576, 7168), (2112, 512))]
SM90 = parse_arch("sm_90")


def sizes(m: int, n: int, k: int, scaled: bool) -> Sizes:
    return Sizes(m, n, k if scaled else 2 * k, scaled)


def predicted(row: MeasuredRow) -> float:
    """The model's time of a tuned row's call and config, in microseconds."""
    assert row.config is not None
    config, of = Config(**row.config), row.dims
    if row.op == "grouped_weight_grad":
        return gradient_model.predict(of["m"], of["n"], of["k"], of["groups"], config)
    scaled, added = "scaled" in row.op, row.op.endswith("accumulate")
    m, k_bytes = of.get("m", of.get("tokens", 0)), of["k"] if scaled else 2 * of["k"]
    return predict(Sizes(m, of["n"], k_bytes, scaled, of.get("groups", 0), added), config)


def ratios() -> dict[str, list[float]]:
    """By op, predicted over measured times of the tuned rows that are shipped with their configs.

    Counts of masked rows are the tuner's own, no two alike. Codes whose gradients are taken are copied first.
    """
    (folder,) = plugin.opmux_tuned_records()
    found: dict[str, list[float]] = {}
    for row in (row for path in Path(folder).iterdir() for row in read_measured(path).rows):
        own = row.implementation == "deepgemm" and row.config is not None
        if own and "masked" not in row.op and row.op != "scaled_grouped_weight_grad":
            found.setdefault(row.op, []).append(predicted(row) / row.time_us)
    return found


def test_predicted_times_are_those_of_the_shipped_rows() -> None:
    every = [abs(ratio - 1) for of_op in ratios().values() for ratio in of_op]
    assert len(every) > 100
    assert median(every) < 0.05
    assert max(every) < 0.3


def test_the_times_of_no_op_are_shifted() -> None:
    for op, of_op in ratios().items():
        assert 0.9 < median(of_op) < 1.1, op


def test_what_is_added_to_in_memory_takes_the_time_of_its_sums() -> None:
    """Of few rows of many groups nothing else counts: on an H200 these took 861 us."""
    assert scored_gradients(2048, 4096, 2048, 32)[0].time == pytest.approx(861, rel=0.05)


def test_few_tiles_of_up_to_256_rows_are_cut_along_k() -> None:
    """What was faster on an H200: 9.7 us beside 15.6 in bfloat16, 7.5 beside 9.7 and 14.4 beside 15.4 in codes."""
    for m, n, k, scaled in ((192, 576, 7168, False), (128, 576, 7168, True), (64, 4096, 7168, True)):
        config = scored(sizes(m, n, k, scaled))[0].config
        assert config.kernel == "small"
        assert config.cluster > 1
    assert scored(sizes(128, 7168, 16384, True))[0].config.kernel == "large"
    assert scored(sizes(256, 4096, 7168, False))[0].config.kernel == "large"


def test_the_last_tile_of_a_product_reaches_beyond_no_row() -> None:
    tall, many = Config("large", 128, 80, 7, 2, group=8), Sizes(237, 5120, 8704, True)
    for rows in (71, 129, 137):
        few = Sizes(rows, 5120, 8704, True)
        assert model.empty_rows(few, tall) == 0
        assert predict(few, tall) <= predict(many, tall)
    assert model.empty_rows(Sizes(257, 5120, 8704, True), replace(tall, cluster=2)) == 0
    assert model.empty_rows(Sizes(137, 5120, 8704, True, groups=4), tall) == 0


def test_tiles_with_many_rows_beyond_the_last_are_slow() -> None:
    """On an H200 137 rows took 44.8 us in such tiles of 128 and 27.5 in tiles of 64, 237 rows 28.6 in tiles of 128."""
    tall, copied = Config("large", 128, 80, 7, 2, group=8), Config("large", 128, 80, 6, 2, group=8, copied_scales=True)
    few, many = (Sizes(rows, 5120, 8704, True) for rows in (137, 237))
    assert predict(few, copied) > 1.4 * predict(many, copied)
    assert model.empty_rows(few, copied) == 119 * 64 * 68
    assert model.empty_rows(Sizes(137, 5120, 8704, True, added=True), tall) == 119 * 64 * 68
    assert model.empty_rows(Sizes(137, 5120, 8704, False, x_across=True), tall) == 119 * 64 * 68
    shared = Config("large", 128, 80, 7, 2, 2, 8)
    assert model.empty_rows(Sizes(257, 5120, 8704, True, added=True), shared) == 255 * 64 * 68


def test_two_blocks_that_share_rows_of_x_save_no_empty_ones() -> None:
    """On an H200 137 rows of 17472 x 8064 took 88.0 us in such tiles of 128x160 by two blocks, 70.7 by four."""
    few = Sizes(71, 17472, 8064, True)
    two, four = (Config("large", 128, 160, 5, 2, blocks, 8, share_x=True) for blocks in (2, 4))
    assert model.empty_rows(few, two) == 57 * 110 * 63
    assert model.empty_rows(few, four) == 57 * 110 * 63 / 4
    assert model.empty_rows(Sizes(137, 17472, 8064, True), two) == 0


def test_gradients_take_a_legal_config_and_more_of_them_more_time() -> None:
    for shape in ((1, 8, 8, 4), (4096, 4096, 7168, 4), (300, 72, 136, 64)):
        found = scored_gradients(*shape)
        assert [one.time for one in found] == sorted(one.time for one in found)
        for _, config in found:
            assert config.block_n % 64 == 0
            assert config.shared_bytes(4) <= SHARED_BYTES
    times = [scored_gradients(*shape)[0].time for shape in ((4096, 4096, 2048, 4), (8192, 4096, 2048, 4))]
    assert times[0] < times[1]


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_config_is_legal_and_appears_once(shape, scaled) -> None:
    found = [one.config for one in scored(sizes(*shape, scaled))]
    assert found
    assert len(set(found)) == len(found)
    for config in found:
        assert config.shared_bytes(4) <= SHARED_BYTES
        held = config.piece_values * (2 if config.overlaps else 1) if scaled and config.kernel == "large" else 0
        assert config.values + held <= 192


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_fastest_comes_first_and_none_beats_memory(shape, scaled) -> None:
    wanted = sizes(*shape, scaled)
    times = [one.time for one in scored(wanted)]
    assert times == sorted(times)
    m, n, _ = shape
    assert times[0] >= ((m + n) * wanted.k_bytes + 2 * m * n) / model.BANDWIDTH


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("m", [17, 65, 100, 128, 137, 256])
def test_the_kernel_for_few_rows_has_up_to_four_tiles_of_them(m, scaled) -> None:
    found = [one.config for one in scored(sizes(m, 2112, 7168, scaled)) if one.config.kernel == "small"]
    tiles = {-(-m // config.block_m) for config in found}
    assert tiles <= {1, 2, 3, 4}
    assert len(tiles) > 1 or m == 17 or (m == 256 and scaled)
    assert all(config.block_m <= (64 if scaled else 128) for config in found)
    assert all(config.block_m > 16 for config in found)


def test_more_rows_and_other_products_have_no_such_tiles() -> None:
    for wanted in (
        Sizes(257, 2112, 7168, True), Sizes(128, 2112, 7168, True, 4),
        Sizes(128, 2112, 7168, True, added=True), Sizes(128, 2112, 14336, False, w_across=True),
    ):  # fmt: skip
        assert {one.config.kernel for one in scored(wanted)} == {"large"}


def test_tuning_also_tries_the_persistent_kernel_for_17_to_32_rows_of_codes() -> None:
    for m, scaled, more in (
        (16, True, False),
        (17, True, True),
        (32, True, True),
        (33, True, False),
        (17, False, False),
    ):
        wanted = sizes(m, 2112, 7168, scaled)
        extra, taken = list(untimed(wanted)), [one.config for one in scored(wanted)]
        assert bool([config for config in extra if not config.copied_scales]) == more
        assert {config.kernel for config in extra} <= {"large"}
        found = list(model.tried(wanted))
        assert found[0] == taken[0]
        assert len(found) == len(set(found)) == len({*extra, *taken})
        times = [predict(wanted, config) for config in found[1:]]
        assert times == sorted(times)


def test_many_rows_of_codes_have_copied_scales() -> None:
    for wanted, more in (
        (Sizes(4096, 7168, 2048, True), True), (Sizes(32768, 4096, 2048, True, 8), True),
        (Sizes(6144, 4096, 2048, True, 32), True), (Sizes(4096, 7168, 1664, True), False),
        (Sizes(128, 2112, 7168, True), False), (Sizes(640, 4096, 2048, True, 32), False),
        (Sizes(4096, 7168, 4096, False), False), (Sizes(4096, 4096, 7168, True, added=True), True),
        (Sizes(256, 4096, 7168, True, added=True), False), (Sizes(4096, 4096, 400, True, added=True), True),
    ):  # fmt: skip
        every = [one.config for one in scored(wanted)]
        copied = [config for config in every if config.copied_scales]
        assert bool(copied) == more
        assert all(wanted.added for config in untimed(wanted) if config.copied_scales)
        assert {config.group for config in copied} <= {8, 16}
        assert not wanted.groups or all(config.group == 8 for config in copied)
        assert not more or wanted.groups or every[0].copied_scales
    tall = [one.config for one in scored(Sizes(32768, 4096, 2048, True, 8)) if one.config.block_m == 256]
    assert tall
    assert all(config.copied_scales for config in tall)


def test_tall_narrow_tiles_that_overlap_do_without_staged_results() -> None:
    # 2214 x 2304 x 4352 on an H200: tiles of 256x80 took 52.4 us, those of 128x192 40.4
    product = Sizes(2214, 2304, 4352, True)
    tall = Config("large", 256, 80, 4, 2, 1, 8, pieces=1, staged=True)
    assert predict(product, tall) == pytest.approx(52.4, rel=0.05)
    assert not scored(product)[0].config.overlaps


def test_what_is_added_takes_tiles_that_were_among_the_fastest() -> None:
    """On an H100 these took 137, 253, 951, 248, 59, 27 and 87 us; before 159, 283, 1087, 298, 70, 33 and 106."""
    for m, n, k, tile in (
        (2112, 4096, 7168, (128, 192, 0)), (4096, 4096, 7168, (128, 128, 1)), (7168, 4096, 16384, (128, 128, 1)),
        (4799, 1920, 13952, (128, 192, 0)), (1032, 4096, 4096, (128, 192, 0)), (512, 4096, 4096, (128, 128, 1)),
        (7415, 1792, 2176, (128, 128, 1)),
    ):  # fmt: skip
        config = scored(Sizes(m, n, k, True, added=True))[0].config
        assert config.copied_scales
        assert (config.block_m, config.block_n, config.pieces) == tile


def test_scales_are_copied_where_a_slot_is_not_filled_too_early() -> None:
    for k, fewest in ((512, 2), (640, 2), (1024, 2)):
        found = [one.config for one in scored(Sizes(2048, 4096, k, True, added=True)) if one.config.copied_scales]
        assert found
        assert k % 512 == 0 or all(config.stages < -(-k // 128) for config in found)
        assert min(config.stages for config in found) >= fewest


@pytest.mark.parametrize("scaled", [False, True])
def test_many_rows_take_the_persistent_kernel_and_few_the_other(scaled) -> None:
    assert scored(sizes(4096, 4096, 7168, scaled))[0].config.kernel == "large"
    assert scored(sizes(1, 4096, 7168, scaled))[0].config.kernel == "small"


def test_few_tiles_are_cut_along_k() -> None:
    few, many = (scored(sizes(1, n, 7168, True))[0].config for n in (576, 24576))
    assert few.cluster > many.cluster
    assert scored(sizes(1, 576, 128, True))[0].config.cluster == 1  # there is but one block of k


def test_more_work_takes_more_time() -> None:
    config = Config("large", 128, 128, 4, 2)
    base = predict(sizes(2048, 2048, 2048, False), config)
    for larger in ((4096, 2048, 2048), (2048, 4096, 2048), (2048, 2048, 4096)):
        assert predict(sizes(*larger, False), config) > base


def test_a_wave_that_is_not_full_counts_whole() -> None:
    config = Config("large", 128, 128, 4, 2)
    full, over = (predict(sizes(128 * rows, 128 * 12, 1024, False), config) for rows in (11, 12))
    assert over > 1.3 * full  # 132 and 144 tiles


def test_blocks_cover_the_product() -> None:
    large, pair = Config("large", 128, 192, 4, 2), Config("large", 128, 192, 4, 2, cluster=2)
    small = Config("small", 16, 64, 4, 1, cluster=4)
    assert clusters(large, 300, 400) == 9
    assert clusters(pair, 300, 400) == 6
    assert clusters(small, 17, 200) == 8
    assert grid_of(large, 300, 400, 132) == (9, 1, 1)
    assert grid_of(large, 4096, 4096, 132) == (132, 1, 1)
    assert grid_of(pair, 4096, 4096, 131) == (130, 1, 1)
    assert grid_of(small, 17, 200, 132) == (16, 2, 1)


def test_features_become_sizes() -> None:
    features = {"bucket(tokens, 8)": 4096, "n": 2112, "k": 7168}
    assert model.linear(SM90, features) == scored(Sizes(4096, 2112, 14336, False))[0].config
    assert next(model.linear_space(SM90, features)) == model.linear(SM90, features)
    features = {"bucket(m, 8)": 16, "bucket(batch)": 2, "n": 2112, "k": 7168}
    assert model.scaled_linear(SM90, features) == scored(Sizes(64, 2112, 7168, True))[0].config
    assert next(model.scaled_linear_space(SM90, features)) == model.scaled_linear(SM90, features)


def test_an_empty_product_has_a_config() -> None:
    assert model.linear(SM90, {"bucket(tokens, 8)": 0, "n": 8, "k": 8}).kernel == "small"


def test_groups_take_the_persistent_kernel_and_tiles_of_their_own_rows() -> None:
    few, many = (scored(Sizes(32 * rows, 4096, 4096, True, 32)) for rows in (20, 1024))
    assert {one.config.kernel for one in (*few, *many)} == {"large"}
    assert few[0].config.block_m == 64
    assert many[0].config.block_m > 64
    assert all(one.config.w_share == 1 for one in few)


def test_fewer_rows_than_groups_are_in_as_many_groups() -> None:
    """Else tiles are as wide as where every group has rows, and most multiprocessors have none."""
    features = {"groups": 128, "n": 1536, "k": 2048, "bucket(m, 8)": 8}
    assert model.grouped_linear(SM90, features) == scored(Sizes(8, 1536, 4096, False, 8))[0].config
    assert scored(Sizes(8, 1536, 4096, False, 8))[0].config != scored(Sizes(8, 1536, 4096, False, 128))[0].config


@pytest.mark.parametrize("scaled", [False, True])
def test_groups_have_no_narrow_tiles(scaled: bool) -> None:
    """But where w has no more rows than a narrow one."""
    for n, least in ((512, 32), (24, 32), (16, 16), (8, 16)):
        assert min(one.config.block_n for one in scored(Sizes(3, n, 4096, scaled, 3))) == least
    assert min(one.config.block_n for one in scored(Sizes(40, 512, 4096, scaled))) == 16


def test_features_of_groups_become_sizes() -> None:
    shape = {"groups": 8, "n": 2112, "k": 7168}
    of_ragged, of_masked = shape | {"bucket(m, 8)": 4096}, shape | {"bucket(expected_m, 8)": 512}
    wanted = scored(Sizes(4096, 2112, 14336, False, 8))[0].config
    assert model.grouped_linear(SM90, of_ragged) == model.masked_grouped_linear(SM90, of_masked) == wanted
    assert next(model.masked_grouped_linear_space(SM90, of_masked)) == wanted
    wanted = scored(Sizes(4096, 2112, 7168, True, 8))[0].config
    assert model.scaled_grouped_linear(SM90, of_ragged) == wanted
    assert next(model.scaled_masked_grouped_linear_space(SM90, of_masked)) == wanted


@pytest.mark.parametrize(
    ("op", "features"),
    [
        ("scaled_linear", {"bucket(m, 8)": 4096, "bucket(batch)": 0, "n": 2112, "k": 7168}),
        ("scaled_grouped_linear", {"bucket(m, 8)": 32768, "groups": 4, "n": 7168, "k": 3072}),
        ("scaled_masked_grouped_linear", {"bucket(expected_m, 8)": 1024, "groups": 6, "n": 4096, "k": 4096}),
    ],
)
def test_a_float32_result_is_not_staged_and_keeps_all_stages(op, features) -> None:
    space = getattr(model, f"{op}_space")
    half, whole = (features | {"out_dtype": dtype} for dtype in (torch.bfloat16, torch.float32))
    assert any(config.staged for config in space(SM90, half))
    found = list(space(SM90, whole))
    assert found == [config for config in space(SM90, half) if not config.staged]
    assert getattr(model, op)(SM90, whole) == found[0]
    assert not any(one.config.staged for one in getattr(model, f"{op}_scores")(SM90, whole))
    assert found[0].stages == most_stages(
        "large", found[0].block_m, found[0].block_n, found[0].consumers, copied_scales=found[0].copied_scales
    )


def test_no_groups_and_no_rows_have_a_config() -> None:
    empty = {"groups": 0, "n": 8, "k": 16, "bucket(m, 8)": 0, "bucket(expected_m, 8)": 0}
    assert model.grouped_linear(SM90, empty).kernel == model.scaled_masked_grouped_linear(SM90, empty).kernel == "large"


def test_a_product_that_is_added_takes_the_persistent_kernel_for_any_rows() -> None:
    features = {"bucket(m, 8)": 8, "n": 2112, "k": 7168}
    config = model.scaled_linear_accumulate(SM90, features)
    assert config.kernel == "large"
    assert next(model.scaled_linear_accumulate_space(SM90, features)) == config
    for one in scored(Sizes(4096, 2112, 7168, True, added=True)):
        assert one.config.shared_bytes(4, row_scales=True) <= SHARED_BYTES
