"""Attention forward in CUDA Tile for archs without a copy engine: threads copy rows of heads, 16 bytes at a time.

As `opmux_cutile.attention.kernels`, but rows are looked up one by one, so a ragged batch is not cut. The size of a head
is compiled in: a copy then has no mask along it.
"""

import cuda.tile as ct

from opmux_cutile.attention.kernels import LN2, LOG2E, soften


def rows_of(x, batch, rows, head, last, DIM: ct.Constant[int], MASKED: ct.Constant[bool]):
    """Rows of a head, zeros where there are none."""
    place = (batch, rows[:, None], head, ct.arange(DIM, dtype=ct.int32)[None, :])
    if MASKED:
        return ct.gather(x, place, mask=(rows <= last)[:, None])
    return ct.gather(x, place)


def soften_exactly(found, top, total):
    """As `soften`, with subnormal shares: without them the compiler spills registers for wide heads on `sm_120`."""
    highest = ct.maximum(top, ct.max(found, axis=1, keepdims=True))
    anchor = ct.where(highest == -float("inf"), 0.0, highest)
    share = ct.exp2(found - anchor)
    shrunk = ct.exp2(top - anchor)
    return highest, total * shrunk + ct.sum(share, axis=1, keepdims=True), share, shrunk


def step(
    a, k, v, batch, start, kv_head, n, seq_k, positions, scale, cap, left, right, top, total, mean,
    BLOCK_N: ct.Constant[int], DIM: ct.Constant[int], WIDTH: ct.Constant[int], CAPPED: ct.Constant[bool],
    BANDED: ct.Constant[bool], WINDOWED: ct.Constant[bool], MASKED: ct.Constant[bool],
):  # fmt: skip
    """Take a block of keys into the softmax so far; MASKED where some query does not see all of them."""
    keys = n * BLOCK_N + ct.arange(BLOCK_N, dtype=ct.int32)
    b = rows_of(k, batch, start + keys, kv_head, start + seq_k - 1, DIM, MASKED)
    found = ct.mma(a, ct.permute(b, (1, 0)), ct.zeros((a.shape[0], BLOCK_N), dtype=ct.float32))
    if CAPPED:
        found = ct.tanh(found * (scale / cap)) * (cap * LOG2E)
    else:
        found = found * (scale * LOG2E)
    c = rows_of(v, batch, start + keys, kv_head, start + seq_k - 1, WIDTH, MASKED)
    if MASKED:
        seen = (keys < seq_k)[None, :]
        if BANDED:
            seen = seen & (keys[None, :] <= positions + right)
        if WINDOWED:
            seen = seen & (keys[None, :] >= positions - left)
        found = ct.where(seen, found, -float("inf"))
    if WIDTH > 128:
        top, total, share, shrunk = soften_exactly(found, top, total)
    else:
        top, total, share, shrunk = soften(found, top, total)
    return top, total, ct.mma(share.astype(a.dtype), c, mean * shrunk)


