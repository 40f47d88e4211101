"""The tile of attention over pages for a call without a tuned record, and the space. Nothing is measured."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from opmux.plugin import Arch
from opmux_ck.attention.configs import misfit_of_heads
from opmux_ck.attention.paged_configs import MOST_PARTS, PagedConfig, misfit_of_page
from opmux_ck.gemm.choice import UNITS

MANY_ROWS = (
    PagedConfig(64, 32, 32, 32, 4, 16),
    PagedConfig(32, 32, 16, 32, 2, 16),
    PagedConfig(32, 16, 32, 16, 2, 16),
)
FEW_ROWS = (
    PagedConfig(16, 32, 32, 32, 1, 16),
    PagedConfig(16, 16, 32, 16, 1, 16),
    PagedConfig(16, 32, 16, 32, 1, 16),
    PagedConfig(16, 16, 16, 16, 1, 16),
)
"""Tiles for up to 16 rows, and for more, by preference: the first that fits the heads and divides a page. Those with a
`dim_step` of 16 are for heads of 32, which take two steps too."""
SPACE = (*MANY_ROWS, *FEW_ROWS)
LEAST_KEYS = 256
"""Keys of a part where the parts are chosen here: with fewer, to combine them takes longer than they save."""


def paged_config(arch: Arch, features: Mapping[str, Any]) -> PagedConfig:
    """The tile for a call; keys are cut into parts while there are fewer workgroups than compute units."""
    rows, columns = _rows(features)
    tiles = FEW_ROWS if rows <= FEW_ROWS[0].queries else (*MANY_ROWS, *FEW_ROWS)
    tile = next(one for one in tiles if _fits(one, features))
    workgroups = -(-rows // tile.queries) * columns * _size(features, "batch")
    parts = 1
    while 2 * parts <= MOST_PARTS and 2 * parts * workgroups <= UNITS[arch.name] and (
        _size(features, "max_seqlen_k") >= 2 * parts * LEAST_KEYS
    ):  # fmt: skip
        parts *= 2
    return replace(tile, parts=parts)


def paged_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[PagedConfig]:
    """Every tile that fits heads and pages and is not mostly padding, each with several numbers of parts."""
    rows, _ = _rows(features)
    for tile in SPACE:
        wide = tile.queries > 16 and tile.queries >= 2 * rows
        if not wide and _fits(tile, features):
            parts = 1
            while parts == 1 or (parts <= MOST_PARTS and _size(features, "max_seqlen_k") >= parts * tile.keys):
                yield replace(tile, parts=parts)
                parts *= 2


def _fits(tile: PagedConfig, features: Mapping[str, Any]) -> bool:
    return (
        misfit_of_heads(tile, features["head_dim"], features["value_dim"]) is None
        and misfit_of_page(tile, features["page_size"]) is None
    )


def _rows(features: Mapping[str, Any]) -> tuple[int, int]:
    """Rows of a sequence in one row of tiles, and such rows of tiles: one for each head, or for each that has keys."""
    queries, heads, kv_heads = _size(features, "max_seqlen_q"), features["heads"], features["kv_heads"]
    left, right = features["window"]
    masked = left >= 0 or (queries > 1 and (features["causal"] or right >= 0))
    return (queries, heads) if masked else (queries * heads // max(kv_heads, 1), kv_heads)


def _size(features: Mapping[str, Any], name: str) -> int:
    """A size that is known by its bucket, rounded up to a power of two."""
    return 1 << min(int(features[f"bucket({name})"]), 30)
