"""The same products through the tensor memory accelerator: operands come by descriptors that the host makes.

A program stays on its multiprocessor and walks tiles. With FLATTEN the loop over tiles and the one over k are one, so
the next tile's first blocks are on their way while this tile is stored.
"""

import triton
import triton.language as tl

from opmux_triton.dependent_launch import await_predecessor
from opmux_triton.gemm.kernels import store_tile, tile_of


@triton.jit
def load_operand(operand, at, at_k, ROWS_ARE_K: tl.constexpr):
    """A block of an operand with its rows along m (or n) and its columns along k; what lies outside is 0."""
    if ROWS_ARE_K:
        return operand.load([at_k, at]).T
    else:
        return operand.load([at, at_k])


@triton.jit
def store_part(total, c, bias, first_m, first_n, m, n, c_row, c_col,
               HAS_BIAS: tl.constexpr, SWAPPED: tl.constexpr, STORE: tl.constexpr,
               BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    """Store a part of a tile: by descriptor where STORE says so, else by pointers."""
    if STORE == "descriptor":
        if HAS_BIAS:
            if SWAPPED:
                at = first_m + tl.arange(0, BLOCK_M)
                total += tl.load(bias + at, mask=at < m, other=0.0).to(tl.float32)[:, None]
            else:
                at = first_n + tl.arange(0, BLOCK_N)
                total += tl.load(bias + at, mask=at < n, other=0.0).to(tl.float32)[None, :]
        if SWAPPED:
            c.store([first_n, first_m], total.to(c.dtype).T)
        else:
            c.store([first_m, first_n], total.to(c.dtype))
    else:
        store_tile(total, c, bias, first_m, first_n, m, n, c_row, c_col, HAS_BIAS, SWAPPED, BLOCK_M, BLOCK_N)


@triton.jit
def tiles(
    a, b, c, bias, m, n, k, count, c_row, c_col,
    A_ROWS_ARE_K: tl.constexpr, B_ROWS_ARE_K: tl.constexpr, HAS_BIAS: tl.constexpr, SWAPPED: tl.constexpr,
    STORE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    PARTS: tl.constexpr, FLATTEN: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The first ``count`` tiles of C, whole: program p has tiles p, p + programs, ...; PARTS: parts stored along n."""
    await_predecessor(DEPENDENT)
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    blocks = tl.cdiv(k, BLOCK_K)
    for tile in tl.range(tl.program_id(0), count, tl.num_programs(0), flatten=FLATTEN):
        tile_m, tile_n = tile_of(tile, tiles_m, tiles_n, GROUP)
        first_m = tile_m * BLOCK_M
        first_n = tile_n * BLOCK_N
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for block in range(blocks):
            a_tile = load_operand(a, first_m, block * BLOCK_K, A_ROWS_ARE_K)
            b_tile = load_operand(b, first_n, block * BLOCK_K, B_ROWS_ARE_K)
            total = tl.dot(a_tile, b_tile.T, total)
        if PARTS == 1:
            store_part(total, c, bias, first_m, first_n, m, n, c_row, c_col,
                       HAS_BIAS, SWAPPED, STORE, BLOCK_M, BLOCK_N)  # fmt: skip
        else:
            left, right = total.reshape(BLOCK_M, 2, BLOCK_N // 2).permute(0, 2, 1).split()
            if PARTS == 2:
                store_part(left, c, bias, first_m, first_n, m, n, c_row, c_col,
                           HAS_BIAS, SWAPPED, STORE, BLOCK_M, BLOCK_N // 2)  # fmt: skip
                store_part(right, c, bias, first_m, first_n + BLOCK_N // 2, m, n, c_row, c_col,
                           HAS_BIAS, SWAPPED, STORE, BLOCK_M, BLOCK_N // 2)  # fmt: skip
            else:
                for half in tl.static_range(2):
                    both = left if half == 0 else right
                    at = first_n + half * (BLOCK_N // 2)
                    first, second = both.reshape(BLOCK_M, 2, BLOCK_N // 4).permute(0, 2, 1).split()
                    store_part(first, c, bias, first_m, at, m, n, c_row, c_col,
                               HAS_BIAS, SWAPPED, STORE, BLOCK_M, BLOCK_N // 4)  # fmt: skip
                    store_part(second, c, bias, first_m, at + BLOCK_N // 4, m, n, c_row, c_col,
                               HAS_BIAS, SWAPPED, STORE, BLOCK_M, BLOCK_N // 4)  # fmt: skip


@triton.jit
def shares(
    a, b, partial, m, n, k, first_tile, share, length,
    A_ROWS_ARE_K: tl.constexpr, B_ROWS_ARE_K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, FLATTEN: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Equal shares of the blocks of k of all tiles from first_tile on; as `opmux_triton.gemm.kernels.shares`."""
    await_predecessor(DEPENDENT)
    program = tl.program_id(0)
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    blocks = tl.cdiv(k, BLOCK_K)
    start = program * share
    stop = tl.minimum(start + share, (tiles_m * tiles_n - first_tile) * length)
    in_tile = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    for tile in tl.range(start // length, tl.cdiv(stop, length), flatten=FLATTEN):
        tile_m, tile_n = tile_of(first_tile + tile, tiles_m, tiles_n, GROUP)
        first_m = tile_m * BLOCK_M
        first_n = tile_n * BLOCK_N
        first = tl.maximum(start - tile * length, 0)
        last = tl.minimum(stop - tile * length, blocks)
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for block in range(first, last):
            a_tile = load_operand(a, first_m, block * BLOCK_K, A_ROWS_ARE_K)
            b_tile = load_operand(b, first_n, block * BLOCK_K, B_ROWS_ARE_K)
            total = tl.dot(a_tile, b_tile.T, total)
        tl.store(partial + (program + tile).to(tl.int64) * (BLOCK_M * BLOCK_N) + in_tile, total)
