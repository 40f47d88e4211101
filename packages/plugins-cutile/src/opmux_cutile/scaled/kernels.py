"""Products of 8-bit floats in CUDA Tile: persistent blocks that compute tile after tile.

The compiler adds the matrix units' sums up in float32, unless it is asked for fast accumulation. With blocks of 128
columns each step of k is one block, and its product is scaled before it is added.
"""

import cuda.tile as ct


def scales_of(w_scale, n, k, columns, BLOCK_N: ct.Constant[int], W_ROWS: ct.Constant[int]):
    """The scales of the rows of w in tile n: one, where a block of w has all of them."""
    if W_ROWS % BLOCK_N == 0:
        return ct.gather(w_scale, (n * BLOCK_N // W_ROWS, k))
    return ct.gather(w_scale, (columns // W_ROWS, k))


@ct.kernel
def scaled_linear(
    x, w, x_scale, w_scale, bias, y,
    BLOCK_M: ct.Constant[int], BLOCK_N: ct.Constant[int], BLOCK_K: ct.Constant[int], GROUP: ct.Constant[int],
    W_ROWS: ct.Constant[int], BIASED: ct.Constant[bool],
):  # fmt: skip
    """y = x w^T with scales, plus bias. W_ROWS rows of w share a scale of each block of k; with 0, scales are of rows.

    Scales of rows have one column, and a stride of 0 between rows where they are one for all.
    """
    down = ct.num_tiles(x, 0, (BLOCK_M, BLOCK_K))
    steps = ct.num_tiles(x, 1, (BLOCK_M, BLOCK_K))
    across = ct.num_tiles(w, 0, (BLOCK_N, BLOCK_K))
    for tile in range(ct.bid(0), down * across, ct.num_blocks(0)):
        group = tile // (GROUP * across)
        rows = min(down - group * GROUP, GROUP)
        within = tile - group * GROUP * across
        m = group * GROUP + within % rows
        n = within // rows
        places = m * BLOCK_M + ct.arange(BLOCK_M, dtype=ct.int32)
        columns = n * BLOCK_N + ct.arange(BLOCK_N, dtype=ct.int32)
        total = ct.zeros((BLOCK_M, BLOCK_N), dtype=ct.float32)
        if W_ROWS:
            down_scale = ct.gather(x_scale, (places, 0))
            across_scale = scales_of(w_scale, n, 0, columns, BLOCK_N, W_ROWS)
        for k in range(steps):
            a = ct.load(x, (m, k), (BLOCK_M, BLOCK_K), padding_mode=ct.PaddingMode.ZERO)
            b = ct.load(w, (k, n), (BLOCK_K, BLOCK_N), order=(1, 0), padding_mode=ct.PaddingMode.ZERO)
            if W_ROWS:
                # Those of the next step are read during this one's product.
                next_down = ct.gather(x_scale, (places, k + 1))
                next_across = scales_of(w_scale, n, k + 1, columns, BLOCK_N, W_ROWS)
                part = ct.mma(a, b, ct.zeros((BLOCK_M, BLOCK_N), dtype=ct.float32), use_fast_acc=W_ROWS % BLOCK_N != 0)
                if W_ROWS % BLOCK_N == 0:
                    total = total + part * (down_scale * across_scale)[:, None]
                else:
                    total = total + part * down_scale[:, None] * across_scale[None, :]
                down_scale, across_scale = next_down, next_across
            else:
                total = ct.mma(a, b, total)
        if W_ROWS == 0:
            total = total * ct.gather(x_scale, (places, 0))[:, None] * ct.gather(w_scale, (columns, 0))[None, :]
        if BIASED:
            total = total + ct.gather(bias, (columns,)).astype(ct.float32)[None, :]
        ct.store(y, (m, n), total.astype(y.dtype))
