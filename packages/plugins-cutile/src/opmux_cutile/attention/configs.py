"""The tiles of attention."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from opmux.plugin import Arch
from opmux_cutile.tiles import power_of_two


@dataclass(frozen=True)
class AttentionConfig:
    """The tile of a block.

    Attributes:
        block_m, block_n: queries, and keys of a step.
        warps: that compute in a block, 4 or 8; 0 leaves it to the compiler.
        occupancy: blocks that the compiler is to make room for on a multiprocessor, up to 8; 0 leaves it to it.

    Raises:
        ValueError: where one is none of these.
    """

    block_m: int
    block_n: int
    warps: int = 0
    occupancy: int = 0

    def __post_init__(self) -> None:
        sizes = (16, 32, 64, 128, 256)
        known = {"block_m": sizes, "block_n": sizes, "warps": (0, 4, 8), "occupancy": tuple(range(9))}
        for name, values in known.items():
            if getattr(self, name) not in values:
                raise ValueError(f"{name} expected one of {', '.join(map(str, values))}, got {getattr(self, name)}")

    @property
    def hints(self) -> dict[str, int]:
        """For the compiler."""
        found = {"num_worker_warps": self.warps} if self.warps else {}
        return found | ({"occupancy": self.occupancy} if self.occupancy else {})


@dataclass(frozen=True)
class ForwardConfig(AttentionConfig):
    """The tile of a block, and that of calls that have few of them.

    Attributes:
        few: the tile of calls of up to `FEW` blocks, and of those with a window on the left, a cap, sinks or an lse,
            with as many queries; None for the same one.

    Raises:
        ValueError: where a size is none of those of `AttentionConfig`, or `few` has other queries.
    """

    few: AttentionConfig | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.few and self.few.block_m != self.block_m:
            raise ValueError(f"few expected block_m of {self.block_m}, got {self.few.block_m}")

    def tiles(self, blocks: int, plain: bool) -> tuple[AttentionConfig, ...]:
        """The tile of a call, and then that of calls like it with another number of blocks.

        Args:
            blocks: of queries, of all heads and sequences.
            plain: whether it has none of what takes `few` whatever its blocks.
        """
        if self.few is None:
            return (self,)
        if not plain:
            return (self.few,)
        return (self.few, self) if blocks <= FEW else (self, self.few)


FEW = 264
"""Blocks that an H100 or H200 of 132 multiprocessors takes at once, two on each."""

IN_REGISTERS = ("sm_120", "sm_121")
"""Archs whose matrix units take both operands from registers, and that have a copy engine."""


def attention_config(arch: Arch, features: Mapping[str, Any]) -> ForwardConfig:
    """Two blocks with 64 queries each on a Hopper multiprocessor; elsewhere one with two groups of warps of as many.

    With heads up to 64 a Hopper multiprocessor has four such blocks, with steps of 64 keys: on an H200 that is 1.03 to
    1.09 times as fast as two blocks with steps of 128 keys. With few blocks in a call it is slower. Calls with a
    window, a cap, sinks or an lse have run in the tile of few blocks alone; with a window, four blocks spill registers.

    Where heads are wide, steps have 64 keys, and a block two groups of warps: with one, a soft cap under a mask spills
    registers. On Blackwell it does so with 128 queries, too. Where the matrix units take both operands from registers,
    a block has one group of warps for heads over 64.
    """
    widest = power_of_two(max(features["head_dim"], features["value_dim"]))
    if widest > 128:
        return ForwardConfig(128 if arch.name == "sm_90" else 64, 64, 8)
    if arch.name in IN_REGISTERS and widest > 64:
        return ForwardConfig(64, 64, 4)
    if arch.name != "sm_90":
        return ForwardConfig(128, 128, 8)
    if widest > 64:
        return ForwardConfig(64, 128, 4, 2)
    return ForwardConfig(64, 64, 4, 4, AttentionConfig(64, 128, 4, 2))


def attention_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[ForwardConfig]:
    """The choice, and other blocks whose sums and scores fit the registers."""
    widest = power_of_two(max(features["head_dim"], features["value_dim"]))
    chosen = attention_config(arch, features)
    yield chosen
    for block_m, warps in ((64, 4), (128, 8), (256, 8), (128, 4)):
        for block_n in (32, 64, 128, 256):
            if block_m * (widest + block_n) <= warps * 32 * 224:
                four = warps == 4 and block_m * (widest + block_n) <= warps * 32 * 64
                for occupancy in (0, 1, 2, 4) if four else (0, 1, 2):
                    few = chosen.few if block_m == chosen.block_m else None
                    if (config := ForwardConfig(block_m, block_n, warps, occupancy, few)) != chosen:
                        yield config
