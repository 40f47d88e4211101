"""The tile of rotary embedding's block."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from opmux.plugin import Arch
from opmux_cutile.tiles import power_of_two


@dataclass(frozen=True)
class RopeConfig:
    """The tile of a block.

    Attributes:
        tokens: of the block, a power of two up to 64.
        elements: the most of one half of the heads that are rotated at a time, a power of two from 128 to 8192.
        occupancy: blocks that the compiler is to make room for on a multiprocessor, up to 32; 0 leaves it to it.

    Raises:
        ValueError: where one is none of these.
    """

    tokens: int
    elements: int = 2048
    occupancy: int = 0

    def __post_init__(self) -> None:
        for name, value, least, most in (("tokens", self.tokens, 1, 64), ("elements", self.elements, 128, 8192)):
            if not least <= value <= most or value != power_of_two(value):
                raise ValueError(f"{name} expected a power of two from {least} to {most}, got {value}")
        if not 0 <= self.occupancy <= 32:
            raise ValueError(f"occupancy expected 0 to 32, got {self.occupancy}")

    @property
    def hints(self) -> dict[str, int]:
        """For the compiler."""
        return {"occupancy": self.occupancy} if self.occupancy else {}

    def heads(self, heads: int, pairs: int) -> int:
        """Heads that are rotated at a time."""
        return max(1, min(power_of_two(heads), self.elements // (self.tokens * pairs)))


def rope_config(arch: Arch, features: Mapping[str, Any]) -> RopeConfig:
    """Two tokens and 512 pairs, four for each of 128 threads, or more tokens where they have few pairs."""
    numbers = power_of_two(features["heads"]) * power_of_two(max(features["half"], 1))
    return RopeConfig(max(2, min(64, 512 // numbers)), 512)


def rope_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[RopeConfig]:
    """A few numbers of tokens and of elements, with some occupancies."""
    first = rope_config(arch, features).tokens
    for tokens in sorted({first, max(1, first // 2), min(64, 2 * first), min(64, 4 * first)}):
        for elements in (512, 1024, 2048, 4096):
            for occupancy in (0, 4, 8):
                yield RopeConfig(tokens, elements, occupancy)
