"""How tiles are cut along k into equal shares for the programs, and the sum of what those leave."""

from torch import Tensor

from opmux_triton.gemm import kernels
from opmux_triton.gemm.configs import HopperConfig, TilesConfig
from opmux_triton.launch import launch


def shares_of(tiles: int, blocks: int, slots: int) -> tuple[int, int]:
    """How many blocks of k a program gets, and how many a tile counts as having.

    All tiles are cut at the same places if that keeps 8 of 9 programs busy: programs whose tiles have rows in common
    then read them at the same time, from the cache. Otherwise the cuts fall where they fall.
    """
    share = -(-tiles * blocks // slots)
    even, length = even_shares(tiles, blocks, slots)
    return (even, length) if tiles <= slots and even * 8 <= share * 9 else (share, blocks)


def even_shares(tiles: int, blocks: int, slots: int) -> tuple[int, int]:
    """Like `shares_of`, with all tiles cut at the same places."""
    cuts = max(1, min(blocks, slots // tiles))
    even = -(-blocks // cuts)
    return even, even * -(-blocks // even)


def rest_of(tiles: int, blocks: int, slots: int) -> int:
    """How many tiles are left after the rounds in which every program has one, if cutting them up pays; else 0."""
    rest = tiles % slots
    return rest if 0 < 2 * rest <= slots and blocks >= 2 else 0


def sum_shares(
    partial: Tensor, out: Tensor, bias: Tensor | None, sizes: tuple[int, int], which: tuple[int, int],
    cut: tuple[int, int], c: TilesConfig | HopperConfig,
) -> None:  # fmt: skip
    """Add up the parts of the tiles ``which`` (first, count); ``sizes`` are m and n after the swap."""
    m, n = sizes
    first, tiles = which
    share, length = cut
    block_m, block_n = c.block_m, c.block_n
    strides = (1, m) if c.swap else (n, 1)
    rows = c.sum_rows
    meta = {
        "HAS_BIAS": bias is not None,
        "SWAPPED": c.swap,
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "GROUP": c.group,
        "ROWS": rows,
        "num_warps": min(4, max(1, rows * block_n // 256)),  # two loads of 16 bytes a thread, or more
    }
    arguments = (partial, out, bias, m, n, first, length, share, *strides)
    launch(kernels.sum_shares, (tiles, block_m // rows), arguments, meta)
