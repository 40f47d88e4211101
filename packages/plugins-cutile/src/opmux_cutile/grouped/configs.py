"""The tiles of products of groups, which are those of products."""

from collections.abc import Iterator, Mapping
from typing import Any

from opmux.plugin import Arch
from opmux_cutile.products.configs import FEW_ROWS, LinearConfig

WIDE = LinearConfig(128, 128, 64, warps=8)
WIDEST = LinearConfig(128, 256, 64, warps=8)
"""For archs whose matrix units take their sums or operands from outside the registers."""
OUTSIDE = ("sm_90", "sm_100", "sm_103")


def grouped_config(arch: Arch, features: Mapping[str, Any]) -> LinearConfig:
    """Wide tiles where groups have more than 64 rows on average."""
    rows = (1 << features["bucket(m)"]) / max(features["groups"], 1) if "bucket(m)" in features else features["max_m"]
    if rows <= 64:
        return FEW_ROWS[64]
    return WIDEST if arch.name in OUTSIDE and rows > 128 else WIDE


def grouped_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[LinearConfig]:
    """Tiles that need no local memory."""
    yield from FEW_ROWS.values()
    yield from (LinearConfig(128, 64, 64), WIDE)
    if arch.name in OUTSIDE:
        yield from (WIDEST, LinearConfig(256, 128, 64, warps=8))
