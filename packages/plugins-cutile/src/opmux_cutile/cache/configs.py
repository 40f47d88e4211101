"""The tile of a write to a paged cache, which is that of rotary embedding."""

from collections.abc import Iterator, Mapping
from typing import Any

from opmux.plugin import Arch
from opmux_cutile.rope.configs import RopeConfig
from opmux_cutile.tiles import power_of_two


def write_config(arch: Arch, features: Mapping[str, Any]) -> RopeConfig:
    """About 2048 elements of keys at a time: one token with all its heads, or several where they are few."""
    return RopeConfig(max(1, min(64, 2048 // _elements(features))))


def write_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[RopeConfig]:
    """A few numbers of tokens and of elements, with some occupancies."""
    first = write_config(arch, features).tokens
    for tokens in sorted({first, max(1, first // 2), min(64, 2 * first), min(64, 4 * first)}):
        for elements in (1024, 2048, 4096):
            for occupancy in (0, 4, 8):
                yield RopeConfig(tokens, elements, occupancy)


def _elements(features: Mapping[str, Any]) -> int:
    return power_of_two(features["kv_heads"]) * power_of_two(max(features["head_dim"], features["value_dim"]))
