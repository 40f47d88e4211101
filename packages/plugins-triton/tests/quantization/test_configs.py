"""Launch parameters of quantisation."""

from typing import Any

import pytest
from family_shapes import ARCHS, TOKENS, WIDTHS, assert_launchable

from opmux.plugin import parse_arch
from opmux_triton.quantization.configs import (
    QuantizeConfig,
    gate_quantize_config,
    known_scale_config,
    norm_quantize_config,
    quantize_config,
)

BLOCKS = ((1, 128), (1, 32), (1, -1), (-1, -1), (128, 128))


@pytest.mark.parametrize("arch", ARCHS, ids=lambda arch: arch.name)
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_program_keeps_to_what_an_arch_has(arch: Any, block: tuple[int, int]) -> None:
    features = [{"k": k, "hidden": k, "n": k, "block": block, "bucket(m)": bucket} for k in WIDTHS for bucket in TOKENS]
    assert_launchable([quantize_config(arch, f) for f in features], arch)
    assert_launchable([known_scale_config(arch, f) for f in features], arch)
    for config in (norm_quantize_config, gate_quantize_config):
        found = [config(arch, f) for f in features]
        assert_launchable(found, arch)
        assert_launchable([f.quantize for f in found if f.quantize is not None] or [found[0]], arch)


def test_no_tile_is_left_empty_where_a_smaller_one_divides_the_row() -> None:
    hopper = parse_arch("sm_90")
    assert quantize_config(hopper, {"k": 7168, "block": (1, 128), "bucket(m)": 12}).block == 1024
    assert quantize_config(hopper, {"k": 8192, "block": (1, 128), "bucket(m)": 12}).block == 2048


@pytest.mark.parametrize(
    ("k", "bucket", "warps"), [(128, 12, 2), (24, 12, 2), (127, 12, 4), (127, 6, 2), (1, 12, 4), (8192, 12, 2)]
)
def test_threads_of_amd_hold_fewer_elements_of_odd_rows(k: int, bucket: int, warps: int) -> None:
    features = {"k": k, "block": (1, -1), "bucket(m)": bucket}
    found = known_scale_config(parse_arch("gfx942"), features)
    assert found.num_warps == warps
    same = quantize_config(parse_arch("gfx942"), {**features, "block": (1, 128)})
    assert (found.block, found.rows) == (same.block, same.rows)
    hopper = parse_arch("sm_90")
    assert known_scale_config(hopper, features) == quantize_config(hopper, {**features, "block": (1, 128)})


def test_a_tile_holds_whole_blocks() -> None:
    with pytest.raises(ValueError, match=r"^block expected at least 128, the columns of a block, got 64$"):
        QuantizeConfig(block=64, rows=1, parts=1, num_warps=4)
