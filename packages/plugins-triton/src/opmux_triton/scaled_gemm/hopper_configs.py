"""The launch parameters of the Gluon kernel of scaled products. Loads no Triton."""

from dataclasses import dataclass
from typing import Literal

from opmux_triton.config_checks import require_at_least, require_parts, require_powers_of_two
from opmux_triton.scaled_gemm.configs import ScaledConfig

BLOCK_K = 128
"""Columns of a block of the operands: those that share a scale, and a span of the widest swizzle."""


@dataclass(frozen=True)
class HopperScaledConfig:
    """A product by the Gluon kernel of sm_90: a warp that loads, warpgroups that multiply.

    Attributes:
        block_m: rows of a tile, 64 for each warpgroup.
        block_n: columns of a tile.
        stages: how many blocks of 128 columns of both operands the ring holds.
        warpgroups: how many multiply.
        otherwise: the portable kernel's parameters where descriptors cannot be used.
        parts: in how many parts of its columns a tile is stored.
        slots: buffers of a warpgroup for them.
        group: rows of tiles that are walked together.
        cut: which tiles are cut along k, with a second kernel that sums them up: ``none``, the ``rest`` that does not
            fill a round of all programs, ``all``, where each program then has one part at most.
        swap: whether the weight's rows are the tile's rows.
        sum_rows: rows of a tile that one program of the second kernel sums up.
        ahead: whether scales of blocks are loaded two blocks ahead, in a loop of two blocks: it takes the registers of
            a second sum.
    """

    block_m: int
    block_n: int
    stages: int
    warpgroups: int
    otherwise: ScaledConfig
    parts: int = 2
    slots: int = 1
    group: int = 8
    cut: Literal["none", "rest", "all"] = "none"
    swap: bool = False
    sum_rows: int = 16
    ahead: bool = False

    def __post_init__(self) -> None:
        require_powers_of_two(self, "block_n", "parts", "slots", "sum_rows")
        require_at_least(1, self, "stages", "group", "slots")
        require_at_least(16, self, "block_n")
        require_parts(self, "block_m", "sum_rows")
        require_parts(self, "parts", "slots")
        if self.warpgroups not in (1, 2, 3):
            raise ValueError(f"warpgroups expected 1, 2 or 3, got {self.warpgroups}")
        if self.block_m != 64 * self.warpgroups:
            raise ValueError(f"block_m expected 64 rows for each of {self.warpgroups} warpgroups, got {self.block_m}")
