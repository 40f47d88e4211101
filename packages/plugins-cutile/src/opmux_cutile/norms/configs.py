"""The tile of a norm's block."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from opmux.plugin import Arch
from opmux_cutile.archs import WITHOUT_COPY_ENGINE
from opmux_cutile.tiles import power_of_two

LONGEST = 16384
"""Columns of the widest tile: a thread then holds 128 of them."""
LONGEST_BACKWARD = 8192
"""Columns of the widest tile of gradients, of which a thread holds two rows and a row of sums."""
FEW = 1024
"""Columns below which a block computes several rows."""
MOST_ROWS = 16
THREADS = 128
"""Of a block: elements of the smallest tile, for in a smaller one several threads would hold the same element."""


@dataclass(frozen=True)
class NormConfig:
    """The tile of a block.

    Attributes:
        rows: of the tile, a power of two up to 16.
        occupancy: blocks that the compiler is to make room for on a multiprocessor, up to 32; 0 leaves it to it.
        warps: that compute in a block, 4 or 8; 0 leaves it to the compiler.

    Raises:
        ValueError: where one is none of these.
    """

    rows: int = 1
    occupancy: int = 0
    warps: int = 0

    def __post_init__(self) -> None:
        if self.rows not in (1, 2, 4, 8, 16):
            raise ValueError(f"rows expected 1, 2, 4, 8 or 16, got {self.rows}")
        if not 0 <= self.occupancy <= 32:
            raise ValueError(f"occupancy expected 0 to 32, got {self.occupancy}")
        if self.warps not in (0, 4, 8):
            raise ValueError(f"warps expected 0, 4 or 8, got {self.warps}")

    @property
    def hints(self) -> dict[str, int]:
        """For the compiler."""
        found = {"occupancy": self.occupancy} if self.occupancy else {}
        return found | ({"num_worker_warps": self.warps} if self.warps else {})


def norm_config(arch: Arch, features: Mapping[str, Any]) -> NormConfig:
    """Rows for a tile of about 1024 elements, one where they are longer."""
    return NormConfig(max(1, min(MOST_ROWS, FEW // power_of_two(features["hidden"]))))


def layer_norm_config(arch: Arch, features: Mapping[str, Any]) -> NormConfig:
    """As `norm_config`; rows of 1024 to 4096 are held in few registers, so that four blocks fit a multiprocessor."""
    found = norm_config(arch, features)
    return NormConfig(1, 4) if FEW <= power_of_two(features["hidden"]) <= 4096 else found


def add_norm_config(arch: Arch, features: Mapping[str, Any]) -> NormConfig:
    """As `norm_config`; rows of about 8192 get eight warps, and room for two blocks."""
    found = norm_config(arch, features)
    return NormConfig(1, 2, 8) if power_of_two(features["hidden"]) == 8192 else found


def add_layer_norm_config(arch: Arch, features: Mapping[str, Any]) -> NormConfig:
    """As `layer_norm_config`; rows of about 8192 as in `add_norm_config`."""
    choice = add_norm_config if power_of_two(features["hidden"]) == 8192 else layer_norm_config
    return choice(arch, features)


def tile_columns(config: NormConfig, width: int) -> int:
    """Columns of the tile for rows of a width."""
    return max(power_of_two(width), THREADS // config.rows)


def norm_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[NormConfig]:
    """Every tile of up to `LONGEST` elements, with some occupancies."""
    columns = power_of_two(features["hidden"])
    for rows in (1, 2, 4, 8, 16):
        if rows == 1 or rows * columns <= LONGEST:
            for occupancy in (0, 1, 2, 4, 8):
                yield NormConfig(rows, occupancy)
            if rows * columns >= 4096:
                yield from (NormConfig(rows, occupancy, 8) for occupancy in (0, 1, 2, 4))


def backward_config(arch: Arch, features: Mapping[str, Any]) -> NormConfig:
    """As `norm_config`; of long rows a thread holds two, the next two and a row of sums: eight warps, in few blocks.

    Before Hopper rows of 4096 around their mean spill registers with room for two blocks.
    """
    found = norm_config(arch, features)
    columns = power_of_two(features["hidden"])
    blocks = {4096: 1 if arch.name in WITHOUT_COPY_ENGINE else 2, 8192: 1}
    return NormConfig(found.rows, blocks.get(columns, 0), 8 if columns >= 4096 else 0)
