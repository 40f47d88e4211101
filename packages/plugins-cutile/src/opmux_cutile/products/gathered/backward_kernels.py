"""Products of the gradients of `linear` in CUDA Tile for archs without a copy engine.

As in `opmux_cutile.products.gathered.kernels`, matrices come as (rows, chunks, 8), and threads copy chunks.
"""

import cuda.tile as ct


def rows_of(matrix, rows, first, BLOCK: ct.Constant[int], COLUMNS: ct.Constant[int]):
    """A tile of BLOCK rows, COLUMNS wide from a chunk on; zeros where there are no rows, and no chunks."""
    places = (first + ct.arange(COLUMNS // 8, dtype=ct.int32))[None, :, None]
    within = ct.arange(8, dtype=ct.int32)[None, None, :]
    rows = rows[:, None, None]
    there = (rows < matrix.shape[0]) & (places < matrix.shape[1])
    found = ct.gather(matrix, (rows, places, within), mask=there, check_bounds=False)
    return ct.reshape(found, (BLOCK, COLUMNS))


@ct.kernel
def gathered_product(
    a, b, y,
    BLOCK_M: ct.Constant[int], BLOCK_N: ct.Constant[int], BLOCK_K: ct.Constant[int], GROUP: ct.Constant[int],
    ACROSS: ct.Constant[bool],
):  # fmt: skip
    """y = a b, or y = a^T b where ACROSS, summed in float32; a is stored as (m, k), or as (k, m), and b as (k, n).

    Tiles are walked as in `opmux_cutile.products.kernels`.
    """
    tall = y.shape[0]
    down, across = ct.cdiv(tall, BLOCK_M), ct.cdiv(y.shape[1], BLOCK_N // 8)
    for tile in range(ct.bid(0), down * across, ct.num_blocks(0)):
        group = tile // (GROUP * across)
        rows = min(down - group * GROUP, GROUP)
        within = tile - group * GROUP * across
        m = group * GROUP + within % rows
        n = within // rows
        of_y = m * BLOCK_M + ct.arange(BLOCK_M, dtype=ct.int32)
        total = ct.zeros((BLOCK_M, BLOCK_N), dtype=ct.float32)
        for k in range(ct.cdiv(b.shape[0], BLOCK_K)):
            of_b = k * BLOCK_K + ct.arange(BLOCK_K, dtype=ct.int32)
            if ACROSS:
                left = ct.permute(rows_of(a, of_b, m * (BLOCK_M // 8), BLOCK_K, BLOCK_M), (1, 0))
            else:
                left = rows_of(a, of_y, k * (BLOCK_K // 8), BLOCK_M, BLOCK_K)
            total = ct.mma(left, rows_of(b, of_b, n * (BLOCK_N // 8), BLOCK_K, BLOCK_N), total)
        places = (n * (BLOCK_N // 8) + ct.arange(BLOCK_N // 8, dtype=ct.int32))[None, :, None]
        ct.scatter(
            y, (of_y[:, None, None], places, ct.arange(8, dtype=ct.int32)[None, None, :]),
            ct.reshape(total, (BLOCK_M, BLOCK_N // 8, 8)).astype(y.dtype),
            mask=(of_y[:, None, None] < tall) & (places < y.shape[1]), check_bounds=False,
        )  # fmt: skip
