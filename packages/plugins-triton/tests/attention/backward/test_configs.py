"""Launch parameters of attention's backward."""

from dataclasses import replace

import pytest

from opmux.plugin import parse_arch
from opmux_triton.archs import PORTABLE, wave_size
from opmux_triton.attention.backward import configs

DIMS = (1, 8, 64, 80, 128, 192, 256)


@pytest.mark.parametrize("name", PORTABLE)
def test_tiles_shrink_as_heads_widen(name: str) -> None:
    arch, sizes = parse_arch(name), []
    for dim in DIMS:
        made = configs.backward_config(arch, {"head_dim": dim, "value_dim": 64})
        tiles = (made.keys_values, made.queries, made.keys_values_capped, made.queries_capped)
        assert all(tile.num_warps * wave_size(name) <= 1024 for tile in tiles)
        assert made.keys_values.block_n >= made.keys_values.block_m
        assert made.queries.block_m >= made.queries.block_n
        assert made.repair_keys_values.block_n <= made.keys_values.block_n
        capped = made.keys_values_capped
        sizes.append(capped.block_m * capped.block_n)
        assert sizes[-1] <= made.keys_values.block_m * made.keys_values.block_n
    assert sizes == sorted(sizes, reverse=True)


def test_a_tile_of_less_than_the_matrix_units_take_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^block_n expected at least 16, got 8$"):
        configs.TileConfig(block_m=16, block_n=8, num_warps=4, num_stages=1)


def test_narrow_heads_multiply_score_gradients_one_step_later_on_sm_90() -> None:
    made = [configs.hopper_config(parse_arch("sm_90"), {"head_dim": d, "value_dim": d}) for d in (64, 128)]
    assert [config.late for config in made] == [True, False]
    assert [config.together for config in made] == [8, 4]


@pytest.mark.parametrize(("field", "least"), [("stages", 1), ("together", 0)])
def test_the_gluon_kernels_of_wide_heads_need_a_stage_and_take_zero_for_all_pairs(field: str, least: int) -> None:
    made = configs.hopper_wide_config(parse_arch("sm_90"), {"head_dim": 256, "value_dim": 256})
    replace(made, **{field: least})
    with pytest.raises(ValueError, match=rf"^{field} expected at least {least}, got {least - 1}$"):
        replace(made, **{field: least - 1})


def test_portable_tiles_of_wide_heads_on_sm_90_have_the_rows_of_a_warpgroup_instruction() -> None:
    made = configs.backward_config(parse_arch("sm_90"), {"head_dim": 256, "value_dim": 256})
    assert made.keys_values.block_n == made.queries.block_m == 64


@pytest.mark.parametrize("name", ["hopper_config", "backward_config"])
def test_shares_are_decided_in_the_call_or_at_most_eight(name: str) -> None:
    made = getattr(configs, name)(parse_arch("sm_90"), {"head_dim": 64, "value_dim": 64})
    assert made.shares == 0
    replace(made, shares=8)
    for wrong in (-1, 9):
        with pytest.raises(ValueError, match=rf"^shares expected 0 to 8, got {wrong}$"):
            replace(made, shares=wrong)
