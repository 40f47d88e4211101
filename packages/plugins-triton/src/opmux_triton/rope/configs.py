"""Launch parameters of rotary embedding, per arch. Functions of the features alone; they import no Triton."""

from collections.abc import Mapping
from typing import Any

from opmux.arch import Arch
from opmux_triton.arithmetic import next_power_of_two

_HEADS = 8


def rope_config(arch: Arch, features: Mapping[str, Any]) -> dict[str, Any]:
    """Eight heads of some tokens: about 4,096 elements to a program, fewer where there are few tokens."""
    lanes = 64 if arch.vendor == "amd" else 32
    elements = _HEADS * next_power_of_two(features["head_dim"])
    few = features["bucket(batch)"] + features["bucket(seq)"] <= 7 and elements >= 8 * lanes
    # Of few tokens a lane still reads 16 bytes of either half of a head.
    tokens = max(1, min(8, (16 * lanes if few else 4096) // elements))
    warps = max(1, min(8, tokens * elements // (lanes * (8 if few else 32))))
    return {"BLOCK_HEADS": _HEADS, "TOKENS": tokens, "num_warps": warps}
