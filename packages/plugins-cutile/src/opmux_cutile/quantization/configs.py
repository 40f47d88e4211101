"""The tiles of quantisation, which are those of norms and of gated activations."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from opmux.plugin import Arch
from opmux_cutile.gates.configs import GatedConfig
from opmux_cutile.norms.configs import FEW, LONGEST, MOST_ROWS, NormConfig
from opmux_cutile.tiles import power_of_two

ELEMENTS = 2048
"""Of a tile: 16 for each of 128 threads."""


@dataclass(frozen=True)
class NormedConfig(NormConfig):
    """The tile of a block that norms rows.

    Attributes:
        ahead: whether as many blocks as the occupancy says take turns at the rows, and read the next ones before they
            compute some. Only in 16 bits and whole vectors.

    Raises:
        ValueError: where it is to be so without an occupancy.
    """

    ahead: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ahead and not self.occupancy:
            raise ValueError("occupancy expected 1 to 32 where rows are read ahead, got 0")


def groups_config(arch: Arch, features: Mapping[str, Any]) -> GatedConfig:
    """A part of a row, or several rows; whole rows where they have one scale each."""
    width = features["k"] if "k" in features else features["n"]
    columns = max(power_of_two(width), 128)
    if features["block"][1] != -1:
        columns = min(columns, 2048)
    columns = min(columns, 8192)
    wide = columns > 4096
    return GatedConfig(max(1, min(64, ELEMENTS // columns)), columns, 3 if wide else 0, 8 if wide else 0)


def groups_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[GatedConfig]:
    """Tiles of 1024 to 8192 elements, with some occupancies."""
    first = groups_config(arch, features)
    widths = [first.columns] if features["block"][1] == -1 else [c for c in (512, 1024, 2048) if c <= first.columns]
    for columns in widths or [first.columns]:
        for elements in (1024, 2048, 4096, 8192):
            if columns <= elements <= 64 * columns:
                for occupancy in (0, 4, 8):
                    yield GatedConfig(elements // columns, columns, occupancy)
                if elements >= 4096:
                    yield from (GatedConfig(elements // columns, columns, occupancy, 8) for occupancy in (0, 2, 3, 4))


def rows_config(arch: Arch, features: Mapping[str, Any]) -> NormConfig:
    """Whole rows: several where they are short; of 4096 and 8192 columns held in few registers, for more blocks."""
    columns = power_of_two(features["hidden"])
    few = {4096: (8, 0), 8192: (4, 8)}
    return NormConfig(max(1, min(MOST_ROWS, FEW // columns)), *few.get(columns, (0, 0)))


def rows_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[NormConfig]:
    """Every number of rows whose tile has up to `LONGEST` elements, with some occupancies."""
    columns = power_of_two(features["hidden"])
    for rows in (1, 2, 4, 8, 16):
        if rows == 1 or rows * columns <= LONGEST:
            for occupancy in (0, 2, 4, 8):
                yield NormConfig(rows, occupancy)
            if rows * columns >= 8192:
                yield from (NormConfig(rows, occupancy, 8) for occupancy in (0, 2, 4))


def normed_config(arch: Arch, features: Mapping[str, Any]) -> NormedConfig:
    """As `rows_config`; on Hopper rows of about 4096 are read ahead, as was 1.04 and 1.05 times as fast on an H200."""
    if arch.name == "sm_90" and power_of_two(features["hidden"]) == 4096:
        return NormedConfig(1, 5, 0, True) if features["block"][1] == -1 else NormedConfig(1, 4, 8, True)
    found = rows_config(arch, features)
    return NormedConfig(found.rows, found.occupancy, found.warps)


def normed_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[NormedConfig]:
    """As `rows_space`, and rows read ahead."""
    yield from (NormedConfig(c.rows, c.occupancy, c.warps) for c in rows_space(arch, features))
    if power_of_two(features["hidden"]) <= 4096:
        yield from (NormedConfig(1, occupancy, warps, True) for occupancy, warps in ((4, 0), (5, 0), (4, 8)))
