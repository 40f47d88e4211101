"""Launch parameters of the merge of partial results."""

import pytest

from opmux.plugin import parse_arch
from opmux_triton.attention.merge.configs import MergeConfig, merge_config


@pytest.mark.parametrize(
    ("dim", "expected"), [(1, (64, 2)), (64, (64, 8)), (128, (32, 8)), (256, (16, 8)), (1024, (8, 8))]
)
def test_rows_by_the_width_of_a_head(dim: int, expected: tuple[int, int]) -> None:
    made = merge_config(parse_arch("sm_90"), {"value_dim": dim})
    assert (made.rows, made.num_warps) == expected


def test_waves_of_64_lanes_are_half_as_many() -> None:
    assert merge_config(parse_arch("gfx942"), {"value_dim": 128}) == MergeConfig(rows=32, num_warps=4)


def test_rows_are_a_power_of_two() -> None:
    with pytest.raises(ValueError, match=r"^rows expected a power of two, got 12$"):
        MergeConfig(rows=12, num_warps=4)
