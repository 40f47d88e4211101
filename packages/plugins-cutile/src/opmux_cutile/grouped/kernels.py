"""Products of groups of rows in CUDA Tile: a block computes one tile of one group.

Rows of no group are neither read nor written. Which tile of which group a block has in a ragged product is written
to a table by a kernel of its own: in the product's, the sums that find it take registers from the tile.
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
def find_tiles(
    offsets, sizes, table, groups: int,
    BLOCK_M: ct.Constant[int], GROUPS: ct.Constant[int], SIZED: ct.Constant[bool], WRITTEN: ct.Constant[int],
):  # fmt: skip
    """For each tile of BLOCK_M rows: its group, its place in it, and where the group's rows begin and end.

    Tiles are numbered through the groups, and a block writes those of its group; a last one writes that the tiles after
    them belong to none.
    """
    group = ct.bid(0)
    each = ct.arange(GROUPS, dtype=ct.int32)
    if SIZED:
        rows = ct.gather(sizes, (each,))
    else:
        rows = ct.where(each < groups, ct.gather(offsets, (each + 1,)) - ct.gather(offsets, (each,)), 0)
    tiles = (rows + (BLOCK_M - 1)) // BLOCK_M
    first = ct.sum(ct.where(each < group, tiles, 0), axis=0).item()
    count = table.shape[1] - first
    begin, end = 0, 0
    if group < groups:
        count = ct.sum(ct.where(each == group, tiles, 0), axis=0).item()
        begin = ct.gather(offsets, group).item()
        end = begin + ct.sum(ct.where(each == group, rows, 0), axis=0).item()
    for part in range(ct.cdiv(count, WRITTEN)):
        places = part * WRITTEN + ct.arange(WRITTEN, dtype=ct.int32)
        there = places < count
        ct.scatter(table, (0, first + places), group, mask=there)
        ct.scatter(table, (1, first + places), places, mask=there)
        ct.scatter(table, (2, first + places), begin, mask=there)
        ct.scatter(table, (3, first + places), end, mask=there)


@ct.kernel
def ragged(
    x, w, table, y, groups: int,
    BLOCK_M: ct.Constant[int], BLOCK_N: ct.Constant[int], BLOCK_K: ct.Constant[int],
):  # fmt: skip
    """Groups that follow each other in x; the table says which tile a block has."""
    tile = ct.bid(1)
    group = ct.gather(table, (0, tile)).item()
    if group < groups:
        m, begin, end = (ct.gather(table, (1, tile)).item(), ct.gather(table, (2, tile)).item(),
                         ct.gather(table, (3, tile)).item())  # fmt: skip
        multiply(x.slice(0, begin, end), w, y.slice(0, begin, end), group, m, ct.bid(0), BLOCK_M, BLOCK_N, BLOCK_K)


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
