"""Products of groups of rows in CUDA Tile: a block computes one tile of one group, which it finds on the GPU.

Rows of no group are neither read nor written.
"""

import cuda.tile as ct


def multiply(x, w, y, group, m, n, BLOCK_M: ct.Constant[int], BLOCK_N: ct.Constant[int], BLOCK_K: ct.Constant[int]):
    """Compute a tile of y = x w^T for a group's rows of x and y, summed in float32."""
    total = ct.zeros((BLOCK_M, BLOCK_N), dtype=ct.float32)
    for k in range(ct.num_tiles(x, 1, (BLOCK_M, BLOCK_K))):
        a = ct.load(x, (m, k), (BLOCK_M, BLOCK_K), padding_mode=ct.PaddingMode.ZERO)
        b = ct.load(w, (group, k, n), (1, BLOCK_K, BLOCK_N), order=(0, 2, 1), padding_mode=ct.PaddingMode.ZERO)
        total = ct.mma(a, ct.reshape(b, (BLOCK_K, BLOCK_N)), total)
    ct.store(y, (m, n), total.astype(y.dtype))


@ct.kernel
def ragged(
    x, w, offsets, sizes, y, groups: int,
    BLOCK_M: ct.Constant[int], BLOCK_N: ct.Constant[int], BLOCK_K: ct.Constant[int], GROUPS: ct.Constant[int],
    SIZED: ct.Constant[bool],
):  # fmt: skip
    """Groups that follow each other in x. Tiles are numbered through the groups; the grid may have too many."""
    tile = ct.bid(1)
    each = ct.arange(GROUPS, dtype=ct.int32)
    begins = ct.gather(offsets, (each,))
    if SIZED:
        rows = ct.gather(sizes, (each,))
    else:
        rows = ct.where(each < groups, ct.gather(offsets, (each + 1,)) - begins, 0)
    ends = ct.cumsum((rows + (BLOCK_M - 1)) // BLOCK_M, axis=0)
    # As many groups end before the tile as its own number.
    group = ct.sum(ct.where(ends <= tile, 1, 0).astype(ct.int32), axis=0).item()
    if group < groups:
        before = ct.max(ct.where(ends <= tile, ends, 0), axis=0).item()
        begin = ct.gather(offsets, group).item()
        if SIZED:
            end = begin + ct.gather(sizes, group).item()
        else:
            end = ct.gather(offsets, group + 1).item()
        multiply(x.slice(0, begin, end), w, y.slice(0, begin, end), group, tile - before, ct.bid(0),
                 BLOCK_M, BLOCK_N, BLOCK_K)  # fmt: skip


@ct.kernel
def masked(
    x, w, counts, y, most: int,
    BLOCK_M: ct.Constant[int], BLOCK_N: ct.Constant[int], BLOCK_K: ct.Constant[int],
):  # fmt: skip
    """Groups of `most` rows each, of which the first ones count; x and y have the rows of all groups."""
    group, m = ct.bid(2), ct.bid(1)
    rows = min(ct.gather(counts, group).item(), most)
    if m * BLOCK_M < rows:
        begin = group * most
        multiply(x.slice(0, begin, begin + rows), w, y.slice(0, begin, begin + rows), group, m, ct.bid(0),
                 BLOCK_M, BLOCK_N, BLOCK_K)  # fmt: skip
