"""Launch parameters of the cache write, per arch. Loads no Triton."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opmux.plugin import Arch
from opmux_triton.archs import lanes_of_rows
from opmux_triton.arithmetic import next_power_of_two
from opmux_triton.config_checks import require_powers_of_two


@dataclass(frozen=True)
class WriteConfig:
    """Launch parameters.

    Attributes:
        block: elements of a token that a program copies at a time.
        tokens: tokens of a program.
        stream: whether the cache is written with stores that leave the L2 cache first.
        num_warps: warps of a program.
    """

    block: int
    tokens: int
    stream: bool
    num_warps: int

    def __post_init__(self) -> None:
        require_powers_of_two(self, "block", "tokens", "num_warps")


def write_config(arch: Arch, features: Mapping[str, Any]) -> WriteConfig:
    """About 2,048 elements for a program, 16 of each token for a thread; with few tokens, each has its own program."""
    lanes = lanes_of_rows(arch)
    widest = max(1, features["kv_heads"]) * max(1, features["head_dim"], features["value_dim"])
    block = min(1024, max(8 * lanes, next_power_of_two(widest)))
    few = features["bucket(tokens)"] <= 7
    warps = max(1, block // ((8 if few or arch.vendor == "amd" else 16) * lanes))
    return WriteConfig(block=block, tokens=1 if few else 2048 // block, stream=False, num_warps=warps)
