"""Which tile of a product a workgroup computes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from opmux.plugin import Arch
from opmux_asm.kernels.products import TILES

UNITS = {"gfx942": 304, "gfx950": 256}
"""Compute units of the usual product of an arch: MI300X, MI355X."""
BUSY = {(256, 256): 0.98, (256, 128): 0.97, (128, 256): 0.97, (128, 128): 0.86, (64, 128): 0.66, (64, 64): 0.5}
"""By tile, the share of its loop in which the matrix unit is taken to work: what the emulator's model gives for short k
on gfx942. Small tiles read more of their operands for each product."""
OVERHEAD = 2.0e5
"""What a tile costs beyond its products, in elements of the tile times k: filling the first buffers, and storing."""


@dataclass(frozen=True)
class TileConfig:
    """A tile of the result.

    Attributes:
        rows: of x.
        columns: rows of w.
    """

    rows: int
    columns: int

    def __post_init__(self) -> None:
        if (self.rows, self.columns) not in TILES:
            raise ValueError(f"rows and columns expected one of {TILES}, got {(self.rows, self.columns)}")


def tile_config(arch: Arch, features: Mapping[str, Any]) -> TileConfig:
    """The tile with the least modelled time: rounds of tiles over the units, times what a tile takes.

    Nothing of this is measured.
    """
    m, n, k = 1 << min(_tokens(features), 30), features["n"], features["k"]
    units = UNITS.get(arch.name, 256)

    def time(tile: tuple[int, int]) -> float:
        rows, columns = tile
        tiles = -(-m // rows) * -(-n // columns)
        rounds = -(-tiles // units)
        work = rows * columns / BUSY[tile]
        return float(rounds * (work * k + OVERHEAD * (rows + columns) / 64))

    return TileConfig(*min(TILES, key=time))


def tile_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[TileConfig]:
    """Every tile."""
    return (TileConfig(*tile) for tile in TILES)


def _tokens(features: Mapping[str, Any]) -> int:
    """The bucket of rows: its exponent."""
    return int(next(features[name] for name in ("bucket(tokens)", "bucket(m)") if name in features))
