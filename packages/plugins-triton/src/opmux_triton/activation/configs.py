"""Launch parameters of the gated activations, per arch. Loads no Triton."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opmux.plugin import Arch
from opmux_triton.archs import lanes_of_rows
from opmux_triton.arithmetic import next_power_of_two
from opmux_triton.config_checks import require_powers_of_two


@dataclass(frozen=True)
class GatedConfig:
    """Launch parameters.

    Attributes:
        block: columns of a tile.
        rows: rows of a tile.
        num_warps: warps of a program.
    """

    block: int
    rows: int
    num_warps: int

    def __post_init__(self) -> None:
        require_powers_of_two(self, "block", "rows", "num_warps")


def gated_config(arch: Arch, features: Mapping[str, Any]) -> GatedConfig:
    """Tiles of 16-byte accesses: smaller ones where there are few rows, so that every multiprocessor has some."""
    return _tile(arch, features, elements=2048, each=16)


def gated_backward_config(arch: Arch, features: Mapping[str, Any]) -> GatedConfig:
    """Like `gated_config`, with half the columns: the gradient holds more tensors."""
    return _tile(arch, features, elements=1024, each=8)


def _tile(arch: Arch, features: Mapping[str, Any], elements: int, each: int) -> GatedConfig:
    lanes = lanes_of_rows(arch)
    n = max(1, features["n"])
    few = features["bucket(tokens)"] <= 7
    most = 1024 if few else elements
    block = min(most, max(8 * lanes, next_power_of_two(n)))
    if n > block and n % block and n % (block // 2) == 0:  # a smaller tile leaves no part of one empty
        block //= 2
    rows = 1 if few else elements // block
    warps = max(1, block * rows // (lanes * (8 if few else each)))
    return GatedConfig(block=block, rows=rows, num_warps=warps)
