"""The tiles of attention over a paged cache where both operands of the matrix units come from registers.

With these, the compiler's code for `sm_80` to `sm_89` and `sm_120` spills no registers; with 64 rows and 64 keys in a
step that for `sm_80` does. Where a call has fewer rows than a tile, `kernel_of_keys` gives a step up to 64 keys.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from opmux.plugin import Arch
from opmux_cutile.archs import WITHOUT_COPY_ENGINE
from opmux_cutile.paged.configs import PagedConfig
from opmux_cutile.tiles import power_of_two

USUAL = PagedConfig(64, 32, 4)
FEW_ROWS = PagedConfig(32, 32, 4)
FEW_KEYS = PagedConfig(32, 16, 4)
NARROW = PagedConfig(16, 16, 4)
FEW_CODES = PagedConfig(16, 32, 4)
TILES = (USUAL, FEW_ROWS, FEW_KEYS, NARROW, FEW_CODES, PagedConfig(64, 16, 4), PagedConfig(64, 64, 4))
"""That the tuner tries."""


def gathered_config(arch: Arch, features: Mapping[str, Any]) -> PagedConfig:
    """64 rows and 32 keys in a step, 64 where rows are fewer, as in decoding; fewer where heads are wide or narrow."""
    widest, narrowest = (power_of_two(f(features["head_dim"], features["value_dim"])) for f in (max, min))
    if widest > 128:
        return FEW_ROWS
    return NARROW if narrowest < 32 and widest <= 64 else USUAL


def gathered_codes_config(arch: Arch, features: Mapping[str, Any]) -> PagedConfig:
    """64 rows for heads of 128, 32 for narrower ones, whose codes are read further ahead, 16 for wider ones.

    On `sm_80` to `sm_89` all have 16, as more rows spill with sinks under a mask or a window.
    """
    widest = power_of_two(max(features["head_dim"], features["value_dim"]))
    if widest > 128 or arch.name in WITHOUT_COPY_ENGINE:
        return FEW_CODES
    return USUAL if widest == 128 else FEW_ROWS


def gathered_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[PagedConfig]:
    """The choice, and other tiles."""
    yield from _first(gathered_config(arch, features))


def gathered_codes_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[PagedConfig]:
    """The choice, and other tiles."""
    yield from _first(gathered_codes_config(arch, features))


def _first(chosen: PagedConfig) -> Iterator[PagedConfig]:
    yield chosen
    yield from (tile for tile in TILES if tile != chosen)
