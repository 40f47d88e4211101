"""The tiles of products of groups, which are those of products."""

from collections.abc import Iterator, Mapping
from typing import Any

from opmux.plugin import Arch
from opmux_cutile.products.configs import FEW_ROWS, LinearConfig

WIDE = LinearConfig(128, 128, 64)
"""Without eight warps, with which tileiras 13.4.92 fails to compile the ragged kernel for sm_90."""


def grouped_config(arch: Arch, features: Mapping[str, Any]) -> LinearConfig:
    """Wide tiles where groups have more than 64 rows on average; half as high where sums are in registers (sm_120)."""
    rows = (1 << features["bucket(m)"]) / max(features["groups"], 1) if "bucket(m)" in features else features["max_m"]
    if rows <= 64:
        return FEW_ROWS[64]
    return FEW_ROWS[128] if arch.number >= (12, 0) else WIDE


def grouped_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[LinearConfig]:
    """Tiles that need no local memory."""
    yield from FEW_ROWS.values()
    yield LinearConfig(128, 64, 64)
    if arch.number < (12, 0):
        yield WIDE