def attend_gathered(
    q, k, v, sinks, out, lse, start_q, start_k, m, head, batch, seq_q, seq_k, scale, cap, left, right, groups,
    BLOCK_M: ct.Constant[int], BLOCK_N: ct.Constant[int], DIM: ct.Constant[int], WIDTH: ct.Constant[int],
    CAPPED: ct.Constant[bool], BANDED: ct.Constant[bool], WINDOWED: ct.Constant[bool], SINKS: ct.Constant[bool],
    LSE: ct.Constant[bool],
):  # fmt: skip
    """Compute a block of queries. A query at p, counted from the last key, sees the keys from p - left to p + right."""
    kv_head = head // groups
    rows = m * BLOCK_M + ct.arange(BLOCK_M, dtype=ct.int32)
    a = rows_of(q, batch, start_q + rows, head, start_q + seq_q - 1, DIM, True)
    top = ct.full((BLOCK_M, 1), -float("inf"), dtype=ct.float32)
    total = ct.zeros((BLOCK_M, 1), dtype=ct.float32)
    if SINKS:
        top = ct.broadcast_to(ct.gather(sinks, head).astype(ct.float32) * LOG2E, (BLOCK_M, 1))
        total = ct.where(top == -float("inf"), 0.0, 1.0)
    mean = ct.zeros((BLOCK_M, WIDTH), dtype=ct.float32)

    first = m * BLOCK_M + (seq_k - seq_q)
    end = seq_k
    whole_end = seq_k // BLOCK_N
    if BANDED:
        end = min(seq_k, max(first + BLOCK_M + right, 0))
        whole_end = min(whole_end, max(first + right + 1, 0) // BLOCK_N)
    last_block = ct.cdiv(end, BLOCK_N)
    begin = 0
    if WINDOWED:
        begin = min(max(first - left, 0) // BLOCK_N, last_block)
        whole_end = min(whole_end, begin)
    whole_end = max(min(whole_end, last_block), begin)
    positions = (first + ct.arange(BLOCK_M, dtype=ct.int32))[:, None]
    if not WINDOWED:
        for n in range(begin, whole_end):
            top, total, mean = step(
                a, k, v, batch, start_k, kv_head, n, seq_k, positions, scale, cap, left, right, top, total, mean,
                BLOCK_N, DIM, WIDTH, CAPPED, BANDED, WINDOWED, False,
            )  # fmt: skip
    for n in range(whole_end, last_block):
        top, total, mean = step(
            a, k, v, batch, start_k, kv_head, n, seq_k, positions, scale, cap, left, right, top, total, mean,
            BLOCK_N, DIM, WIDTH, CAPPED, BANDED, WINDOWED, True,
        )  # fmt: skip

    mean = mean / ct.where(total == 0.0, 1.0, total)
    there = rows < seq_q
    place = (batch, (start_q + rows)[:, None], head, ct.arange(WIDTH, dtype=ct.int32)[None, :])
    ct.scatter(out, place, mean.astype(out.dtype), mask=there[:, None])
    if LSE:
        found = ct.where(total == 0.0, -float("inf"), (top + ct.log2(total)) * LN2)
        ct.scatter(lse, (batch, head, start_q + rows), ct.reshape(found, (BLOCK_M,)), mask=there)


@ct.kernel
def dense_gathered(
    q, k, v, sinks, out, lse, scale: float, cap: float, left: int, right: int, groups: int,
    BLOCK_M: ct.Constant[int], BLOCK_N: ct.Constant[int], DIM: ct.Constant[int], WIDTH: ct.Constant[int],
    CAPPED: ct.Constant[bool], BANDED: ct.Constant[bool], WINDOWED: ct.Constant[bool], SINKS: ct.Constant[bool],
    LSE: ct.Constant[bool],
):  # fmt: skip
    """Sequences of equal lengths. Blocks of later queries come first: under a causal mask they have the most keys."""
    m = ct.num_blocks(0) - 1 - ct.bid(0)
    attend_gathered(q, k, v, sinks, out, lse, 0, 0, m, ct.bid(1), ct.bid(2), q.shape[1], k.shape[1],
                    scale, cap, left, right, groups,
                    BLOCK_M, BLOCK_N, DIM, WIDTH, CAPPED, BANDED, WINDOWED, SINKS, LSE)  # fmt: skip


@ct.kernel
def ragged_gathered(
    q, k, v, starts_q, starts_k, sinks, out, lse, scale: float, cap: float, left: int, right: int, groups: int,
    BLOCK_M: ct.Constant[int], BLOCK_N: ct.Constant[int], DIM: ct.Constant[int], WIDTH: ct.Constant[int],
    CAPPED: ct.Constant[bool], BANDED: ct.Constant[bool], WINDOWED: ct.Constant[bool], SINKS: ct.Constant[bool],
    LSE: ct.Constant[bool],
):  # fmt: skip
    """Sequences that follow each other in q and in k; the grid is made for the longest."""
    m, sequence = ct.num_blocks(0) - 1 - ct.bid(0), ct.bid(2)
    start_q, end_q = ct.gather(starts_q, sequence).item(), ct.gather(starts_q, sequence + 1).item()
    start_k, end_k = ct.gather(starts_k, sequence).item(), ct.gather(starts_k, sequence + 1).item()
    if m * BLOCK_M < end_q - start_q:
        attend_gathered(q, k, v, sinks, out, lse, start_q, start_k, m, ct.bid(1), 0, end_q - start_q, end_k - start_k,
                        scale, cap, left, right, groups,
                        BLOCK_M, BLOCK_N, DIM, WIDTH, CAPPED, BANDED, WINDOWED, SINKS, LSE)  # fmt: skip
