"""Rotary embedding in CUDA Tile: a block computes TOKENS tokens, HEADS heads at a time, in float32.

The pairs of a head are (i, half + i) or, interleaved, (2 i, 2 i + 1). Dims that are not rotated are copied. In place
there are none to copy, and a thread has read both numbers of a pair when it overwrites them.
"""

import cuda.tile as ct


def rotate(
    x, y, cosines, sines, tokens, pairs, half,
    HEADS: ct.Constant[int], INTERLEAVED: ct.Constant[bool],
    REST: ct.Constant[int],
):  # fmt: skip
    """Rotate every head of the tokens: `tokens` is (TOKENS, 1, 1), `pairs` (1, 1, PAIRS), the tables' rows between.

    Where whole heads are rotated, the next ones are read before some are computed.
    """
    if INTERLEAVED:
        left, right = 2 * pairs, 2 * pairs + 1
    else:
        left, right = pairs, half + pairs
    mask = pairs < half
    first = ct.arange(HEADS, dtype=ct.int32)[None, :, None]
    if REST == 0:
        next_a = ct.gather(x, (tokens, first, left), mask=mask)
        next_b = ct.gather(x, (tokens, first, right), mask=mask)
    for group in range(ct.cdiv(x.shape[1], HEADS)):
        heads = group * HEADS + first
        if REST:
            a, b = ct.gather(x, (tokens, heads, left), mask=mask), ct.gather(x, (tokens, heads, right), mask=mask)
        else:
            a, b = next_a, next_b
            next_a = ct.gather(x, (tokens, heads + HEADS, left), mask=mask)
            next_b = ct.gather(x, (tokens, heads + HEADS, right), mask=mask)
        a, b = a.astype(ct.float32), b.astype(ct.float32)
        ct.scatter(y, (tokens, heads, left), (a * cosines - b * sines).astype(y.dtype), mask=mask)
        ct.scatter(y, (tokens, heads, right), (b * cosines + a * sines).astype(y.dtype), mask=mask)
        if REST:
            others = 2 * half + ct.arange(REST, dtype=ct.int32)[None, None, :]
            ct.scatter(y, (tokens, heads, others), ct.gather(x, (tokens, heads, others)))


def table_of(table, rows, pairs, HEADS: ct.Constant[int]):
    """Rows of a table for each of some heads: read once per head, as a tile of (TOKENS, HEADS, PAIRS).

    Read once and then repeated, they would pass through shared memory.
    """
    return ct.gather(table, (ct.broadcast_to(rows, (rows.shape[0], HEADS, 1)), pairs))


@ct.kernel
def rope(
    q, k, cos, sin, positions, q_out, k_out, seq: int, sign: float,
    TOKENS: ct.Constant[int], HEADS: ct.Constant[int], KV_HEADS: ct.Constant[int], PAIRS: ct.Constant[int],
    REST: ct.Constant[int], INTERLEAVED: ct.Constant[bool], GIVEN: ct.Constant[bool], BOTH: ct.Constant[bool],
):  # fmt: skip
    """Rotate q, and k where BOTH. Without GIVEN positions, that of token t is t modulo `seq`."""
    tokens = ct.bid(0) * TOKENS + ct.arange(TOKENS, dtype=ct.int32)
    if GIVEN:
        rows = ct.gather(positions, (tokens,)).astype(ct.int32)
    else:
        rows = tokens % seq
    rows, tokens = rows[:, None, None], tokens[:, None, None]
    pairs = ct.arange(PAIRS, dtype=ct.int32)[None, None, :]
    half = cos.shape[1]
    cosines, sines = table_of(cos, rows, pairs, HEADS), table_of(sin, rows, pairs, HEADS) * sign
    rotate(q, q_out, cosines, sines, tokens, pairs, half, HEADS, INTERLEAVED, REST)
    if BOTH:
        if KV_HEADS != HEADS:
            cosines, sines = table_of(cos, rows, pairs, KV_HEADS), table_of(sin, rows, pairs, KV_HEADS) * sign
        rotate(k, k_out, cosines, sines, tokens, pairs, half, KV_HEADS, INTERLEAVED, REST)
