"""The configs of paged attention that are worth measuring. Loads no Triton."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from opmux.plugin import Arch
from opmux_triton.archs import shared_memory
from opmux_triton.paged import configs
from opmux_triton.paged.configs import HopperConfig, PagedConfig, RolesConfig
from opmux_triton.variations import around, variations

_HALF = 2
"""Bytes."""


def _paths(function: Callable[[Arch, Mapping[str, Any]], PagedConfig]) -> Callable[..., Iterator[PagedConfig]]:
    def space(arch: Arch, features: Mapping[str, Any]) -> Iterator[PagedConfig]:
        """Other launches of decoding, in splits and in equal shares, then of prefill; a call takes one of the paths."""
        base = function(arch, features)
        decode = variations(
            base.decode,
            block_n=around(base.decode.block_n, 16, 128),
            num_warps=sorted({4, base.decode.num_warps}),
            num_stages=sorted({2, 3, 4, base.decode.num_stages}) if arch.vendor == "nvidia" else (1, 2),
            programs=sorted({2, 4, 8}),
        )
        yield from (replace(base, decode=path, shares=None) for path in decode)
        if base.shares is not None:
            shares = variations(
                base.shares,
                block_n=around(base.shares.block_n, 16, 256),
                num_stages=(2, 3),
                programs=(2, 3, 4),
                tiles=sorted({base.shares.tiles, 16}),
            )
            yield from (replace(base, shares=path) for path in shares)
            shares = variations(
                base.shares, block_n=around(base.shares.block_n, 16, 256), num_warps=(2, 8), programs=(1, 2, 4)
            )
            yield from (replace(base, shares=path) for path in shares)
        prefill = variations(
            base.prefill,
            rows=around(base.prefill.rows, 16, 128),
            block_n=around(base.prefill.block_n, 16, 128),
            num_warps=sorted({4, 8}),
            num_stages=(2, 3) if arch.vendor == "nvidia" else (1, 2),
        )
        yield from (replace(base, prefill=path) for path in prefill)

    return space


halves_space = _paths(configs.halves_config)
float32_space = _paths(configs.float32_config)
codes_space = _paths(configs.codes_config)
codes_float32_space = _paths(configs.codes_float32_config)


def hopper_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[HopperConfig]:
    """Blocks of keys, depths of their rings and numbers of loading warps that fit into shared memory."""
    base = configs.hopper_config(arch, features)
    roles = variations(base.hopper, block=(64, 128), stages=(2, 3), slots=(1, 2), loaders=(1, 2, 4))
    yield from (replace(base, hopper=role) for role in roles if _fits(role, arch, features))


def _fits(roles: RolesConfig, arch: Arch, features: Mapping[str, Any]) -> bool:
    wide = features["head_dim"] + features["value_dim"]
    queries = 2 * 64 * features["head_dim"] * roles.slots
    size: int = _HALF * (roles.block * wide * roles.stages + queries)
    return size <= shared_memory(arch.name)
