"""Which tile of a product a workgroup computes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from opmux.plugin import Arch
from opmux_asm.kernels.block_products import TILES as BLOCK_TILES
from opmux_asm.kernels.products import TILES

UNITS = {"gfx942": 304, "gfx950": 256}
"""Compute units of the usual product of an arch: MI300X, MI355X."""
BUSY = {
    "gfx942": {
        (256, 256): 0.987, (256, 128): 0.973, (128, 256): 0.973, (128, 128): 0.990, (64, 128): 0.667, (64, 64): 0.501,
    },
    "gfx950": {
        (256, 256): 0.957, (256, 128): 0.808, (128, 256): 0.808, (128, 128): 0.954, (64, 128): 0.674, (64, 64): 0.502,
    },
}  # fmt: skip
"""By arch and tile, the share of its loop in which the matrix unit works, in bfloat16: what the emulator's model gives,
with which a test compares them. Small tiles read more of their operands for each product."""
BUSY_BLOCKS = {
    "gfx942": {(128, 128): 0.989, (64, 128): 0.658, (64, 64): 0.482},
    "gfx950": {(128, 128): 0.900, (64, 128): 0.648, (64, 64): 0.475},
}
"""The same for scales of blocks, in fp8."""
OVERHEAD = 2.0e5
"""What a tile costs beyond its products, in elements of the tile times k: filling the first buffers, and storing."""

NEAR = 1.05
"""By how much a larger tile may take longer: it reads less of memory, of which the model knows nothing."""


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
    return _fastest(arch, features, BUSY[arch.name])


def block_config(arch: Arch, features: Mapping[str, Any]) -> TileConfig:
    """The same of the tiles that kernels with scales of blocks have."""
    return _fastest(arch, features, BUSY_BLOCKS[arch.name])


def _fastest(arch: Arch, features: Mapping[str, Any], busy: Mapping[tuple[int, int], float]) -> TileConfig:
    m, n, k = 1 << min(_tokens(features), 30), features["n"], features["k"]
    units = UNITS[arch.name]

    def time(tile: tuple[int, int]) -> float:
        rows, columns = tile
        tiles = -(-m // rows) * -(-n // columns)
        rounds = -(-tiles // units)
        work = rows * columns / busy[tile]
        return float(rounds * (work * k + OVERHEAD * (rows + columns) / 64))

    times = {tile: time(tile) for tile in busy}
    near = [tile for tile, taken in times.items() if taken <= NEAR * min(times.values())]
    return TileConfig(*max(near, key=lambda tile: tile[0] * tile[1]))


def tile_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[TileConfig]:
    """Every tile."""
    return (TileConfig(*tile) for tile in TILES)


def block_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[TileConfig]:
    """Every tile of the kernels with scales of blocks."""
    return (TileConfig(*tile) for tile in BLOCK_TILES)


def _tokens(features: Mapping[str, Any]) -> int:
    """The bucket of rows: its exponent."""
    return int(next(features[name] for name in ("bucket(tokens)", "bucket(m)") if name in features))
