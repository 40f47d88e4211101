"""The tile of a norm's block."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from opmux.plugin import Arch
from opmux_cutile.tiles import power_of_two

LONGEST = 16384
"""Columns of the widest tile: a thread then holds 128 of them."""
FEW = 1024
"""Columns below which a block computes several rows."""
MOST_ROWS = 16


@dataclass(frozen=True)
class NormConfig:
    """The tile of a block.

    Attributes:
        rows: of the tile, a power of two up to 16.
        occupancy: blocks that the compiler is to make room for on a multiprocessor, up to 32; 0 leaves it to it.

    Raises:
        ValueError: where one is none of these.
    """

    rows: int = 1
    occupancy: int = 0

    def __post_init__(self) -> None:
        if self.rows not in (1, 2, 4, 8, 16):
            raise ValueError(f"rows expected 1, 2, 4, 8 or 16, got {self.rows}")
        if not 0 <= self.occupancy <= 32:
            raise ValueError(f"occupancy expected 0 to 32, got {self.occupancy}")

    @property
    def hints(self) -> dict[str, int]:
        """For the compiler."""
        return {"occupancy": self.occupancy} if self.occupancy else {}


def norm_config(arch: Arch, features: Mapping[str, Any]) -> NormConfig:
    """Rows for a tile of about 1024 elements, one where they are longer."""
    return NormConfig(max(1, min(MOST_ROWS, FEW // power_of_two(features["hidden"]))))


def norm_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[NormConfig]:
    """Every tile of up to `LONGEST` elements, with some occupancies."""
    columns = power_of_two(features["hidden"])
    for rows in (1, 2, 4, 8, 16):
        if rows == 1 or rows * columns <= LONGEST:
            for occupancy in (0, 1, 2, 4, 8):
                yield NormConfig(rows, occupancy)
