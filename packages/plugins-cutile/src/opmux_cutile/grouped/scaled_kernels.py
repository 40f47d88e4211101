"""Products of groups of 8-bit rows with scales in CUDA Tile: a block computes one tile of one group.

The compiler adds the matrix units' sums up in float32. With blocks of 128 columns each step of k is one block, and its
product is scaled before it is added. Rows of no group are neither read nor written, nor are their scales.
"""

import cuda.tile as ct


def multiply_scaled(
    x, w, x_scale, w_scale, y, group, scales, m, n,
    BLOCK_M: ct.Constant[int], BLOCK_N: ct.Constant[int], BLOCK_K: ct.Constant[int], W_ROWS: ct.Constant[int],
):  # fmt: skip
    """Compute a tile of y = x w^T with scales, for a group's rows of x, y and the matrix `scales` of x_scale.

    W_ROWS rows of w share a scale of each block of k; with 0, scales are of rows. Those have one column, and a stride
    of 0 between rows where they are one for all.
    """
    places = m * BLOCK_M + ct.arange(BLOCK_M, dtype=ct.int32)
    columns = n * BLOCK_N + ct.arange(BLOCK_N, dtype=ct.int32)
    total = ct.zeros((BLOCK_M, BLOCK_N), dtype=ct.float32)
    for k in range(ct.num_tiles(x, 1, (BLOCK_M, BLOCK_K))):
        a = ct.load(x, (m, k), (BLOCK_M, BLOCK_K), padding_mode=ct.PaddingMode.ZERO)
        b = ct.reshape(ct.load(w, (group, k, n), (1, BLOCK_K, BLOCK_N), order=(0, 2, 1),
                               padding_mode=ct.PaddingMode.ZERO), (BLOCK_K, BLOCK_N))  # fmt: skip
        if W_ROWS:
            part = ct.mma(a, b, ct.zeros((BLOCK_M, BLOCK_N), dtype=ct.float32))
            down_scale = ct.gather(x_scale, (scales, places, k))[:, None]
            across_scale = ct.gather(w_scale, (group, columns // W_ROWS, k))[None, :]
            total = total + part * down_scale * across_scale
        else:
            total = ct.mma(a, b, total)
    if W_ROWS == 0:
        total = total * ct.gather(x_scale, (scales, places, 0))[:, None]
        total = total * ct.gather(w_scale, (group, columns, 0))[None, :]
    ct.store(y, (m, n), total.astype(y.dtype))


@ct.kernel
def scaled_ragged(
    x, w, table, x_scale, w_scale, y, groups: int,
    BLOCK_M: ct.Constant[int], BLOCK_N: ct.Constant[int], BLOCK_K: ct.Constant[int], W_ROWS: ct.Constant[int],
):  # fmt: skip
    """Groups that follow each other in x; the table says which tile a block has."""
    tile = ct.bid(1)
    group = ct.gather(table, (0, tile)).item()
    if group < groups:
        m, begin, end = (ct.gather(table, (1, tile)).item(), ct.gather(table, (2, tile)).item(),
                         ct.gather(table, (3, tile)).item())  # fmt: skip
        multiply_scaled(x.slice(0, begin, end), w, x_scale.slice(1, begin, end), w_scale, y.slice(0, begin, end),
                        group, 0, m, ct.bid(0), BLOCK_M, BLOCK_N, BLOCK_K, W_ROWS)  # fmt: skip


@ct.kernel
def scaled_masked(
    x, w, counts, x_scale, w_scale, y, most: int,
    BLOCK_M: ct.Constant[int], BLOCK_N: ct.Constant[int], BLOCK_K: ct.Constant[int], W_ROWS: ct.Constant[int],
):  # fmt: skip
    """Groups of `most` rows each, of which the first ones count; x and y have the rows of all groups."""
    group, m = ct.bid(2), ct.bid(1)
    rows = min(ct.gather(counts, group).item(), most)
    if m * BLOCK_M < rows:
        begin = group * most
        multiply_scaled(x.slice(0, begin, begin + rows), w, x_scale.slice(1, 0, rows), w_scale,
                        y.slice(0, begin, begin + rows), group, group, m, ct.bid(0),
                        BLOCK_M, BLOCK_N, BLOCK_K, W_ROWS)  # fmt: skip
