"""Launch parameters of the merge of partial results, per arch. Loads no Triton."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opmux.plugin import Arch
from opmux_triton.arithmetic import padded
from opmux_triton.config_checks import require_powers_of_two


@dataclass(frozen=True)
class MergeConfig:
    """Launch parameters.

    Attributes:
        rows: queries of a head that a program merges.
        num_warps: warps of a program.
    """

    rows: int
    num_warps: int

    def __post_init__(self) -> None:
        require_powers_of_two(self, "rows", "num_warps")


def merge_config(arch: Arch, features: Mapping[str, Any]) -> MergeConfig:
    """Eight queries of a head at least, so that a sector of their lse is read whole; about 16 elements a thread."""
    dim = padded(features["value_dim"])
    rows = max(8, min(64, 4096 // dim))
    warps = max(1, min(8, rows * dim // (1024 if arch.vendor == "amd" else 512)))
    return MergeConfig(rows=rows, num_warps=warps)
