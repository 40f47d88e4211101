"""The tiles of products of 8-bit codes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from opmux.plugin import Arch
from opmux_cutile.products.configs import FEW_TILES, LinearConfig


@dataclass(frozen=True)
class ScaledConfig(LinearConfig):
    """The tile of a block.

    Attributes:
        turned: whether products with scales of blocks of w are computed as w x^T, a tile for each block; others are
            computed with `LARGE` then. `block_n` and `block_k` are 128.
        occupancy: blocks that the compiler is to make room for on a multiprocessor, where `turned`.
    """

    turned: bool = False
    occupancy: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.turned and (self.block_n, self.block_k) != (128, 128):
            raise ValueError(f"block_n, block_k expected 128, 128 where turned, got {self.block_n}, {self.block_k}")
        if self.occupancy not in range(9 if self.turned else 1):
            raise ValueError(f"occupancy expected 0, or up to 8 where turned, got {self.occupancy}")

    @property
    def hints(self) -> dict[str, int]:
        """For the compiler."""
        return super().hints | ({"occupancy": self.occupancy} if self.occupancy else {})


LARGE = ScaledConfig(128, 128, 128, warps=8)
PAIRED = ScaledConfig(256, 128, 128, warps=8, ctas=2)
"""Of two blocks, for scales of 128 columns on Hopper: the copies of w are shared."""
TENSOR_MEMORY = ScaledConfig(256, 256, 128, warps=8, ctas=2)
"""As `PAIRED`, for scales of rows on Blackwell, where sums are in tensor memory: a block copies as much for a step as
with `LARGE`, and computes twice as much of it. So says the machine code; it has run on none."""
TURNED = ScaledConfig(64, 128, 128, group=16, turned=True, occupancy=2)
"""With such scales, on an H200 1.39 times as fast as `PAIRED` with k of 8192, 1.53 with 16384, 1.23 with 1536."""
TURNED_K = 1536
"""The shortest rows that were timed."""
FEW_ROWS = {
    16: ScaledConfig(16, 64, 128, 8), 32: ScaledConfig(32, 128, 128, 8), 128: ScaledConfig(64, 128, 128, 8),
}  # fmt: skip
"""By the most rows. With fewer warps the compiler unrolls the steps until registers spill."""


def scaled_config(arch: Arch, features: Mapping[str, Any]) -> ScaledConfig:
    """The largest tile of which there are enough; the sums of one step and of all steps have to fit the registers.

    With scales of blocks of 128 columns few rows get a large tile too: with one of 32 rows results were wrong on an
    H200, and smaller ones, whose scales also have fewer numbers than a block has threads, have never run.
    """
    rows, n = features["bucket(m, 8)"], features["n"]
    blocks = _of_blocks(features)
    for most, config in ({} if blocks else FEW_ROWS).items():
        if rows <= most:
            return config
    if arch.name == "sm_90" and blocks and -(-rows // 256) * -(-n // 128) >= FEW_TILES:
        return TURNED if features["k"] >= TURNED_K else PAIRED
    if arch.name in ("sm_100", "sm_103") and not blocks and -(-rows // 256) * -(-n // 256) >= FEW_TILES:
        return TENSOR_MEMORY
    if -(-rows // LARGE.block_m) * -(-n // LARGE.block_n) >= FEW_TILES:
        return LARGE
    return LARGE if blocks else FEW_ROWS[128]


def _of_blocks(features: Mapping[str, Any]) -> bool:
    """Whether scales may be of blocks of 128 columns: with one block they may be of rows, too."""
    return bool(features["k_blocks"] > 1 or features["k"] <= 128)


def scaled_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[ScaledConfig]:
    """Tiles with a step of 128 columns, and eight warps: with fewer, registers spill."""
    rows, blocks = features["bucket(m, 8)"], _of_blocks(features)
    if blocks and arch.name == "sm_90" and rows >= 64:
        yield TURNED
    for block_m in (16, 32, 64, 128, 256):
        if (block_m > 128 and block_m >= 4 * rows) or (block_m <= 32 and blocks):
            continue
        for block_n in (64, 128, 256):
            for ctas in (1, 2) if block_m * block_n >= 16384 else (1,):
                if block_m * block_n <= 32768 * ctas:
                    yield ScaledConfig(block_m, block_n, 128, 8, ctas)
