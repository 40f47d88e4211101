"""The tile for a call without a tuned record, and the space that tuning searches. Nothing of it is measured."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from typing import Any, TypeVar

from opmux.plugin import Arch
from opmux_ck.gemm.configs import (
    STORES,
    BlockCodesConfig,
    CodesConfig,
    GemmConfig,
    GroupedBlockCodesConfig,
    GroupedCodesConfig,
    GroupedConfig,
    misfit,
)

Config = TypeVar("Config", bound=GemmConfig)
Codes = TypeVar("Codes", bound=CodesConfig)
Shape = tuple[int, int, int, int, int, int, int]

UNITS = {"gfx942": 304, "gfx950": 256}
"""Compute units of the usual product of an arch: MI300X, MI355X."""

FEW_ROWS = GemmConfig(16, 64, 128, 1, 4, 16, 32, "mem")
TILES = (
    GemmConfig(256, 128, 64, 2, 2, 32, 16),
    GemmConfig(128, 128, 64, 2, 2, 32, 16),
    GemmConfig(64, 64, 128, 2, 2, 16, 32),
)
"""From the one that reads least of memory for each product to the one that there are most of."""
CODES_TILES = (
    CodesConfig(128, 128, 128, 2, 2, 32, 16),
    CodesConfig(64, 64, 128, 2, 2, 16, 32),
)
FEW_ROWS_OF_CODES = CodesConfig(16, 64, 256, 1, 4, 16, 32)
BLOCK_TILES = (
    BlockCodesConfig(128, 128, 128, 2, 2, 32, 16),
    BlockCodesConfig(64, 64, 128, 2, 2, 16, 32),
)
FEW_ROWS_OF_BLOCKS = BlockCodesConfig(16, 64, 128, 1, 2, 16, 32)
FEW_ROWS_OF_GROUPS = GroupedConfig(16, 64, 128, 1, 4, 16, 32, "mem")
GROUPED_TILES = (
    GroupedConfig(128, 128, 64, 2, 2, 32, 16),
    GroupedConfig(64, 64, 128, 2, 2, 16, 32),
)
"""For groups of at least as many rows, on average; the last one for smaller groups too."""
GROUPED_CODES_TILES = tuple(GroupedCodesConfig(*astuple(tile)) for tile in (FEW_ROWS_OF_CODES, *CODES_TILES))
GROUPED_BLOCK_TILES = tuple(GroupedBlockCodesConfig(*astuple(tile)) for tile in (FEW_ROWS_OF_BLOCKS, *BLOCK_TILES))
"""The same for codes; the first one is for few rows."""
LEAST_STEPS = 4
"""Steps of k that a part has where the parts are chosen here: fewer do not fill the loop."""

SHAPES = (
    (16, 64, 128, 1, 4, 16, 32),
    (16, 128, 128, 1, 4, 16, 32),
    (32, 64, 128, 1, 4, 16, 32),
    (32, 128, 64, 1, 4, 32, 8),
    (64, 64, 64, 2, 2, 32, 8),
    (64, 64, 128, 2, 2, 16, 32),
    (64, 128, 64, 2, 2, 32, 16),
    (128, 64, 64, 2, 2, 32, 16),
    (128, 128, 32, 2, 2, 32, 8),
    (128, 128, 64, 2, 2, 16, 32),
    (128, 128, 64, 2, 2, 32, 16),
    (128, 256, 32, 2, 2, 32, 16),
    (256, 128, 32, 2, 2, 32, 16),
    (256, 128, 64, 2, 2, 32, 16),
)
"""Tiles of the space: m, n, k, waves in m and n, and the matrix instruction."""
CODES_SHAPES = (
    (16, 64, 256, 1, 4, 16, 32),
    (16, 128, 256, 1, 4, 16, 32),
    (32, 64, 128, 1, 4, 16, 32),
    (32, 128, 128, 1, 4, 32, 16),
    (64, 64, 128, 2, 2, 16, 32),
    (64, 128, 128, 2, 2, 32, 16),
    (128, 64, 128, 2, 2, 32, 16),
    (128, 128, 64, 2, 2, 32, 16),
    (128, 128, 128, 2, 2, 32, 16),
)
"""The same for codes."""
BLOCK_SHAPES = (
    (16, 64, 128, 1, 2, 16, 32),
    (32, 64, 128, 1, 4, 16, 32),
    (32, 128, 128, 1, 4, 32, 16),
    (64, 64, 128, 2, 2, 16, 32),
    (64, 128, 128, 2, 2, 32, 16),
    (128, 64, 128, 2, 2, 32, 16),
    (128, 128, 128, 2, 2, 32, 16),
)
"""The same for codes with scales of blocks."""
SPLITS = (1, 2, 4, 8, 16)


def gemm_config(arch: Arch, features: Mapping[str, Any]) -> GemmConfig:
    """The tile for a call: the largest that occupies every compute unit; k is cut where none does."""
    rows, n, k = _sizes(features)
    units = UNITS[arch.name]
    tile = FEW_ROWS if rows <= FEW_ROWS.m else _largest(TILES, rows, n, units)
    workgroups = _workgroups(tile, rows, n)
    fitting = replace(tile, store=_store(n), pads_n=n % tile.n > 0, pads_k=k % tile.k > 0)
    splits = [1]
    for split in SPLITS[1:]:
        if workgroups * split <= units and k % (tile.k * split) == 0 and k >= LEAST_STEPS * tile.k * split:
            splits.append(split)
    return replace(fitting, split_k=splits[-1])


def gemm_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[GemmConfig]:
    """Every legal tile for a call, without those that are mostly padding."""
    rows, n, k = _sizes(features)
    for shape, pipeline, split in itertools.product(SHAPES, ("v3", "v4", "mem"), SPLITS):
        m, tile_n, tile_k = shape[:3]
        try:
            config = GemmConfig(*shape, pipeline, _store(n), n % tile_n > 0, k % tile_k > 0, split)
        except ValueError:
            continue  # two buffers of large tiles are more than LDS has
        if (m <= 16 or m < 2 * rows) and tile_n < 2 * max(n, 64) and misfit(config, n, k) is None:
            yield config


def codes_config(arch: Arch, features: Mapping[str, Any]) -> CodesConfig:
    """The tile for a call on codes: the largest that occupies every compute unit."""
    return _one_of_codes(FEW_ROWS_OF_CODES, CODES_TILES, arch, features)


def codes_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[CodesConfig]:
    """Every legal tile for a call on codes, without those that are mostly padding."""
    return _all_of_codes(CodesConfig, CODES_SHAPES, _sizes(features))


def blocks_config(arch: Arch, features: Mapping[str, Any]) -> BlockCodesConfig:
    """The tile for a call on codes with scales of blocks: the largest that occupies every compute unit."""
    return _one_of_codes(FEW_ROWS_OF_BLOCKS, BLOCK_TILES, arch, features)


def blocks_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[BlockCodesConfig]:
    """Every legal tile for a call on codes with scales of blocks, without those that are mostly padding."""
    return _all_of_codes(BlockCodesConfig, BLOCK_SHAPES, _sizes(features))


def grouped_config(arch: Arch, features: Mapping[str, Any]) -> GroupedConfig:
    """The tile for groups of rows: the largest that a group fills on average."""
    return _one_of_groups(FEW_ROWS_OF_GROUPS, GROUPED_TILES, features)


def grouped_codes_config(arch: Arch, features: Mapping[str, Any]) -> GroupedCodesConfig:
    """The same for codes."""
    return _one_of_groups(GROUPED_CODES_TILES[0], GROUPED_CODES_TILES[1:], features)


def grouped_blocks_config(arch: Arch, features: Mapping[str, Any]) -> GroupedBlockCodesConfig:
    """The same for codes with scales of blocks."""
    return _one_of_groups(GROUPED_BLOCK_TILES[0], GROUPED_BLOCK_TILES[1:], features)


def grouped_codes_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[GroupedCodesConfig]:
    """Every legal tile for groups of rows of codes, without those that are mostly padding."""
    return _all_of_codes(GroupedCodesConfig, CODES_SHAPES, _group_sizes(features))


def grouped_blocks_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[GroupedBlockCodesConfig]:
    """The same for codes with scales of blocks."""
    return _all_of_codes(GroupedBlockCodesConfig, BLOCK_SHAPES, _group_sizes(features))


def grouped_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[GroupedConfig]:
    """Every legal tile for groups of rows, without those that are mostly padding."""
    rows, n, k = _group_sizes(features)
    for shape, pipeline in itertools.product(SHAPES, GroupedConfig.pipelines):
        m, tile_n, tile_k = shape[:3]
        config = GroupedConfig(*shape, pipeline, _store(n), n % tile_n > 0, k % tile_k > 0)
        if (m <= 16 or m < 2 * rows) and tile_n < 2 * max(n, 64) and misfit(config, n, k) is None:
            yield config


def _group_sizes(features: Mapping[str, Any]) -> tuple[int, int, int]:
    """Rows of a group, on average; n; k."""
    if "bucket(expected_m)" in features:
        return 1 << min(int(features["bucket(expected_m)"]), 30), features["n"], features["k"]
    rows, n, k = _sizes(features)
    return max(rows // max(features["groups"], 1), 1), n, k


def _one_of_codes(few_rows: Codes, tiles: Sequence[Codes], arch: Arch, features: Mapping[str, Any]) -> Codes:
    rows, n, k = _sizes(features)
    tile = few_rows if rows <= few_rows.m else _largest(tiles, rows, n, UNITS[arch.name])
    return replace(tile, store=_store(n), pads_n=n % tile.n > 0, pads_k=k % tile.k > 0)


def _one_of_groups(few_rows: Config, tiles: Sequence[Config], features: Mapping[str, Any]) -> Config:
    rows, n, k = _group_sizes(features)
    tile = few_rows
    if rows > tile.m:
        tile = next((one for one in tiles if rows >= one.m), tiles[-1])
    return replace(tile, store=_store(n), pads_n=n % tile.n > 0, pads_k=k % tile.k > 0)


def _all_of_codes(kind: type[Codes], shapes: Sequence[Shape], sizes: tuple[int, int, int]) -> Iterator[Codes]:
    rows, n, k = sizes
    for shape in shapes:
        m, tile_n, tile_k = shape[:3]
        config = kind(*shape, "v3", _store(n), n % tile_n > 0, k % tile_k > 0)
        if (m <= 16 or m < 2 * rows) and tile_n < 2 * max(n, 64) and misfit(config, n, k) is None:
            yield config


def _largest(tiles: Sequence[Config], rows: int, n: int, units: int) -> Config:
    return next((tile for tile in tiles if _workgroups(tile, rows, n) >= units), tiles[-1])


def _workgroups(tile: GemmConfig, rows: int, n: int) -> int:
    return -(-rows // tile.m) * -(-n // tile.n)


def _store(n: int) -> int:
    return next(store for store in STORES[::-1] if n % store == 0)


def _sizes(features: Mapping[str, Any]) -> tuple[int, int, int]:
    """Rows, rounded up to a power of two; n; k."""
    bucket = next(features[name] for name in ("bucket(tokens)", "bucket(m)") if name in features)
    return 1 << min(int(bucket), 30), features["n"], features["k"]
