"""The tile of the gradients of attention for a call without a tuned record, and the space. Nothing is measured."""

from collections.abc import Iterator, Mapping
from typing import Any

from opmux.plugin import Arch
from opmux_ck.attention.backward_configs import BackwardConfig, misfit

TILES = {
    32: BackwardConfig(32, 128, 64, 2, 2),
    64: BackwardConfig(32, 128, 32, 1, 4),
    128: BackwardConfig(16, 128, 32, 1, 4),
    256: BackwardConfig(16, 64, 32, 1, 4),
}
"""By the size of a head: CK's own choices."""


def backward_config(arch: Arch, features: Mapping[str, Any]) -> BackwardConfig:
    """The tile for a call."""
    return TILES[features["head_dim"]]


def backward_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[BackwardConfig]:
    """Every tile that fits the heads."""
    for config in TILES.values():
        if misfit(config, features["head_dim"]) is None:
            yield config
