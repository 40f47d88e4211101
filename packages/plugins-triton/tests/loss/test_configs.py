"""Launch parameters of the losses."""

from collections.abc import Callable
from typing import Any

import pytest
from family_shapes import ARCHS

from opmux.plugin import parse_arch
from opmux_triton.archs import wave_size
from opmux_triton.loss import configs, spaces

VOCABULARIES = (1, 24, 1000, 32_000, 50_257, 128_256, 262_144)


@pytest.mark.parametrize("arch", ARCHS, ids=lambda arch: arch.name)
@pytest.mark.parametrize("config", [configs.rows_config, configs.gradient_config])
def test_a_program_keeps_to_what_an_arch_has(arch: Any, config: Callable[..., configs.RowsConfig]) -> None:
    for vocab in VOCABULARIES:
        made = config(arch, {"vocab": vocab})
        assert made.num_warps * wave_size(arch.name) <= 1024
        assert made.block <= 64 * made.num_warps * wave_size(arch.name), "values in registers"


def test_a_small_vocabulary_has_small_tiles() -> None:
    hopper = parse_arch("sm_90")
    assert configs.fused_config(hopper, {"vocab": 24, "hidden": 192}).product.block_n == 64
    assert configs.fused_config(hopper, {"vocab": 128_256, "hidden": 2048}).product.block_n == 256


def test_a_space_keeps_the_chunks() -> None:
    features = {"vocab": 128_256, "hidden": 2048, "bucket(tokens)": 14}
    hopper = parse_arch("sm_90")
    base = configs.fused_config(hopper, features)
    found = list(spaces.fused_space(hopper, features))
    assert base in found
    assert len(found) == len(set(found))
    assert {(c.parts, c.least, c.mebibytes) for c in found} == {(base.parts, base.least, base.mebibytes)}


@pytest.mark.parametrize("arch", ARCHS, ids=lambda arch: arch.name)
@pytest.mark.parametrize("space", [spaces.fused_space, spaces.fused_float32_space])
def test_a_space_tries_cublas_where_there_is_one(arch: Any, space: Callable[..., Any]) -> None:
    found = list(space(arch, {"vocab": 128_256, "hidden": 2048, "bucket(tokens)": 14}))
    assert {c.by_blas for c in found} == ({False, True} if arch.vendor == "nvidia" else {False})
    assert {c.product.group for c in found} == {4, 8}


def test_bad_configs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^block expected a power of two, got 3$"):
        configs.RowsConfig(block=3, num_warps=1)
    with pytest.raises(ValueError, match=r"^block_k expected at least 16, got 8$"):
        configs.ProductConfig(num_warps=4, num_stages=2, block_m=64, block_n=64, block_k=8)
    product = configs.ProductConfig(num_warps=4, num_stages=2, block_m=64, block_n=64, block_k=16)
    with pytest.raises(ValueError, match=r"^parts expected at least 1, got 0$"):
        configs.FusedConfig(0, 256, 512, configs.RowsConfig(64, 1), product)
