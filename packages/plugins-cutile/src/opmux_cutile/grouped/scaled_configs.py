"""The tiles of products of groups of 8-bit codes."""

from collections.abc import Iterator, Mapping
from typing import Any

from opmux.plugin import Arch
from opmux_cutile.products.configs import LinearConfig

FEW_ROWS = {
    16: LinearConfig(16, 64, 128), 64: LinearConfig(64, 128, 128),
}  # fmt: skip
"""By the most rows of a group. From 64 a block multiplies by `wgmma`, which is faster at 32 rows too."""
LARGE = LinearConfig(128, 128, 128, warps=8)


def scaled_grouped_config(arch: Arch, features: Mapping[str, Any]) -> LinearConfig:
    """By the rows that groups have on average; a step has one block of 128 columns."""
    rows = features["max_m"] if "max_m" in features else features["bucket(m, 8)"] / max(features["groups"], 1)
    return next((config for most, config in FEW_ROWS.items() if rows <= most), LARGE)


def scaled_grouped_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[LinearConfig]:
    """Tiles with a step of 128 columns whose sums, those of a step and of all, fit the registers."""
    yield from FEW_ROWS.values()
    yield from (LARGE, LinearConfig(16, 128, 128), LinearConfig(32, 128, 128), LinearConfig(64, 64, 128))
