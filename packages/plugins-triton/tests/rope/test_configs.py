"""Launch parameters of rotary embeddings."""

from typing import Any

import pytest
from family_shapes import ARCHS, TOKENS, WIDTHS, assert_launchable

from opmux_triton.rope.configs import rope_config


@pytest.mark.parametrize("arch", ARCHS, ids=lambda arch: arch.name)
def test_a_program_keeps_to_what_an_arch_has(arch: Any) -> None:
    sizes = {"heads": 5, "kv_heads": 1, "bucket(batch)": 0}
    features = [{**sizes, "head_dim": width, "bucket(seq)": bucket} for width in WIDTHS for bucket in TOKENS]
    assert_launchable([rope_config(arch, f) for f in features], arch)
