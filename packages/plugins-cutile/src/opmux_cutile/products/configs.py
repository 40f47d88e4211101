"""The tiles of matrix products: which one a call gets, and which ones the tuner tries."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from opmux.plugin import Arch

BLOCKS_M, BLOCKS_N, BLOCKS_K = (16, 32, 64, 128, 256), (32, 64, 128, 256), (32, 64, 128, 256)
FEW_TILES = 100
"""Tiles below which a smaller tile is taken, so that most multiprocessors have one."""


@dataclass(frozen=True)
class LinearConfig:
    """The tile of a block.

    Attributes:
        block_m, block_n, block_k: rows of x and rows of w in a tile, and the part of k in a step.
        warps: that compute in a block, 4 or 8; 0 leaves it to the compiler.
        ctas: of a cluster that shares a tile, 1 or 2.
        group: rows of tiles that are walked together.

    Raises:
        ValueError: where one is none of these, or the sums do not fit a block's registers.
    """

    block_m: int
    block_n: int
    block_k: int
    warps: int = 0
    ctas: int = 1
    group: int = 8

    def __post_init__(self) -> None:
        known = {
            "block_m": BLOCKS_M, "block_n": BLOCKS_N, "block_k": BLOCKS_K, "warps": (0, 4, 8), "ctas": (1, 2),
            "group": (1, 2, 4, 8, 16, 32),
        }  # fmt: skip
        for name, values in known.items():
            if getattr(self, name) not in values:
                raise ValueError(f"{name} expected one of {', '.join(map(str, values))}, got {getattr(self, name)}")
        if self.block_m * self.block_n > 32768 * self.ctas:
            raise ValueError(f"block_m * block_n expected {32768 * self.ctas} or less for {self.ctas} ctas")

    @property
    def hints(self) -> dict[str, int]:
        """For the compiler."""
        found = {"num_worker_warps": self.warps} if self.warps else {}
        return found | ({"num_ctas": self.ctas} if self.ctas > 1 else {})


MIDDLE = LinearConfig(128, 128, 64, warps=8)
WIDE = (LinearConfig(128, 256, 64, warps=8), MIDDLE)
"""From the largest, for archs whose matrix units take their sums or operands from outside the registers."""
PAIRED = LinearConfig(256, 256, 64, warps=8, ctas=2)
"""Of two blocks on two multiprocessors, which share what they read.

On Blackwell, one instruction of the matrix units computes for both, with sums in the tensor memory of each, and each
copies 32 KiB for a step where `WIDE` has 48 KiB for as many products: so says the machine code. It has run on none.
"""
PAIRS = ("sm_90", "sm_100", "sm_103")
"""Where it is taken."""
FEW_ROWS = {
    16: LinearConfig(16, 64, 128), 32: LinearConfig(32, 128, 128), 64: LinearConfig(64, 64, 64),
    128: LinearConfig(64, 128, 128),
}  # fmt: skip
"""By the most rows. From 64 a block multiplies by `wgmma`, which takes 64 rows at a time."""


def linear_config(arch: Arch, features: Mapping[str, Any]) -> LinearConfig:
    """The largest tile of which there are enough, and no more rows than the call has."""
    rows, n = features["bucket(tokens, 8)"], features["n"]
    for most, config in FEW_ROWS.items():
        if rows <= most:
            return config
    if arch.name in PAIRS and -(-rows // 256) * -(-n // 256) >= FEW_TILES:
        return PAIRED
    tiles = WIDE if arch.name in PAIRS else (MIDDLE,)
    for config in tiles:
        if -(-rows // config.block_m) * -(-n // config.block_n) >= FEW_TILES:
            return config
    return FEW_ROWS[64]


def linear_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[LinearConfig]:
    """Tiles that fit the rows of a call; those of two blocks on archs that have clusters."""
    rows = features["bucket(tokens, 8)"]
    clusters = (1, 2) if arch.name not in ("sm_80", "sm_86", "sm_87", "sm_88", "sm_89") else (1,)
    for block_m in BLOCKS_M:
        if block_m > 16 and block_m >= 2 * rows:
            continue
        for block_n in BLOCKS_N[1:]:
            for block_k in BLOCKS_K[1:]:
                for warps in (0, 8) if block_m * block_n >= 8192 else (0,):
                    for ctas in clusters if block_m * block_n >= 16384 else (1,):
                        stage = (block_m + block_n) * block_k
                        if block_m * block_n <= 32768 * ctas and stage <= 49152:
                            yield LinearConfig(block_m, block_n, block_k, warps, ctas)
