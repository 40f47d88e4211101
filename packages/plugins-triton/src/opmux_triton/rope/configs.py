"""Launch parameters of rotary embedding, per arch. Loads no Triton."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opmux.plugin import Arch
from opmux_triton.archs import lanes_of_rows
from opmux_triton.arithmetic import next_power_of_two
from opmux_triton.config_checks import require_powers_of_two

_HEADS = 8


@dataclass(frozen=True)
class RopeConfig:
    """Launch parameters.

    Attributes:
        block_heads: heads of a program.
        tokens: tokens of a program.
        num_warps: warps of a program.
    """

    block_heads: int
    tokens: int
    num_warps: int

    def __post_init__(self) -> None:
        require_powers_of_two(self, "block_heads", "tokens", "num_warps")


def rope_config(arch: Arch, features: Mapping[str, Any]) -> RopeConfig:
    """Eight heads of some tokens: about 4,096 elements for a program, fewer where there are few tokens."""
    lanes = lanes_of_rows(arch)
    elements = _HEADS * next_power_of_two(features["head_dim"])
    few = features["bucket(batch)"] + features["bucket(seq)"] <= 7 and elements >= 8 * lanes
    # With few tokens, a lane still reads 16 bytes of each half of a head.
    tokens = max(1, min(8, (16 * lanes if few else 4096) // elements))
    warps = max(1, min(8, tokens * elements // (lanes * (8 if few else 32))))
    return RopeConfig(block_heads=_HEADS, tokens=tokens, num_warps=warps)
