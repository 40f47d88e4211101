"""The instances of CK's norms: the space of their tiles, the rules of what is legal, and the tile for a call."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from opmux.plugin import Arch

WAVE = 64
"""Threads of a wave."""
MOST_THREADS = 1024
MOST_ELEMENTS = 64
"""Elements of a row that a thread may hold: two copies in float32 and the weight leave no register spilled."""
VECTORS = (1, 2, 4, 8)
SCALE_BLOCK = 128
"""The most columns that share a scale, where not all of a row do."""


@dataclass(frozen=True)
class NormConfig:
    """The tile of a workgroup.

    Attributes:
        rows: of a workgroup.
        threads: of a row.
        repeats: vectors of a thread.
        vector: elements of an access.
        pads: whether rows may end within the tile; without it they fill it.
        two_passes: whether rows may be longer than the tile, and are read twice.
    """

    rows: int
    threads: int
    repeats: int
    vector: int = 8
    pads: bool = True
    two_passes: bool = False

    def __post_init__(self) -> None:
        for reason in broken_rules(self):
            raise ValueError(reason)

    @property
    def columns(self) -> int:
        """Of the tile."""
        return self.threads * self.repeats * self.vector


@dataclass(frozen=True)
class QuantizedNormConfig(NormConfig):
    """The same where the result is quantised: a row is held whole, and a wave has whole blocks of 128 columns."""


def broken_rules(config: NormConfig) -> Iterator[str]:
    """Why no instance can be made of a config, whatever the call."""
    together = config.rows * config.threads
    if config.vector not in VECTORS:
        yield f"vector = {config.vector} is not {', '.join(map(str, VECTORS[:-1]))} or {VECTORS[-1]}"
    if min(config.rows, config.threads, config.repeats) < 1:
        yield f"rows, threads and repeats = {config.rows}, {config.threads}, {config.repeats}: one is less than 1"
        return
    if together % WAVE or together > MOST_THREADS:
        yield f"rows * threads = {together} is not a multiple of {WAVE} up to {MOST_THREADS}"
    if config.threads % WAVE:  # CK 1.2.0 then counts twice the waves that the rows need, and half of each is idle
        yield f"threads = {config.threads} is not a multiple of {WAVE}"
    if config.repeats * config.vector > MOST_ELEMENTS:
        yield f"repeats * vector = {config.repeats * config.vector} is more than {MOST_ELEMENTS} elements a thread"
    if isinstance(config, QuantizedNormConfig):
        if config.two_passes:
            yield "two_passes: a row that is quantised is held whole"
        if config.vector * WAVE < SCALE_BLOCK:
            yield f"vector = {config.vector}: a block of {SCALE_BLOCK} columns has more than {WAVE} threads"


def misfit(config: NormConfig, columns: int) -> str | None:
    """Why an instance cannot compute rows of so many columns, or None."""
    if columns % config.vector:
        return f"{columns} columns are not a multiple of the vector, {config.vector}"
    if not config.two_passes and columns > config.columns:
        return f"{columns} columns do not fit into the tile of {config.columns}"
    if not config.pads and columns % config.columns:
        return f"{columns} columns do not fill the tile of {config.columns}, and it does not pad"
    return None


WORKGROUPS = ((4, 64), (2, 128), (1, 256), (1, 512), (1, 1024))
"""Rows and threads of a row, in the space."""

LONGEST = 16384
"""Columns of the largest tile that a call gets."""
TILES = (
    NormConfig(4, 64, 1),  # up to 512 columns: a wave a row
    NormConfig(1, 256, 1),
    NormConfig(1, 256, 2),
    NormConfig(1, 256, 4),
    NormConfig(1, 1024, 2),  # up to LONGEST
    NormConfig(1, 1024, 2, two_passes=True),
)
"""What calls are given without a tuned record, by length."""
QUANTIZED_TILES = tuple(
    QuantizedNormConfig(tile.rows, tile.threads, tile.repeats) for tile in TILES if not tile.two_passes
)


def norm_config(arch: Arch, features: Mapping[str, Any]) -> NormConfig:
    """The smallest tile that holds a row; where none does, the one that reads rows twice."""
    return next(tile for tile in TILES if misfit(tile, features["hidden"]) is None)


def quantized_config(arch: Arch, features: Mapping[str, Any]) -> QuantizedNormConfig:
    """The smallest tile that holds a row whose norm is quantised."""
    return next(tile for tile in QUANTIZED_TILES if misfit(tile, features["hidden"]) is None)


def norm_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[NormConfig]:
    """Every legal tile for rows of a length, without those that are mostly padding, or read twice what they hold."""
    columns = features["hidden"]
    yield from _space(columns, two_passes=False)
    yield from (config for config in _space(columns, two_passes=True) if config.columns < columns)


def one_pass_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[NormConfig]:
    """Every legal tile that holds rows of a length, without those that are mostly padding."""
    return _space(features["hidden"], two_passes=False)


def quantized_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[QuantizedNormConfig]:
    """The same where the norm is quantised."""
    for tile in _space(features["hidden"], two_passes=False):
        if tile.vector * WAVE >= SCALE_BLOCK:
            yield QuantizedNormConfig(tile.rows, tile.threads, tile.repeats, tile.vector, tile.pads)


def _space(columns: int, two_passes: bool) -> Iterator[NormConfig]:
    for (rows, threads), vector, pads in itertools.product(WORKGROUPS, VECTORS[::-1], (True, False)):
        for repeats in range(1, MOST_ELEMENTS // vector + 1):
            config = NormConfig(rows, threads, repeats, vector, pads, two_passes)
            filled = repeats == 1 or 4 * columns > config.columns
            if filled and misfit(config, columns) is None:
                yield config
