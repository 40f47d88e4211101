"""Launch parameters of the cache write, per arch. Functions of the features alone; they import no Triton."""

from collections.abc import Mapping
from typing import Any

from opmux.arch import Arch
from opmux_triton.arithmetic import next_power_of_two


def write_config(arch: Arch, features: Mapping[str, Any]) -> dict[str, Any]:
    """About 2,048 elements to a program, 16 of each of its tokens to a thread; of a few tokens each has its own."""
    lanes = 64 if arch.vendor == "amd" else 32
    widest = max(1, features["kv_heads"]) * max(1, features["head_dim"], features["value_dim"])
    block = min(1024, max(8 * lanes, next_power_of_two(widest)))
    few = features["bucket(tokens)"] <= 7
    warps = max(1, block // ((8 if few or arch.vendor == "amd" else 16) * lanes))
    return {"BLOCK": block, "TOKENS": 1 if few else 2048 // block, "STREAM": False, "num_warps": warps}
