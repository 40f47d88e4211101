"""The tile of a gated activation's block."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from opmux.plugin import Arch
from opmux_cutile.tiles import power_of_two

ELEMENTS = 1024
"""Of the usual tile: a vector of 16 bytes for each of 128 threads."""


@dataclass(frozen=True)
class GatedConfig:
    """The tile of a block.

    Attributes:
        rows: of the tile, a power of two up to 64.
        columns: of the tile, a power of two up to 8192.
        occupancy: blocks that the compiler is to make room for on a multiprocessor, up to 32; 0 leaves it to it.
        warps: that compute in a block, 4 or 8; 0 leaves it to the compiler.

    Raises:
        ValueError: where one is none of these.
    """

    rows: int
    columns: int
    occupancy: int = 0
    warps: int = 0

    def __post_init__(self) -> None:
        for name, value, most in (("rows", self.rows, 64), ("columns", self.columns, 8192)):
            if not 1 <= value <= most or value != power_of_two(value):
                raise ValueError(f"{name} expected a power of two up to {most}, got {value}")
        if self.rows * self.columns > 8192:
            raise ValueError(f"rows * columns expected 8192 or less, got {self.rows * self.columns}")
        if not 0 <= self.occupancy <= 32:
            raise ValueError(f"occupancy expected 0 to 32, got {self.occupancy}")
        if self.warps not in (0, 4, 8):
            raise ValueError(f"warps expected 0, 4 or 8, got {self.warps}")

    @property
    def hints(self) -> dict[str, int]:
        """For the compiler."""
        found = {"occupancy": self.occupancy} if self.occupancy else {}
        return found | ({"num_worker_warps": self.warps} if self.warps else {})


def gated_config(arch: Arch, features: Mapping[str, Any]) -> GatedConfig:
    """A tile of about `ELEMENTS`: a part of a row, or several short rows."""
    columns = min(power_of_two(features["n"]), ELEMENTS)
    return GatedConfig(min(ELEMENTS // columns, 64), columns)


def gated_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[GatedConfig]:
    """Tiles of 512 to 8192 elements, not wider than a row, with some occupancies."""
    widest = min(power_of_two(features["n"]), 8192)
    for elements in (512, 1024, 2048, 4096, 8192):
        for rows in (1, 2, 4, 8, 16, 32, 64):
            columns = elements // rows
            if columns <= widest and (columns == widest or rows == 1):
                for occupancy in (0, 4, 8):
                    yield GatedConfig(rows, columns, occupancy)
