"""Matrix products in CUDA Tile for archs without a copy engine: threads copy the operands, eight numbers at a time.

Matrices come as (rows, chunks, 8). A mask then holds for whole chunks, so each is copied at once, past the registers.
Loads of tiles would have a mask for each number, and spill registers.
"""

import cuda.tile as ct


def chunks_of(matrix, rows, first, BLOCK: ct.Constant[int], COLUMNS: ct.Constant[int]):
    """A tile of BLOCK rows, COLUMNS wide from a chunk on; zeros where there are no chunks."""
    places = (first + ct.arange(COLUMNS // 8, dtype=ct.int32))[None, :, None]
    within = ct.arange(8, dtype=ct.int32)[None, None, :]
    found = ct.gather(matrix, (rows[:, None, None], places, within), mask=places < matrix.shape[1], check_bounds=False)
    return ct.reshape(found, (BLOCK, COLUMNS))


@ct.kernel
def gathered(
    x, w, bias, y,
    BLOCK_M: ct.Constant[int], BLOCK_N: ct.Constant[int], BLOCK_K: ct.Constant[int], GROUP: ct.Constant[int],
    BIASED: ct.Constant[bool],
):  # fmt: skip
    """y = x w^T + bias, summed in float32.

    Tiles are walked as in `opmux_cutile.products.kernels`. Rows past the last one are copies of it, and not written.
    """
    tokens, width = x.shape[0], w.shape[0]
    down, across = ct.cdiv(tokens, BLOCK_M), ct.cdiv(width, BLOCK_N)
    for tile in range(ct.bid(0), down * across, ct.num_blocks(0)):
        group = tile // (GROUP * across)
        rows = min(down - group * GROUP, GROUP)
        within = tile - group * GROUP * across
        m = group * GROUP + within % rows
        n = within // rows
        of_x = m * BLOCK_M + ct.arange(BLOCK_M, dtype=ct.int32)
        of_w = n * BLOCK_N + ct.arange(BLOCK_N, dtype=ct.int32)
        total = ct.zeros((BLOCK_M, BLOCK_N), dtype=ct.float32)
        for k in range(ct.cdiv(x.shape[1], BLOCK_K // 8)):
            first = k * (BLOCK_K // 8)
            a = chunks_of(x, ct.minimum(of_x, tokens - 1), first, BLOCK_M, BLOCK_K)
            b = chunks_of(w, ct.minimum(of_w, width - 1), first, BLOCK_N, BLOCK_K)
            total = ct.mma(a, ct.permute(b, (1, 0)), total)
        if BIASED:
            added = ct.gather(bias, of_w)
            total = total + added.astype(ct.float32)[None, :]
        places = (n * (BLOCK_N // 8) + ct.arange(BLOCK_N // 8, dtype=ct.int32))[None, :, None]
        ct.scatter(
            y, (of_x[:, None, None], places, ct.arange(8, dtype=ct.int32)[None, None, :]),
            ct.reshape(total, (BLOCK_M, BLOCK_N // 8, 8)).astype(y.dtype),
            mask=(of_x[:, None, None] < tokens) & (places < y.shape[1]), check_bounds=False,
        )  # fmt: skip
