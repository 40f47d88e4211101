"""The launch parameters of the Gluon kernel of grouped products of codes. Loads no Triton."""

from dataclasses import dataclass

from opmux_triton.config_checks import require_at_least, require_powers_of_two
from opmux_triton.grouped_gemm.configs import ScaledGroupedConfig


@dataclass(frozen=True)
class HopperGroupedConfig:
    """A product of every group by the Gluon kernel of sm_90: a warp that loads, warpgroups that multiply.

    Attributes:
        block_m: rows of a tile, 64 for each warpgroup.
        block_n: columns of a tile.
        stages: how many blocks of 128 columns of both operands the ring holds.
        warpgroups: how many multiply.
        otherwise: the portable kernel's parameters, for groups of few rows and where descriptors cannot be used.
        group: rows of tiles that are walked together.
        few: whether the portable kernel is to compute.
    """

    block_m: int
    block_n: int
    stages: int
    warpgroups: int
    otherwise: ScaledGroupedConfig
    group: int = 8
    few: bool = False

    def __post_init__(self) -> None:
        require_powers_of_two(self, "block_n")
        require_at_least(1, self, "stages", "group")
        require_at_least(16, self, "block_n")
        if self.warpgroups not in (1, 2, 3):
            raise ValueError(f"warpgroups expected 1, 2 or 3, got {self.warpgroups}")
        if self.block_m != 64 * self.warpgroups:
            raise ValueError(f"block_m expected 64 rows for each of {self.warpgroups} warpgroups, got {self.block_m}")
