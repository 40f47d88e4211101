"""The configs of attention's forward that are worth measuring. Loads no Triton."""

from collections.abc import Iterator, Mapping
from typing import Any

from opmux.plugin import Arch
from opmux_triton.archs import shared_memory
from opmux_triton.attention.forward import configs
from opmux_triton.attention.forward.configs import ForwardConfig, HopperConfig
from opmux_triton.variations import variations

_HALF, _FLOAT = 2, 4
"""Bytes."""


def forward_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[ForwardConfig]:
    """Tiles of 16-bit operands whose blocks fit into shared memory."""
    base = configs.forward_config(arch, features)
    rows = sorted({base.rows, 64, 128}) if base.rows >= 64 else [base.rows]
    descriptors = (True, False) if base.tma else (False,)
    stages = (2, 3, 4) if arch.vendor == "nvidia" else (1, 2)
    tiles = variations(base, rows=rows, block=(32, 64, 128), num_warps=(4, 8), num_stages=stages, tma=descriptors)
    yield from (tile for tile in tiles if _fits(tile, arch, features, _HALF))


def float32_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[ForwardConfig]:
    """Small tiles: products of float32 live in registers."""
    base = configs.float32_config(arch, features)
    tiles = variations(base, rows=(16, 32), block=(16, 32), num_warps=(4, 8), num_stages=sorted({1, base.num_stages}))
    yield from (tile for tile in tiles if _fits(tile, arch, features, _FLOAT))


def hopper_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[HopperConfig]:
    """Numbers of warpgroups, blocks of keys and depths of their rings, taking turns or not, persistent or not."""
    base = configs.hopper_config(arch, features)
    wide = features["head_dim"] + features["value_dim"]
    for config in variations(
        base,
        warpgroups=(2, 3),
        block=(64, 128),
        stages=(2, 3),
        turns=(False, True),
        persistent=(True, False),
        short_block=(None,),
    ):
        queries = 64 * config.warpgroups * features["head_dim"]
        if _HALF * (config.block * wide * config.stages + queries) <= shared_memory(arch.name):
            yield config


def _fits(tile: ForwardConfig, arch: Arch, features: Mapping[str, Any], itemsize: int) -> bool:
    wide = features["head_dim"] + features["value_dim"]
    # One block of each ring is in registers while the next ones are on their way, except on sm_90.
    held = tile.num_stages if arch.vendor == "nvidia" and arch.number >= (9, 0) else max(1, tile.num_stages - 1)
    size: int = itemsize * (tile.block * wide * held + tile.rows * features["head_dim"])
    return size <= shared_memory(arch.name)
