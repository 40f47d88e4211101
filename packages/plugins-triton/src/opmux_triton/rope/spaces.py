"""The configs of rotary embedding that are worth measuring. Loads no Triton."""

from collections.abc import Iterator, Mapping
from typing import Any

from opmux.plugin import Arch
from opmux_triton.rope.configs import RopeConfig, rope_config
from opmux_triton.variations import around, variations


def rope_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[RopeConfig]:
    """Fewer and more heads and tokens to a program, by fewer and by more warps."""
    base = rope_config(arch, features)
    yield from variations(
        base,
        block_heads=around(base.block_heads, 1, 32),
        tokens=around(base.tokens, 1, 16),
        num_warps=around(base.num_warps, 1, 8),
    )
