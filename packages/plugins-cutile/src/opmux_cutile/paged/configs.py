"""The tiles of attention over a paged cache, which are those of attention."""

from collections.abc import Iterator, Mapping
from typing import Any

from opmux.plugin import Arch
from opmux_cutile.attention.configs import AttentionConfig
from opmux_cutile.tiles import power_of_two


def paged_config(arch: Arch, features: Mapping[str, Any]) -> AttentionConfig:
    """Up to 64 rows, and 64 keys of a step, or 32 where heads are wide.

    With room for two blocks on a Hopper multiprocessor the compiler spills nothing where narrow heads have sinks. With
    room for one it takes all 255 registers and spills 600 bytes.
    """
    widest = power_of_two(max(features["head_dim"], features["value_dim"]))
    if arch.name == "sm_90" and widest <= 64:
        return AttentionConfig(64, 64, 4, 2)
    return AttentionConfig(64, 32 if widest > 128 else 64, 4)


def paged_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[AttentionConfig]:
    """Blocks whose sums and scores fit the registers."""
    widest = power_of_two(max(features["head_dim"], features["value_dim"]))
    for block_m, warps in ((16, 4), (64, 4), (128, 8)):
        for block_n in (16, 32, 64, 128):
            if block_m * (widest + block_n) <= warps * 32 * 224:
                yield AttentionConfig(block_m, block_n, warps)
