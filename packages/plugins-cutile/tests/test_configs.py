"""The tiles of norms: which one a call gets, which ones the tuner tries, which ones there cannot be."""

import pytest

from opmux.plugin import parse_arch
from opmux_cutile.attention.configs import AttentionConfig, ForwardConfig, attention_config, attention_space
from opmux_cutile.attention.gathered.configs import gathered_config as gathered_heads_config
from opmux_cutile.attention.gathered.configs import gathered_space as gathered_heads_space
from opmux_cutile.attention.implementations import TILES
from opmux_cutile.attention.registers.configs import registers_config, registers_space
from opmux_cutile.gates.configs import GatedConfig, gated_config, gated_space
from opmux_cutile.norms.configs import (
    LONGEST,
    THREADS,
    NormConfig,
    add_layer_norm_config,
    add_norm_config,
    backward_config,
    layer_norm_config,
    norm_config,
    norm_space,
    tile_columns,
)
from opmux_cutile.paged.configs import PagedConfig
from opmux_cutile.paged.gathered.configs import gathered_codes_config, gathered_codes_space
from opmux_cutile.paged.gathered.configs import gathered_config as gathered_pages_config
from opmux_cutile.paged.gathered.configs import gathered_space as gathered_space_of_pages
from opmux_cutile.products.configs import LinearConfig, linear_config, linear_space
from opmux_cutile.products.gathered.configs import gathered_config, gathered_space
from opmux_cutile.quantization.configs import (
    NormedConfig,
    groups_config,
    groups_space,
    normed_config,
    normed_space,
)
from opmux_cutile.quantization.configs import rows_config as quantised_rows_config
from opmux_cutile.quantization.configs import rows_space as quantised_rows_space
from opmux_cutile.rope.configs import RopeConfig, rope_config, rope_space
from opmux_cutile.scaled.configs import ScaledConfig, scaled_config, scaled_space
from opmux_cutile.tiles import power_of_two, whole_vectors

ARCH = parse_arch("sm_90")


@pytest.mark.parametrize(("hidden", "rows"), [(1, 16), (64, 16), (100, 8), (512, 2), (1000, 1), (16384, 1)])
def test_short_rows_share_a_block(hidden, rows) -> None:
    assert norm_config(ARCH, {"hidden": hidden}) == NormConfig(rows)


@pytest.mark.parametrize(
    ("choice", "hidden", "config"),
    [
        (layer_norm_config, 512, NormConfig(2)),
        (layer_norm_config, 4096, NormConfig(1, 4)),
        (layer_norm_config, 8192, NormConfig(1)),
        (add_norm_config, 4096, NormConfig(1)),
        (add_norm_config, 7168, NormConfig(1, 2, 8)),
        (add_norm_config, 16384, NormConfig(1)),
        (add_layer_norm_config, 4096, NormConfig(1, 4)),
        (add_layer_norm_config, 7168, NormConfig(1, 2, 8)),
        (backward_config, 100, NormConfig(8)),
        (backward_config, 4096, NormConfig(1, 2, 8)),
        (backward_config, 7168, NormConfig(1, 1, 8)),
    ],
)
def test_other_norms_differ_where_it_was_measured(choice, hidden, config) -> None:
    assert choice(ARCH, {"hidden": hidden}) == config
    assert config in list(norm_space(ARCH, {"hidden": hidden}))


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89"])
def test_gradients_of_norms_have_one_block_before_hopper_where_two_would_spill(arch: str) -> None:
    assert backward_config(parse_arch(arch), {"hidden": 4096}) == NormConfig(1, 1, 8)
    assert backward_config(parse_arch(arch), {"hidden": 2048}) == NormConfig()


@pytest.mark.parametrize("hidden", [1, 2, 3, 5, 64, 4096])
def test_no_two_threads_hold_the_same_element(hidden) -> None:
    for config in norm_space(ARCH, {"hidden": hidden}):
        assert config.rows * tile_columns(config, hidden) >= THREADS
        assert tile_columns(config, hidden) >= hidden


@pytest.mark.parametrize(("width", "own"), [(64, True), (100, False), (1000, False), (1032, True), (4097, False)])
def test_odd_widths_share_a_kernel(width, own) -> None:
    assert whole_vectors(width) is own


