"""The tiles of the gradients of attention."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from opmux.plugin import Arch
from opmux_cutile.attention.configs import IN_REGISTERS, AttentionConfig
from opmux_cutile.tiles import power_of_two


@dataclass(frozen=True)
class AttentionBackwardConfig:
    """The tiles of both kernels that multiply.

    Attributes:
        of_keys: of the gradients of keys and values: ``block_n`` of these, ``block_m`` queries in a step.
        of_keys_capped: the same where scores are capped, whose slopes take registers.
        of_queries: of the gradients of queries: ``block_m`` of these, ``block_n`` keys in a step.
        apart: whether the gradients of keys and of values are computed by a launch each, where the sums of both do not
            fit the registers.
        whole_keys, whole_queries: whether the kernel of keys, where scores are not capped, and that of queries has a
            loop of its own, without a mask, for blocks of which every query sees every key.
        masked: whether the gradients of keys and values are masked even if every query sees every key: the compiler
            then needs fewer registers.
        columns: if not 0, tiles of keys and of values are of one width, and at least so wide.

    Raises:
        ValueError: where ``columns`` is no power of two up to 256.
    """

    of_keys: AttentionConfig
    of_keys_capped: AttentionConfig
    of_queries: AttentionConfig
    apart: bool = False
    whole_keys: bool = False
    whole_queries: bool = False
    masked: bool = False
    columns: int = 0

    def __post_init__(self) -> None:
        if self.columns not in (0, 16, 32, 64, 128, 256):
            raise ValueError(f"columns expected 0, 16, 32, 64, 128 or 256, got {self.columns}")


SMALL = AttentionConfig(32, 32, 4)
"""The tile where both operands of the matrix units come from registers; larger ones spill, or do with some masks."""

PAIRED = AttentionConfig(64, 64, 4, 2)
"""A tile of which two fit a Hopper multiprocessor."""


def attention_backward_config(arch: Arch, features: Mapping[str, Any]) -> AttentionBackwardConfig:
    """Two groups of warps with 64 keys or queries each, or one where heads are wide.

    On a Hopper multiprocessor two blocks of one group are faster than one of two: on an H200 1.07 to 1.34 times with
    keys, and 1.26 times with queries of heads up to 64. With queries of wider heads they are not.

    Where both operands of the matrix units come from registers, tiles have at least 128 columns: with fewer the
    compiler reads more steps ahead, and spills.
    """
    widest = power_of_two(max(features["head_dim"], features["value_dim"]))
    if arch.name in IN_REGISTERS:
        return AttentionBackwardConfig(SMALL, SMALL, SMALL, apart=widest > 128, columns=128)
    # Elsewhere than on sm_90, tileiras 13.4.92 needs local memory for three loops of keys, and fails to compile three
    # loops of ragged queries.
    hopper = arch.name == "sm_90"
    if widest > 128:
        tile = AttentionConfig(64, 64, 4)
        return AttentionBackwardConfig(tile, tile, tile, apart=True, whole_queries=hopper)
    queries = AttentionConfig(128, 64, 8)
    if widest > 64:
        keys, capped = PAIRED if hopper else AttentionConfig(64, 128, 8), AttentionConfig(32, 128, 8)
        columns = 0 if hopper else 128  # elsewhere, tiles of two widths spill
        return AttentionBackwardConfig(keys, capped, queries, whole_keys=hopper, whole_queries=hopper, columns=columns)
    keys, capped = AttentionConfig(128, 128, 8), AttentionConfig(64, 128, 8)
    if hopper:
        keys = queries = PAIRED
    return AttentionBackwardConfig(keys, capped, queries, masked=True, whole_queries=hopper)


def attention_backward_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[AttentionBackwardConfig]:
    """The choice, and other tiles of each kernel beside the choice for the others."""
    chosen = attention_backward_config(arch, features)
    yield chosen
    if arch.name in IN_REGISTERS:
        for tile in (AttentionConfig(64, 64, 8), AttentionConfig(64, 32, 4)):
            yield replace(chosen, of_queries=tile)
            yield replace(chosen, of_keys=tile, of_keys_capped=tile)
        return
    widest = power_of_two(max(features["head_dim"], features["value_dim"]))
    for block_m in (32, 64, 128):
        for block_n in (32, 64, 128):
            for warps, occupancy in ((4, 0), (4, 2), (8, 0)):
                tile, room = AttentionConfig(block_m, block_n, warps, occupancy), warps * 32 * 208
                sums = 1 if chosen.apart else 2
                if block_n >= 64 and block_n * (sums * widest + 2 * block_m) <= room:
                    if tile != chosen.of_keys:
                        yield replace(chosen, of_keys=tile)
                    if tile != chosen.of_keys_capped:
                        yield replace(chosen, of_keys_capped=tile)
                if block_m >= 64 and block_m * (widest + 2 * block_n) <= room and tile != chosen.of_queries:
                    yield replace(chosen, of_queries=tile)
