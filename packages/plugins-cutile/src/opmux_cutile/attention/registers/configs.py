"""The tiles of attention where both operands of the matrix units come from registers."""

from collections.abc import Iterator, Mapping
from typing import Any

from opmux.plugin import Arch
from opmux_cutile.attention.configs import ForwardConfig, attention_config, attention_space

WIDEST_OF_TILES = 128
"""Heads whose rows are loaded as tiles: kernels of wider ones spill, and where threads copy rows they do not."""
WIDE = ForwardConfig(32, 32, 8)


def registers_config(arch: Arch, features: Mapping[str, Any]) -> ForwardConfig:
    """As `attention_config`, but one small tile for wide heads."""
    return WIDE if _wide(features) else attention_config(arch, features)


def registers_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[ForwardConfig]:
    """As `attention_space`; of wide heads the choice, and tiles that spill in few calls."""
    if _wide(features):
        yield from (WIDE, ForwardConfig(16, 32, 4), ForwardConfig(64, 32, 8))
    else:
        yield from attention_space(arch, features)


def _wide(features: Mapping[str, Any]) -> bool:
    return bool(max(features["head_dim"], features["value_dim"]) > WIDEST_OF_TILES)
