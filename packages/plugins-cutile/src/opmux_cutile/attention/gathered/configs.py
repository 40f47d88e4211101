"""The tiles of attention whose rows threads copy.

With these, the compiler's code for `sm_80` to `sm_89` spills no registers. Where scores are capped and there is no
window, it does with them, and not with `CAPPED`. With heads of more than 128 it does in some
calls with every tile that was compiled: with 32 queries and keys and eight warps in half of them, by up to 168 bytes.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from opmux.plugin import Arch
from opmux_cutile.attention.configs import ForwardConfig
from opmux_cutile.tiles import power_of_two

WIDEST = 128
"""Heads."""
CAPPED = ForwardConfig(64, 32, 8)
"""The tile where scores are capped and no window leaves keys out, whatever the config."""


def gathered_config(arch: Arch, features: Mapping[str, Any]) -> ForwardConfig:
    """64 queries and a group of warps; 64 keys in a step, or 32 where heads are narrow: more of them are read ahead."""
    widest = power_of_two(max(features["head_dim"], features["value_dim"]))
    return ForwardConfig(64, 64 if widest > 64 else 32, 4)


def gathered_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[ForwardConfig]:
    """The choice, and blocks of other sizes."""
    chosen = gathered_config(arch, features)
    yield chosen
    for block_m, warps in ((64, 4), (128, 8)):
        for block_n in (32, 64):
            if (config := ForwardConfig(block_m, block_n, warps)) != chosen:
                yield config