@pytest.mark.parametrize(("heads", "half", "tokens"), [(32, 64, 2), (1, 64, 8), (4, 12, 8), (128, 64, 2), (1, 1, 64)])
def test_tokens_with_few_heads_share_a_block(heads, half, tokens) -> None:
    features = {"heads": heads, "kv_heads": 1, "head_dim": 2 * half, "half": half}
    found = rope_config(ARCH, features)
    assert found == RopeConfig(tokens, 512)
    assert found in list(rope_space(ARCH, features))
    assert found.heads(heads, power_of_two(half)) * tokens * power_of_two(half) <= found.elements


@pytest.mark.parametrize(
    ("dims", "config"),
    [
        ((64, 64), ForwardConfig(64, 64, 4, 4, AttentionConfig(64, 128, 4, 2))),
        ((40, 80), ForwardConfig(64, 128, 4, 2)),
        ((128, 128), ForwardConfig(64, 128, 4, 2)), ((192, 128), ForwardConfig(128, 64, 8)),
    ],
)  # fmt: skip
def test_the_tile_of_attention_on_hopper(dims, config) -> None:
    features = dict(zip(("head_dim", "value_dim"), dims, strict=True))
    assert attention_config(ARCH, features) == config
    assert next(attention_space(ARCH, features)) == config


def test_the_tile_of_a_call_of_few_blocks() -> None:
    config = attention_config(ARCH, {"head_dim": 64, "value_dim": 64})
    few = AttentionConfig(64, 128, 4, 2)
    assert config.tiles(264, True) == (few, config)
    assert config.tiles(265, True) == (config, few)
    assert config.tiles(265, False) == (few,)
    wide = ForwardConfig(64, 128, 4, 2)
    assert wide.tiles(1, True) == (wide,)


def test_tuning_keeps_the_tile_of_few_blocks() -> None:
    features = {"head_dim": 64, "value_dim": 64}
    few = attention_config(ARCH, features).few
    found = list(attention_space(ARCH, features))
    assert {config.few for config in found if config.block_m == 64} == {few}
    assert [(c.block_m, c.block_n, c.warps) for c in found if c.occupancy == 4] == [(64, 64, 4), (64, 32, 4)]


@pytest.mark.parametrize("arch", ["sm_120", "sm_121"])
def test_one_group_of_warps_where_both_operands_come_from_registers(arch) -> None:
    for dim, config in (
        (64, ForwardConfig(128, 128, 8)), (128, ForwardConfig(64, 64, 4)), ):  # fmt: skip
        features = {"head_dim": dim, "value_dim": 64}
        assert attention_config(parse_arch(arch), features) == config
        assert config in list(attention_space(parse_arch(arch), features))


@pytest.mark.parametrize(("dims", "queries", "keys"), [((64, 64), 64, 32), ((32, 128), 64, 64), ((128, 128), 64, 64)])
def test_narrow_heads_get_fewer_keys_where_threads_copy_them(dims, queries, keys) -> None:
    features = dict(zip(("head_dim", "value_dim"), dims, strict=True))
    found = gathered_heads_config(parse_arch("sm_80"), features)
    assert found == ForwardConfig(queries, keys, 4)
    tried = list(gathered_heads_space(parse_arch("sm_80"), features))
    assert tried.count(found) == 1
    assert len(set(tried)) == len(tried) > 3


def test_codes_have_fewer_queries_of_a_block_where_more_spill() -> None:
    features = {"head_dim": 64, "value_dim": 64, "page_size": 16}
    for arch in ("sm_80", "sm_89"):
        assert gathered_codes_config(parse_arch(arch), features) == PagedConfig(16, 32, 4)
    assert gathered_codes_config(parse_arch("sm_120"), features) == PagedConfig(32, 32, 4)


def test_wide_heads_that_threads_copy_have_two_groups_of_warps() -> None:
    features = {"head_dim": 192, "value_dim": 128}
    assert registers_config(parse_arch("sm_120"), features) == ForwardConfig(32, 32, 8)
    assert next(registers_space(parse_arch("sm_120"), features)) == ForwardConfig(32, 32, 8)
    for dim in (64, 128):
        features = {"head_dim": dim, "value_dim": 64}
        assert registers_config(parse_arch("sm_120"), features) == attention_config(parse_arch("sm_120"), features)
        assert registers_config(parse_arch("sm_120"), features) in list(registers_space(parse_arch("sm_120"), features))


