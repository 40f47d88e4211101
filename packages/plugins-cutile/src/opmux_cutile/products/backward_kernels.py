"""Products of the gradients of `linear` in CUDA Tile: their operands lie across the dim that is summed over.

The matrix units take operands in either order, so tiles are copied as they lie and not transposed.
"""

import cuda.tile as ct


@ct.kernel
def product(
    a, b, y,
    BLOCK_M: ct.Constant[int], BLOCK_N: ct.Constant[int], BLOCK_K: ct.Constant[int], GROUP: ct.Constant[int],
    ACROSS: ct.Constant[bool],
):  # fmt: skip
    """y = a b, or y = a^T b where ACROSS, summed in float32; a is stored as (m, k), or as (k, m), and b as (k, n).

    Tiles are walked in groups of GROUP rows of tiles, down first, so that what neighbours read stays in the cache.
    """
    down = ct.num_tiles(y, 0, (BLOCK_M, BLOCK_N))
    across = ct.num_tiles(y, 1, (BLOCK_M, BLOCK_N))
    steps = ct.num_tiles(b, 0, (BLOCK_K, BLOCK_N))
    for tile in range(ct.bid(0), down * across, ct.num_blocks(0)):
        group = tile // (GROUP * across)
        rows = min(down - group * GROUP, GROUP)
        within = tile - group * GROUP * across
        m = group * GROUP + within % rows
        n = within // rows
        total = ct.zeros((BLOCK_M, BLOCK_N), dtype=ct.float32)
        for k in range(steps):
            if ACROSS:
                left = ct.load(a, (m, k), (BLOCK_M, BLOCK_K), order=(1, 0), padding_mode=ct.PaddingMode.ZERO)
            else:
                left = ct.load(a, (m, k), (BLOCK_M, BLOCK_K), padding_mode=ct.PaddingMode.ZERO)
            right = ct.load(b, (k, n), (BLOCK_K, BLOCK_N), padding_mode=ct.PaddingMode.ZERO)
            total = ct.mma(left, right, total)
        ct.store(y, (m, n), total.astype(y.dtype))
