"""The configs of attention's backward that are worth measuring. Loads no Triton."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from opmux.plugin import Arch
from opmux_triton.attention.backward import configs
from opmux_triton.attention.backward.configs import SHARES, BackwardConfig, HopperConfig, TileConfig, WideConfig
from opmux_triton.variations import around, variations


def _tiles(function: Callable[[Arch, Mapping[str, Any]], BackwardConfig]) -> Callable[..., Iterator[BackwardConfig]]:
    def space(arch: Arch, features: Mapping[str, Any]) -> Iterator[BackwardConfig]:
        """Other tiles of one kernel at a time: the two run one after the other, so the best of each can be joined."""
        base = function(arch, features)
        for tile in _around(base.keys_values):
            yield replace(base, keys_values=tile)
        for tile in _around(base.queries):
            yield replace(base, queries=tile)
        for shares in SHARES:
            yield replace(base, shares=shares)

    return space


def _around(tile: TileConfig) -> Iterator[TileConfig]:
    most = 4 if tile.num_stages > 1 else 2
    stages = sorted({max(1, tile.num_stages - 1), tile.num_stages, min(most, tile.num_stages + 1)})
    yield from variations(
        tile,
        block_m=around(tile.block_m, 16, 128),
        block_n=around(tile.block_n, 16, 128),
        num_warps=sorted({4, 8}),
        num_stages=stages,
    )


backward_space = _tiles(configs.backward_config)
float32_space = _tiles(configs.float32_config)


def hopper_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[HopperConfig]:
    """Every way of adding gradients and of ordering tiles."""
    base = configs.hopper_config(arch, features)
    yield from variations(base, stages=(1, 2), together=(0, 4, 8, 16), bulk=(False, True), late=(False, True))
    for shares in SHARES:
        yield replace(base, shares=shares)


def hopper_wide_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[WideConfig]:
    """Every order of tiles, with one block in shared memory or two."""
    yield from variations(configs.hopper_wide_config(arch, features), stages=(1, 2), together=(0, 1, 4, 16))
