"""Launch parameters of the writes into a key/value cache."""

from typing import Any

import pytest
from family_shapes import ARCHS, TOKENS, WIDTHS, assert_launchable

from opmux_triton.kv_cache.configs import write_config


@pytest.mark.parametrize("arch", ARCHS, ids=lambda arch: arch.name)
def test_a_program_keeps_to_what_an_arch_has(arch: Any) -> None:
    sizes = {"kv_heads": 3, "value_dim": 64}
    features = [{**sizes, "head_dim": width, "bucket(tokens)": bucket} for width in WIDTHS for bucket in TOKENS]
    assert_launchable([write_config(arch, f) for f in features], arch)
