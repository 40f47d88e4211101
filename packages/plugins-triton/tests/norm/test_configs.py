"""Launch parameters of the norms."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from family_shapes import ARCHS, TOKENS, WIDTHS, assert_launchable

from opmux.plugin import parse_arch
from opmux_triton.norm import configs as norms
from opmux_triton.norm.configs import RowsConfig, backward_config

BACKWARD = backward_config(parse_arch("sm_90"), {"hidden": 4096})


@pytest.mark.parametrize("arch", ARCHS, ids=lambda arch: arch.name)
@pytest.mark.parametrize("config", [norms.rms_config, norms.centred_config, norms.added_config])
def test_a_program_keeps_to_what_an_arch_has(arch: Any, config: Callable[..., RowsConfig]) -> None:
    features = [{"hidden": width, "bucket(tokens)": bucket} for width in WIDTHS for bucket in TOKENS]
    assert_launchable([config(arch, f) for f in features], arch)


@pytest.mark.parametrize("arch", ARCHS, ids=lambda arch: arch.name)
@pytest.mark.parametrize("config", [norms.backward_config, norms.centred_backward_config])
def test_two_tiles_of_the_backward_hold_a_row(arch: Any, config: Callable[..., norms.BackwardConfig]) -> None:
    made = [config(arch, {"hidden": width}) for width in WIDTHS]
    assert_launchable(made, arch)
    for width, one in zip(WIDTHS, made, strict=True):
        assert one.tail == 0 or width <= one.block + one.tail < 2 * width


def test_long_rows_are_read_twice_where_there_is_much_data() -> None:
    nvidia, amd = parse_arch("sm_90"), parse_arch("gfx942")
    much, little = ({"hidden": 4096, "bucket(tokens)": bucket} for bucket in (15, 4))
    assert norms.rms_config(nvidia, much) == norms.RowsConfig(block=1024, rows=1, num_warps=8)
    assert norms.rms_config(nvidia, little).block == 4096
    assert norms.rms_config(amd, much).block == 4096
    assert norms.added_config(nvidia, much).block == 4096
    assert norms.centred_config(nvidia, much) == norms.RowsConfig(block=2048, rows=1, num_warps=4)
    assert norms.centred_config(nvidia, much | {"hidden": 1 << 20}) == norms.RowsConfig(4096, 1, 16)
    assert norms.centred_config(nvidia, little).block == 4096
    assert norms.centred_config(amd, much).block == 4096


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: RowsConfig(block=3, rows=1, num_warps=4), "block expected a power of two, got 3"),
        (lambda: RowsConfig(block=64, rows=-1, num_warps=4), "rows expected a power of two, got -1"),
        (lambda: replace(BACKWARD, tail=3), "tail expected a power of two, got 3"),
        (lambda: replace(BACKWARD, tail=1024, again="all"), "tail expected 0 where again is 'all', got 1024"),
        (lambda: replace(BACKWARD, programs=0), "programs expected at least 1, got 0"),
    ],
)
def test_a_config_refuses_values_that_do_not_fit(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        make()
