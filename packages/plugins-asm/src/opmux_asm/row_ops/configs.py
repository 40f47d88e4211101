"""How rows are cut among the threads of a workgroup."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from opmux.plugin import Arch
from opmux_asm.kernels.recipes import TILES

WIDTHS = ("hidden", "n", "k")
"""What the ops call the columns of a row; a record declares one of them."""


@dataclass(frozen=True)
class RowsConfig:
    """The tile of a kernel that holds whole rows.

    Attributes:
        waves: of a workgroup, which has one row.
        chunks: accesses of 16 bytes of a thread.
    """

    waves: int
    chunks: int

    def __post_init__(self) -> None:
        if (self.waves, self.chunks) not in TILES:
            raise ValueError(f"waves and chunks expected one of {TILES}, got {(self.waves, self.chunks)}")

    @property
    def bytes(self) -> int:
        """The longest row, in bytes."""
        return self.waves * self.chunks * 64 * 16


def rows_config(arch: Arch, features: Mapping[str, Any]) -> RowsConfig:
    """The smallest tile that holds a row of 16-bit elements: few waves wait less for one another."""
    return next(rows_space(arch, features))


def rows_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[RowsConfig]:
    """Every tile that holds a row of 16-bit elements."""
    columns = next(features[name] for name in WIDTHS if name in features)
    return (tile for tile in map(_config, TILES) if tile.bytes >= 2 * columns)


def for_row(config: RowsConfig, row_bytes: int) -> RowsConfig:
    """The config, or the smallest tile that holds rows of so many bytes, which wider elements may need."""
    if config.bytes >= row_bytes:
        return config
    return next(tile for tile in map(_config, TILES) if tile.bytes >= row_bytes)


def _config(tile: tuple[int, int]) -> RowsConfig:
    return RowsConfig(*tile)
