"""Matrix products in CUDA Tile. Operands are copied by TMA where there is one, and padded with zeros at their edges."""

import cuda.tile as ct


@ct.kernel
def linear(
    x, w, bias, y,
    BLOCK_M: ct.Constant[int], BLOCK_N: ct.Constant[int], BLOCK_K: ct.Constant[int], GROUP: ct.Constant[int],
    BIASED: ct.Constant[bool],
):  # fmt: skip
    """y = x w^T + bias, summed in float32.

    Tiles are walked in groups of GROUP rows of tiles, down first, so that what neighbours read stays in the cache.
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
        total = ct.zeros((BLOCK_M, BLOCK_N), dtype=ct.float32)
        for k in range(steps):
            a = ct.load(x, (m, k), (BLOCK_M, BLOCK_K), padding_mode=ct.PaddingMode.ZERO)
            b = ct.load(w, (k, n), (BLOCK_K, BLOCK_N), order=(1, 0), padding_mode=ct.PaddingMode.ZERO)
            total = ct.mma(a, b, total)
        if BIASED:
            added = ct.load(bias, (n,), (BLOCK_N,), padding_mode=ct.PaddingMode.ZERO)
            total = total + added.astype(ct.float32)[None, :]
        ct.store(y, (m, n), total.astype(y.dtype))
