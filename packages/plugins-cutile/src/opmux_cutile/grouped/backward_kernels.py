"""Gradients of products of groups of rows in CUDA Tile. Operands are copied as they lie, and not transposed.

Rows of no group are neither read nor written.
"""

import cuda.tile as ct


@ct.kernel
def of_rows(
    grad, w, table, y, groups: int,
    BLOCK_M: ct.Constant[int], BLOCK_N: ct.Constant[int], BLOCK_K: ct.Constant[int],
):  # fmt: skip
    """y = grad w for a tile of a group's rows, summed in float32; the table says which tile a block has."""
    tile, n = ct.bid(1), ct.bid(0)
    group = ct.gather(table, (0, tile)).item()
    if group < groups:
        m, begin, end = (ct.gather(table, (1, tile)).item(), ct.gather(table, (2, tile)).item(),
                         ct.gather(table, (3, tile)).item())  # fmt: skip
        rows, made = grad.slice(0, begin, end), y.slice(0, begin, end)
        total = ct.zeros((BLOCK_M, BLOCK_N), dtype=ct.float32)
        for k in range(ct.num_tiles(rows, 1, (BLOCK_M, BLOCK_K))):
            a = ct.load(rows, (m, k), (BLOCK_M, BLOCK_K), padding_mode=ct.PaddingMode.ZERO)
            b = ct.load(w, (group, k, n), (1, BLOCK_K, BLOCK_N), padding_mode=ct.PaddingMode.ZERO)
            total = ct.mma(a, ct.reshape(b, (BLOCK_K, BLOCK_N)), total)
        ct.store(made, (m, n), total.astype(y.dtype))


@ct.kernel
def of_weights(
    grad, x, offsets, sizes, y,
    BLOCK_M: ct.Constant[int], BLOCK_N: ct.Constant[int], BLOCK_K: ct.Constant[int], SIZED: ct.Constant[bool],
    ADDED: ct.Constant[bool],
):  # fmt: skip
    """A tile of y = grad^T x over the rows of a group, summed in float32; it is added to y where ADDED."""
    n, m, group = ct.bid(0), ct.bid(1), ct.bid(2)
    begin = ct.gather(offsets, group).item()
    if SIZED:
        end = begin + ct.gather(sizes, group).item()
    else:
        end = ct.gather(offsets, group + 1).item()
    left, right = grad.slice(0, begin, end), x.slice(0, begin, end)
    total = ct.zeros((BLOCK_M, BLOCK_N), dtype=ct.float32)
    for k in range(ct.cdiv(end - begin, BLOCK_K)):
        a = ct.load(left, (m, k), (BLOCK_M, BLOCK_K), order=(1, 0), padding_mode=ct.PaddingMode.ZERO)
        b = ct.load(right, (k, n), (BLOCK_K, BLOCK_N), padding_mode=ct.PaddingMode.ZERO)
        total = ct.mma(a, b, total)
    if ADDED:
        if begin < end:
            before = ct.load(y, (group, m, n), (1, BLOCK_M, BLOCK_N), padding_mode=ct.PaddingMode.ZERO)
            ct.store(y, (group, m, n), before + ct.reshape(total, (1, BLOCK_M, BLOCK_N)))
    else:
        ct.store(y, (group, m, n), ct.reshape(total, (1, BLOCK_M, BLOCK_N)).astype(y.dtype))