@pytest.mark.parametrize(
    ("dims", "numbers", "codes"),
    [((16, 64), (16, 16), (16, 32)), ((64, 64), (64, 32), (16, 32)), ((128, 128), (64, 32), (16, 32)),
     ((192, 128), (32, 32), (16, 32)), ((16, 128), (64, 32), (16, 32))],
)  # fmt: skip
def test_tiles_of_pages_where_both_operands_come_from_registers(dims, numbers, codes) -> None:
    features = {"head_dim": dims[0], "value_dim": dims[1], "page_size": 16}
    for choice, space, sizes in (
        (gathered_pages_config, gathered_space_of_pages, numbers),
        (gathered_codes_config, gathered_codes_space, codes),
    ):
        found = choice(parse_arch("sm_80"), features)
        assert found == PagedConfig(*sizes, 4)
        tried = list(space(parse_arch("sm_80"), features))
        assert tried[0] == found
        assert len(set(tried)) == len(tried) > 3


@pytest.mark.parametrize(
    ("rows", "block"),
    [(1, (16, 64, 128)), (30, (32, 64, 64)), (64, (64, 64, 64)), (128, (64, 128, 64)), (300, (64, 128, 64)),
     (160, (64, 64, 64)), (8192, (128, 128, 64))],
)  # fmt: skip
def test_products_whose_operands_threads_copy_get_the_largest_tile_of_which_there_are_enough(rows, block) -> None:
    features = {"bucket(tokens, 8)": rows, "n": 4096, "k": 512}
    found = gathered_config(parse_arch("sm_80"), features)
    assert (found.block_m, found.block_n, found.block_k) == block
    assert found in list(gathered_space(parse_arch("sm_80"), features))


def test_the_space_has_the_choice_and_fits() -> None:
    for hidden in (1, 100, 4096, 16384):
        found = list(norm_space(ARCH, {"hidden": hidden}))
        assert norm_config(ARCH, {"hidden": hidden}) in found
        assert all(c.rows == 1 or c.rows * power_of_two(hidden) <= LONGEST for c in found)
        assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (NormConfig, (3,), "rows expected 1, 2, 4, 8 or 16, got 3"),
        (NormConfig, (1, 0, 2), "warps expected 0, 4 or 8, got 2"),
        (NormConfig, (1, 33), "occupancy expected 0 to 32, got 33"),
        (NormedConfig, (1, 0, 8, True), "occupancy expected 1 to 32 where rows are read ahead, got 0"),
        (GatedConfig, (3, 64), "rows expected a power of two up to 64, got 3"),
        (GatedConfig, (2, 8192), r"rows \* columns expected 8192 or less, got 16384"),
        (GatedConfig, (1, 64, -1), "occupancy expected 0 to 32, got -1"),
        (RopeConfig, (3,), "tokens expected a power of two from 1 to 64, got 3"),
        (RopeConfig, (1, 64), "elements expected a power of two from 128 to 8192, got 64"),
        (RopeConfig, (1, 128, 40), "occupancy expected 0 to 32, got 40"),
        (AttentionConfig, (100, 64), "block_m expected one of 16, 32, 64, 128, 256, got 100"),
        (AttentionConfig, (64, 64, 5), "warps expected one of 0, 4, 8, got 5"),
        (ForwardConfig, (64, 64, 4, 4, AttentionConfig(128, 64)), "few expected block_m of 64, got 128"),
        (LinearConfig, (100, 64, 64), "block_m expected one of 16, 32, 64, 128, 256, got 100"),
        (ScaledConfig, (64, 64, 128, 0, 1, 8, True), "block_n, block_k expected 128, 128 where turned, got 64, 128"),
        (ScaledConfig, (64, 128, 128, 0, 1, 8, False, 2), "occupancy expected 0, or up to 8 where turned, got 2"),
        (LinearConfig, (256, 256, 64), r"block_m \* block_n expected 32768 or less for 1 ctas"),
    ],
)
def test_a_config_that_there_cannot_be_is_refused(kind, given, message) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        kind(*given)


@pytest.mark.parametrize("n", [1, 77, 2048, 11008])
def test_the_space_of_gates_has_the_choice(n) -> None:
    found = list(gated_space(ARCH, {"n": n}))
    assert gated_config(ARCH, {"n": n}) in found or n == 1
    assert all(config.columns <= power_of_two(n) for config in found)


@pytest.mark.parametrize(
    ("arch", "rows", "block"),
    [("sm_90", 1, (16, 64)), ("sm_90", 30, (32, 128)), ("sm_90", 64, (64, 64)), ("sm_90", 128, (64, 128)),
     ("sm_90", 512, (128, 128)),
     ("sm_90", 8192, (256, 256)), ("sm_90", 1024, (128, 256)),
     ("sm_100", 8192, (256, 256)), ("sm_100", 1024, (128, 256)), ("sm_110", 8192, (128, 128)),
     ("sm_120", 8192, (128, 128))],
)  # fmt: skip
def test_products_get_the_largest_tile_of_which_there_are_enough(arch, rows, block) -> None:
    features = {"bucket(tokens, 8)": rows, "n": 4096, "k": 512}
    found = linear_config(parse_arch(arch), features)
    assert (found.block_m, found.block_n) == block
    assert found in list(linear_space(parse_arch(arch), features))


