"""Launch parameters of quantisation, per arch. Loads no Triton."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from opmux.plugin import Arch
from opmux_triton.archs import lanes_of_rows
from opmux_triton.arithmetic import next_power_of_two
from opmux_triton.config_checks import require_at_least, require_powers_of_two

GROUPS = (32, 128)
"""Columns of the blocks of one row."""
_EACH = 16
"""Columns of a thread: 16 bytes of codes."""
_LARGEST_ROW = 32768
"""Columns that one program holds in registers; longer rows are read twice."""
_FEW_ROWS = 7
"""The bucket of at most 128 rows: a program then has a multiprocessor to itself."""
_PARTS = 1024
"""The most programs that look for the largest magnitude of a matrix; each that quantises reads what all have found."""


@dataclass(frozen=True)
class QuantizeConfig:
    """Launch parameters.

    Attributes:
        block: columns of a program's tile: a whole number of blocks where a row has several; 128 of square blocks.
        rows: rows of the tile.
        parts: programs that look for the largest magnitude of a matrix with one scale.
        num_warps: warps of a program.
    """

    block: int
    rows: int
    parts: int
    num_warps: int

    def __post_init__(self) -> None:
        require_powers_of_two(self, "block", "rows", "parts", "num_warps")
        if self.block < max(GROUPS):
            raise ValueError(f"block expected at least {max(GROUPS)}, the columns of a block, got {self.block}")


def quantize_config(arch: Arch, features: Mapping[str, Any]) -> QuantizeConfig:
    """Tiles of 16-byte accesses, whose shape follows from that of the blocks."""
    k, few = max(1, features["k"]), features["bucket(m)"] <= _FEW_ROWS
    rows, columns = features["block"]
    lanes = lanes_of_rows(arch)
    if rows > 1:
        return QuantizeConfig(block=128, rows=128, parts=1, num_warps=16)
    if columns == -1 and rows == 1:
        return _whole_rows(lanes, k, few)
    block = min(1024 if few else 2048, max(*GROUPS, next_power_of_two(k)))
    if k > block and k % block and k % (block // 2) == 0:  # a smaller tile leaves no part of one empty
        block //= 2
    wanted = 4096 if rows == -1 else 1024 if few else 2048
    tile = max(1, wanted // block)
    tiles = next_power_of_two(-(-(1 << features["bucket(m)"]) // tile) * -(-k // block))
    parts = min(_PARTS if arch.vendor == "nvidia" else _PARTS // 2, tiles) if rows == -1 else 1
    return QuantizeConfig(block=block, rows=tile, parts=parts, num_warps=max(1, block * tile // (lanes * _EACH)))


def known_scale_config(arch: Arch, features: Mapping[str, Any]) -> QuantizeConfig:
    """The tiles of blocks of one row: nothing is searched for, whatever shares a scale.

    On AMD, tiles of several rows have twice the warps where 8 does not divide a row. Every element of such a tile is
    loaded under a mask of its own, and the masks of 16 columns take more scalar registers than there are.
    """
    config = quantize_config(arch, {**features, "block": (1, GROUPS[-1])})
    if arch.vendor == "amd" and config.rows > 1 and features["k"] % 8:
        return replace(config, num_warps=2 * config.num_warps)
    return config


def _whole_rows(lanes: int, k: int, few: bool) -> QuantizeConfig:
    block = min(_LARGEST_ROW, max(*GROUPS, next_power_of_two(k)))
    rows = 1 if few else max(1, 1024 // block)
    # On NVIDIA fewer warps wait for one another (16384 rows of 8192 on an H200: 98 us, with 16 columns each 107).
    each = 8 if few else 16 if block <= 2048 or (block == k and lanes > 32) else 32
    warps = max(1, min(1024 // lanes, block * rows // (lanes * each)))
    return QuantizeConfig(block=block, rows=rows, parts=1, num_warps=warps)


@dataclass(frozen=True)
class FusedConfig:
    """Launch parameters of an op that quantises what it computes.

    Attributes:
        block: columns of the tile of a program that computes: whole rows of a norm, where it can hold them.
        rows: rows of the tile.
        num_warps: warps of the program.
        quantize: the parameters of the second pass; None where a call has one pass.
        programs: of a norm in one pass without a residual: programs for each multiprocessor, which go through all
            tiles; 0 for a program for each tile.
        stages: tiles that such a program loads ahead to shared memory.
    """

    block: int
    rows: int
    num_warps: int
    quantize: QuantizeConfig | None = None
    programs: int = 0
    stages: int = 2

    def __post_init__(self) -> None:
        require_powers_of_two(self, "block", "rows", "num_warps")
        require_at_least(0, self, "programs")
        require_at_least(1, self, "stages")
        if self.block < max(GROUPS):
            raise ValueError(f"block expected at least {max(GROUPS)}, the columns of a block, got {self.block}")


def norm_quantize_config(arch: Arch, features: Mapping[str, Any]) -> FusedConfig:
    """Whole rows in one program, as in the norms."""
    hidden, few = max(1, features["hidden"]), features["bucket(m)"] <= _FEW_ROWS
    lanes = lanes_of_rows(arch)
    rows = _whole_rows(lanes, hidden, few)
    one_pass = features["block"][0] == 1 and hidden <= rows.block
    second = None if one_pass else quantize_config(arch, {**features, "k": hidden})
    return FusedConfig(block=rows.block, rows=rows.rows, num_warps=rows.num_warps, quantize=second)


def gate_quantize_config(arch: Arch, features: Mapping[str, Any]) -> FusedConfig:
    """Tiles of whole blocks of one row, with half the columns of `quantize_config`: they hold two tensors."""
    n, few = max(1, features["n"]), features["bucket(m)"] <= _FEW_ROWS
    lanes = lanes_of_rows(arch)
    if features["block"] == (1, -1) and n <= _LARGEST_ROW // 2:
        tile = _whole_rows(lanes, n, few)
        return FusedConfig(block=tile.block, rows=tile.rows, num_warps=min(1024 // lanes, 2 * tile.num_warps))
    block = min(1024, max(*GROUPS, next_power_of_two(n)))
    rows = 1 if few else max(1, 2048 // block)
    each = 8 if few else _EACH
    warps = max(1, block * rows // (lanes * each))
    one_pass = features["block"][1] in GROUPS and features["block"][0] == 1
    second = None if one_pass else quantize_config(arch, {**features, "k": n})
    return FusedConfig(block=block, rows=rows, num_warps=warps, quantize=second)
