"""The table that says which tile of which group each block of a ragged product has."""

from functools import lru_cache

import torch
from torch import Tensor

from opmux_cutile.launching import TileKernel, launch
from opmux_cutile.parameters import Array, Constant, Scalar
from opmux_cutile.tiles import power_of_two

MODULE = "opmux_cutile.grouped.kernels"
TABLE = Array("int32", (4, None), (None, 1), False)
"""A kernel's parameter for it."""
WRITTEN = 128
"""Tiles that a block writes at a time: one for each thread."""


def tiles_of(op: str, rows: int, block_m: int, group_offsets: Tensor, group_sizes: Tensor | None) -> Tensor:
    """The table of a call, ``int32 (4, tiles)``, with room for the most tiles that the rows may have."""
    groups = len(group_offsets) - 1
    most = rows // block_m + groups  # each group has at most one tile that is not full
    table = group_offsets.new_empty((4, most), dtype=torch.int32)
    offsets = group_offsets.contiguous()
    sizes = offsets if group_sizes is None else group_sizes.contiguous()
    kernel = _kernel(op, block_m, power_of_two(groups), group_sizes is not None)
    launch(kernel, (groups + 1, 1, 1), offsets, sizes, table, groups)
    return table


@lru_cache(maxsize=1024)
def _kernel(op: str, block_m: int, groups: int, sized: bool) -> TileKernel:
    numbers = Array("int32", (None,), (1,), False)
    constants = map(Constant, (block_m, groups, sized, WRITTEN))
    return TileKernel(op, MODULE, "find_tiles", (numbers, numbers, TABLE, Scalar("int32"), *constants))
