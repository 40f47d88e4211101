"""The tiles of attention over a paged cache, which are those of attention."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from opmux.plugin import Arch
from opmux_cutile.attention.configs import AttentionConfig
from opmux_cutile.tiles import power_of_two


@dataclass(frozen=True)
class PagedConfig(AttentionConfig):
    """The tile of a block whose keys are looked up one by one, and those of decoding by slices of pages.

    Attributes:
        of_numbers, of_codes: of decoding from caches of 16-bit floats, and of codes, where pages are copied as slices;
            None looks up each key.
    """

    of_numbers: AttentionConfig | None = None
    of_codes: AttentionConfig | None = None


OF_NUMBERS = AttentionConfig(16, 32, occupancy=4)
OF_CODES = AttentionConfig(16, 64, occupancy=2)
SLICES = (
    OF_NUMBERS, AttentionConfig(16, 32, occupancy=3), OF_CODES, AttentionConfig(16, 64, occupancy=3),
    AttentionConfig(16, 128, 8),
)  # fmt: skip
"""Tiles of decoding by slices of pages that the tuner tries."""


def paged_config(arch: Arch, features: Mapping[str, Any]) -> PagedConfig:
    """Up to 64 rows, and 64 keys of a step, or 32 where heads are wide.

    With room for two blocks on a Hopper multiprocessor the compiler spills nothing where narrow heads have sinks. With
    room for one it takes all 255 registers and spills 600 bytes.

    Decoding by slices of pages was timed on an H200 with heads of 128, in pages of 16 and 64: from codes 3.5 to 4.1
    times as fast as key by key, from bfloat16 1.25 to 1.9 times. With room for four blocks on a multiprocessor, from
    bfloat16, it is 1.07 to 1.24 times as fast again as with three.
    """
    widest = power_of_two(max(features["head_dim"], features["value_dim"]))
    by_key = AttentionConfig(64, 32 if widest > 128 else 64, 4)
    if arch.name != "sm_90":
        return PagedConfig(**vars(by_key))  # slices of pages have run on Hopper alone
    if widest <= 64:
        by_key = AttentionConfig(64, 64, 4, 2)
    return PagedConfig(**vars(by_key), of_numbers=OF_NUMBERS, of_codes=OF_CODES)


def paged_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[PagedConfig]:
    """Blocks whose sums and scores fit the registers."""
    widest = power_of_two(max(features["head_dim"], features["value_dim"]))
    for block_m, warps in ((16, 4), (64, 4), (128, 8)):
        for block_n in (16, 32, 64, 128):
            if block_m * (widest + block_n) <= warps * 32 * 224:
                yield PagedConfig(block_m, block_n, warps)
    heuristic = paged_config(arch, features)
    if heuristic.of_codes:
        for tile in SLICES:
            yield replace(heuristic, of_numbers=tile, of_codes=tile)