@pytest.mark.parametrize(
    ("rows", "block"), [(1, (16, 64)), (20, (32, 128)), (128, (64, 128)), (500, (64, 128)), (8192, (128, 128))]
)
def test_products_of_codes_step_by_128(rows, block) -> None:
    features = {"bucket(m, 8)": rows, "n": 2048, "k": 512, "k_blocks": 1}
    found = scaled_config(ARCH, features)
    assert (found.block_m, found.block_n, found.block_k) == (*block, 128)
    of_blocks = scaled_config(ARCH, features | {"k_blocks": 4})
    large = ScaledConfig(128, 128, 128, 8)
    assert of_blocks == (ScaledConfig(256, 128, 128, 8, 2) if rows == 8192 else large)
    long = scaled_config(ARCH, features | {"k": 1536, "k_blocks": 12})
    assert long == (ScaledConfig(64, 128, 128, group=16, turned=True, occupancy=2) if rows == 8192 else large)
    blackwell = parse_arch("sm_100")
    assert scaled_config(blackwell, features | {"k": 7168, "k_blocks": 56}) == large
    of_rows = scaled_config(blackwell, features | {"n": 4096})
    assert (of_rows == ScaledConfig(256, 256, 128, 8, 2)) == (rows == 8192)
    assert of_rows in list(scaled_space(blackwell, features | {"n": 4096}))
    tried = list(scaled_space(ARCH, features | {"k_blocks": 4}))
    assert of_blocks in tried
    assert all(config.block_m > 32 for config in tried)  # wrong on an H200
    if rows <= 32:
        assert scaled_config(ARCH, features | {"k": 128}) == large
        assert scaled_config(parse_arch("sm_120"), features | {"k_blocks": 4}) == large
    assert found in list(scaled_space(ARCH, features))


@pytest.mark.parametrize(
    ("block", "k", "config"),
    [
        ((1, 128), 77, GatedConfig(16, 128)),
        ((1, 32), 8192, GatedConfig(1, 2048)),
        ((1, -1), 300, GatedConfig(4, 512)),
        ((1, -1), 8192, GatedConfig(1, 8192, 3, 8)),
    ],
)
def test_a_block_of_quantisation_has_whole_groups(block, k, config) -> None:
    features = {"k": k, "block": block}
    assert groups_config(ARCH, features) == config
    assert config in list(groups_space(ARCH, features))


def test_a_block_of_a_quantised_norm_has_whole_rows() -> None:
    for hidden in (17, 4096, 8192, 16384):
        found = quantised_rows_config(ARCH, {"hidden": hidden, "block": (1, 128)})
        assert found in list(quantised_rows_space(ARCH, {"hidden": hidden, "block": (1, 128)}))
        few = {4096: NormConfig(1, 8), 8192: NormConfig(1, 4, 8)}
        assert found == few.get(hidden, norm_config(ARCH, {"hidden": hidden}))


@pytest.mark.parametrize(
    ("arch", "hidden", "block", "config"),
    [
        ("sm_90", 4096, (1, 128), NormedConfig(1, 4, 8, True)),
        ("sm_90", 2560, (1, -1), NormedConfig(1, 5, 0, True)),
        ("sm_90", 2048, (1, 128), NormedConfig(1)),
        ("sm_90", 8192, (1, 128), NormedConfig(1, 4, 8)),
        ("sm_100", 4096, (1, 128), NormedConfig(1, 8)),
    ],
)
def test_rows_of_a_norm_are_read_ahead_where_it_was_measured(arch, hidden, block, config) -> None:
    features = {"hidden": hidden, "block": block}
    assert normed_config(parse_arch(arch), features) == config
    assert config in list(normed_space(parse_arch(arch), features))


def test_powers_of_two() -> None:
    assert [power_of_two(n) for n in (1, 2, 3, 4096, 4097)] == [1, 2, 4, 4096, 8192]


def test_the_tiles_that_times_of_attention_are_predicted_by_are_the_heuristics() -> None:
    assert attention_config(ARCH, {"head_dim": 128, "value_dim": 128}).block_m == dict(TILES)["seq_q"]
