"""Products of 8-bit floats with scales of blocks of 128 in CUDA Tile, turned: a tile is computed as w x^T.

A thread then has numbers of few columns, which are rows of x, and one scale for each column and step. The products of a
step start at zero and are scaled before they are added, so that fast accumulation reaches no further than 128 of k.
"""

import cuda.tile as ct

AHEAD = 4
"""How far the compiler is to read ahead. With its own choice, and with 3, a block has one step in shared memory, with 4
and more it has four; on an H200 that was 1.23 to 1.27 times as fast with 5, and 1.03 to 1.14 times that with 4."""


def scale_of(x_scale, w_scale, places, n, k):
    """The scales of some rows of x, times that of a block of w, in a step."""
    return ct.gather(x_scale, (places, k), latency=AHEAD) * ct.gather(w_scale, (n, k), latency=AHEAD)


@ct.kernel
def scaled_linear(
    x, w, x_scale, w_scale, bias, y,
    BLOCK_M: ct.Constant[int], BLOCK_N: ct.Constant[int], BLOCK_K: ct.Constant[int], GROUP: ct.Constant[int],
    BIASED: ct.Constant[bool],
):  # fmt: skip
    """y = x w^T with scales, plus bias, a tile for each block. BLOCK_N and BLOCK_K are 128, as those of the scales."""
    down = ct.num_tiles(x, 0, (BLOCK_M, BLOCK_K))
    steps = ct.num_tiles(x, 1, (BLOCK_M, BLOCK_K))
    across = ct.num_tiles(w, 0, (BLOCK_N, BLOCK_K))
    tile = ct.bid(0)
    group = tile // (GROUP * across)
    rows = min(down - group * GROUP, GROUP)
    within = tile - group * GROUP * across
    m = group * GROUP + within % rows
    n = within // rows
    places = m * BLOCK_M + ct.arange(BLOCK_M, dtype=ct.int32)
    total = ct.zeros((BLOCK_N, BLOCK_M), dtype=ct.float32)
    scale = scale_of(x_scale, w_scale, places, n, 0)
    for k in range(steps):
        a = ct.load(x, (m, k), (BLOCK_M, BLOCK_K), padding_mode=ct.PaddingMode.ZERO, latency=AHEAD)
        b = ct.load(w, (n, k), (BLOCK_N, BLOCK_K), padding_mode=ct.PaddingMode.ZERO, latency=AHEAD)
        # That of the next step is read during this one's product.
        following = scale_of(x_scale, w_scale, places, n, k + 1)
        part = ct.mma(b, ct.permute(a, (1, 0)), ct.zeros((BLOCK_N, BLOCK_M), dtype=ct.float32), use_fast_acc=True)
        total = total + part * scale[None, :]
        scale = following
    total = ct.permute(total, (1, 0))
    if BIASED:
        columns = n * BLOCK_N + ct.arange(BLOCK_N, dtype=ct.int32)
        total = total + ct.gather(bias, (columns,)).astype(ct.float32)[None, :]
    ct.store(y, (m, n), total.astype(y.dtype))
