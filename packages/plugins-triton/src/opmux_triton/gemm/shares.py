"""The sum of what programs leave that compute shares of tiles, see `opmux_triton.gemm.cuts`."""

from typing import Protocol

from torch import Tensor

from opmux_triton.gemm import kernels
from opmux_triton.gemm.cuts import halves_of
from opmux_triton.launch import launch


class Tiled(Protocol):
    """What a config of a product says about its tiles."""

    @property
    def block_m(self) -> int: ...
    @property
    def block_n(self) -> int: ...
    @property
    def swap(self) -> bool: ...
    @property
    def group(self) -> int: ...
    @property
    def sum_rows(self) -> int: ...


def sum_shares(
    partial: Tensor, out: Tensor, bias: Tensor | None, sizes: tuple[int, int], which: tuple[int, int],
    cut: tuple[int, int], c: Tiled,
) -> None:  # fmt: skip
    """Add up the parts of the tiles ``which`` (first, count); ``sizes`` are m and n after the swap."""
    m, n = sizes
    first, tiles = which
    share, length = cut
    block_m, block_n = c.block_m, c.block_n
    strides = (1, m) if c.swap else (n, 1)
    rows = c.sum_rows
    left, right = halves_of(block_n)
    meta = {
        "HAS_BIAS": bias is not None,
        "SWAPPED": c.swap,
        "BLOCK_M": block_m,
        "BLOCK_N": left,
        "REST_N": right,
        "GROUP": c.group,
        "ROWS": rows,
        "num_warps": min(8 if left > 128 else 4, max(1, rows * left // 256)),  # two loads of 16 bytes a thread, or more
    }
    arguments = (partial, out, bias, m, n, first, length, share, *strides)
    launch(kernels.sum_shares, (tiles, block_m // rows, 2 if right else 1), arguments, meta)
