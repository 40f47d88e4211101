"""Attention forward in CUDA Tile: a block computes BLOCK_M queries of a head, BLOCK_N keys at a time.

The softmax is computed as the keys come, in powers of two. Keys that no query of the block sees are not read, and
only blocks of keys that some query does not see are masked. Queries, keys and values are four-dimensional; in a ragged
batch, whose first dim is 1, the second is cut to the block's sequence.
"""

import cuda.tile as ct

LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453


def score(a, keys, batch, kv_head, n, scale, cap, BLOCK_N: ct.Constant[int], DIM: ct.Constant[int],
          CAPPED: ct.Constant[bool]):  # fmt: skip
    """The scores of a block of keys, times log2(e)."""
    b = ct.load(keys, (batch, kv_head, 0, n), (1, 1, DIM, BLOCK_N), order=(0, 2, 3, 1),
                padding_mode=ct.PaddingMode.ZERO)  # fmt: skip
    found = ct.mma(a, ct.reshape(b, (DIM, BLOCK_N)), ct.zeros((a.shape[0], BLOCK_N), dtype=ct.float32))
    if CAPPED:
        found = ct.tanh(found * (scale / cap)) * (cap * LOG2E)
    else:
        found = found * (scale * LOG2E)
    return found


def soften(found, top, total):
    """Take a block of scores into the softmax so far: its largest score and sum, this block's shares, what shrinks.

    A subnormal share is 0, which takes one instruction; to compute it takes four.
    """
    highest = ct.maximum(top, ct.max(found, axis=1, keepdims=True))
    anchor = ct.where(highest == -float("inf"), 0.0, highest)
    share = ct.exp2(found - anchor, flush_to_zero=True)
    shrunk = ct.exp2(top - anchor, flush_to_zero=True)
    return highest, total * shrunk + ct.sum(share, axis=1, keepdims=True), share, shrunk


def absorb(found, top, total, mean, values, batch, kv_head, n, BLOCK_N: ct.Constant[int], WIDTH: ct.Constant[int]):
    """Take a block of scores, with its values, into the softmax so far: the largest score, the sum, and the mean."""
    top, total, share, shrunk = soften(found, top, total)
    c = ct.load(values, (batch, n, kv_head, 0), (1, BLOCK_N, 1, WIDTH), padding_mode=ct.PaddingMode.ZERO)
    mean = ct.mma(share.astype(values.dtype), ct.reshape(c, (BLOCK_N, WIDTH)), mean * shrunk)
    return top, total, mean


def attend(
    q, k, v, sinks, out, lse, lse_start, m, head, batch, seq_q, seq_k, scale, cap, left, right, groups,
    BLOCK_M: ct.Constant[int], BLOCK_N: ct.Constant[int], DIM: ct.Constant[int], WIDTH: ct.Constant[int],
    CAPPED: ct.Constant[bool], BANDED: ct.Constant[bool], WINDOWED: ct.Constant[bool], SINKS: ct.Constant[bool],
    LSE: ct.Constant[bool],
):  # fmt: skip
    """Compute a block of queries. A query at p, counted from the last key, sees the keys from p - left to p + right."""
    kv_head = head // groups
    a = ct.reshape(ct.load(q, (batch, m, head, 0), (1, BLOCK_M, 1, DIM), padding_mode=ct.PaddingMode.ZERO),
                   (BLOCK_M, DIM))  # fmt: skip
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
    whole_begin = 0
    if WINDOWED:
        begin = min(max(first - left, 0) // BLOCK_N, last_block)
        whole_begin = min(max(ct.cdiv(max(first + BLOCK_M - 1 - left, 0), BLOCK_N), begin), last_block)
    whole_end = max(min(whole_end, last_block), whole_begin)

    positions = first + ct.arange(BLOCK_M, dtype=ct.int32)[:, None]
    if WINDOWED:
        for n in range(begin, whole_begin):
            keys = n * BLOCK_N + ct.arange(BLOCK_N, dtype=ct.int32)[None, :]
            seen = (keys < seq_k) & (keys <= positions + right) & (keys >= positions - left)
            found = score(a, k, batch, kv_head, n, scale, cap, BLOCK_N, DIM, CAPPED)
            found = ct.where(seen, found, -float("inf"))
            top, total, mean = absorb(found, top, total, mean, v, batch, kv_head, n, BLOCK_N, WIDTH)
    for n in range(whole_begin, whole_end):
        found = score(a, k, batch, kv_head, n, scale, cap, BLOCK_N, DIM, CAPPED)
        top, total, mean = absorb(found, top, total, mean, v, batch, kv_head, n, BLOCK_N, WIDTH)
    for n in range(whole_end, last_block):
        keys = n * BLOCK_N + ct.arange(BLOCK_N, dtype=ct.int32)[None, :]
        seen = keys < seq_k
        if BANDED:
            seen = seen & (keys <= positions + right)
        if WINDOWED:
            seen = seen & (keys >= positions - left)
        found = score(a, k, batch, kv_head, n, scale, cap, BLOCK_N, DIM, CAPPED)
        found = ct.where(seen, found, -float("inf"))
        top, total, mean = absorb(found, top, total, mean, v, batch, kv_head, n, BLOCK_N, WIDTH)

    mean = mean / ct.where(total == 0.0, 1.0, total)
    ct.store(out, (batch, m, head, 0), ct.reshape(mean, (1, BLOCK_M, 1, WIDTH)).astype(out.dtype))
    if LSE:
        found = ct.where(total == 0.0, -float("inf"), (top + ct.log2(total)) * LN2)
        rows = m * BLOCK_M + ct.arange(BLOCK_M, dtype=ct.int32)
        ct.scatter(lse, (batch, head, lse_start + rows), ct.reshape(found, (BLOCK_M,)), mask=rows < seq_q)


@ct.kernel
def dense(
    q, k, v, sinks, out, lse, scale: float, cap: float, left: int, right: int, groups: int,
    BLOCK_M: ct.Constant[int], BLOCK_N: ct.Constant[int], DIM: ct.Constant[int], WIDTH: ct.Constant[int],
    CAPPED: ct.Constant[bool], BANDED: ct.Constant[bool], WINDOWED: ct.Constant[bool], SINKS: ct.Constant[bool],
    LSE: ct.Constant[bool],
):  # fmt: skip
    """Sequences of equal lengths. Blocks of later queries come first: under a causal mask they have the most keys."""
    m = ct.num_blocks(0) - 1 - ct.bid(0)
    attend(q, k, v, sinks, out, lse, 0, m, ct.bid(1), ct.bid(2), q.shape[1], k.shape[1],
           scale, cap, left, right, groups,
           BLOCK_M, BLOCK_N, DIM, WIDTH, CAPPED, BANDED, WINDOWED, SINKS, LSE)  # fmt: skip


@ct.kernel
def ragged(
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
        attend(q.slice(1, start_q, end_q), k.slice(1, start_k, end_k), v.slice(1, start_k, end_k), sinks,
               out.slice(1, start_q, end_q), lse, start_q, m, ct.bid(1), 0, end_q - start_q, end_k - start_k,
               scale, cap, left, right, groups,
               BLOCK_M, BLOCK_N, DIM, WIDTH, CAPPED, BANDED, WINDOWED, SINKS, LSE)  # fmt: skip
