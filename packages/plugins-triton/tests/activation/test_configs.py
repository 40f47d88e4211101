"""Launch parameters of the gated activations."""

from collections.abc import Callable
from typing import Any

import pytest
from family_shapes import ARCHS, TOKENS, WIDTHS, assert_launchable

from opmux.plugin import parse_arch
from opmux_triton.activation import configs


@pytest.mark.parametrize("arch", ARCHS, ids=lambda arch: arch.name)
@pytest.mark.parametrize("config", [configs.gated_config, configs.gated_backward_config])
def test_a_program_keeps_to_what_an_arch_has(arch: Any, config: Callable[..., configs.GatedConfig]) -> None:
    features = [{"n": width, "bucket(tokens)": bucket} for width in WIDTHS for bucket in TOKENS]
    assert_launchable([config(arch, f) for f in features], arch)


def test_no_tile_is_left_empty_where_a_smaller_one_divides_the_row() -> None:
    hopper = parse_arch("sm_90")
    assert configs.gated_config(hopper, {"n": 14336, "bucket(tokens)": 15}).block == 2048
    assert configs.gated_config(hopper, {"n": 11264, "bucket(tokens)": 15}).block == 1024
    assert configs.gated_config(hopper, {"n": 14336, "bucket(tokens)": 3}).block == 1024


def test_a_tile_is_a_power_of_two() -> None:
    with pytest.raises(ValueError, match=r"^rows expected a power of two, got 3$"):
        configs.GatedConfig(block=64, rows=3, num_warps=4)
