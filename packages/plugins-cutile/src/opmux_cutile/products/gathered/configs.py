"""The tiles of products whose operands threads copy: which one a call gets, and which ones the tuner tries.

Of all of these the compiler's code for `sm_80` to `sm_89` spills no registers; of others it does.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from opmux.plugin import Arch
from opmux_cutile.products.backward_configs import LinearBackwardConfig, sizes_of_products
from opmux_cutile.products.configs import FEW_TILES, LinearConfig

FEW_ROWS = {
    16: LinearConfig(16, 64, 128, 4), 32: LinearConfig(32, 64, 64, 4), 64: LinearConfig(64, 64, 64, 8),
    128: LinearConfig(64, 128, 64, 8),
}  # fmt: skip
"""By the most rows."""
LARGE = LinearConfig(128, 128, 64, 8)


def gathered_config(arch: Arch, features: Mapping[str, Any]) -> LinearConfig:
    """The largest tile of which there are enough, and no more rows than the call has."""
    rows, n = features["bucket(tokens, 8)"], features["n"]
    for most, config in FEW_ROWS.items():
        if rows <= most:
            return config
    for config in (LARGE, FEW_ROWS[128]):
        if -(-rows // config.block_m) * -(-n // config.block_n) >= FEW_TILES:
            return config
    return FEW_ROWS[64]


def gathered_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[LinearConfig]:
    """Tiles that fit the rows of a call."""
    rows = features["bucket(tokens, 8)"]
    for config in (*FEW_ROWS.values(), LARGE):
        if config.block_m <= 16 or config.block_m < 2 * rows:
            yield config


def gathered_backward_config(arch: Arch, features: Mapping[str, Any]) -> LinearBackwardConfig:
    """For each product of the gradients what `linear` of its sizes gets."""
    of_x, of_w = sizes_of_products(features)
    return LinearBackwardConfig(gathered_config(arch, of_x), gathered_config(arch, of_w))


def gathered_backward_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[LinearBackwardConfig]:
    """The choice, and the tiles of each product beside the choice for the other."""
    chosen = gathered_backward_config(arch, features)
    yield chosen
    of_x, of_w = sizes_of_products(features)
    yield from (LinearBackwardConfig(t, chosen.of_w) for t in gathered_space(arch, of_x) if t != chosen.of_x)
    yield from (LinearBackwardConfig(chosen.of_x, t) for t in gathered_space(arch, of_w) if t != chosen.of_w)
