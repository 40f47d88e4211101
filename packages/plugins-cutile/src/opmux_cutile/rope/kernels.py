"""Rotary embedding in CUDA Tile: a block computes HEADS heads of TOKENS tokens, in float32.

The pairs of a head are (i, half + i) or, interleaved, (2 i, 2 i + 1). Dims that are not rotated are copied. In place
there are none to copy, and a thread has read both numbers of a pair when it overwrites them.
"""

import cuda.tile as ct


def rotate(
    x, y, cos, sin, rows, tokens, group, sign,
    HEADS: ct.Constant[int], PAIRS: ct.Constant[int], INTERLEAVED: ct.Constant[bool], REST: ct.Constant[int],
):  # fmt: skip
    """Rotate a group of heads of some tokens, which `tokens` and `rows` of the tables have as (TOKENS, 1, 1).

    The tables are read for each head: read once and then repeated, they would pass through shared memory.
    """
    half = cos.shape[1]
    pairs = ct.arange(PAIRS, dtype=ct.int32)[None, None, :]
    heads = group * HEADS + ct.arange(HEADS, dtype=ct.int32)[None, :, None]
    every = ct.broadcast_to(rows, (rows.shape[0], HEADS, 1))
    cosines, sines = ct.gather(cos, (every, pairs)), ct.gather(sin, (every, pairs)) * sign
    if INTERLEAVED:
        left, right = 2 * pairs, 2 * pairs + 1
    else:
        left, right = pairs, half + pairs
    mask = pairs < half
    a = ct.gather(x, (tokens, heads, left), mask=mask).astype(ct.float32)
    b = ct.gather(x, (tokens, heads, right), mask=mask).astype(ct.float32)
    ct.scatter(y, (tokens, heads, left), (a * cosines - b * sines).astype(y.dtype), mask=mask)
    ct.scatter(y, (tokens, heads, right), (b * cosines + a * sines).astype(y.dtype), mask=mask)
    if REST:
        others = 2 * half + ct.arange(REST, dtype=ct.int32)[None, None, :]
        ct.scatter(y, (tokens, heads, others), ct.gather(x, (tokens, heads, others)))


@ct.kernel
def rope(
    q, k, cos, sin, positions, q_out, k_out, seq: int, sign: float,
    TOKENS: ct.Constant[int], HEADS: ct.Constant[int], PAIRS: ct.Constant[int],
    REST: ct.Constant[int], INTERLEAVED: ct.Constant[bool], GIVEN: ct.Constant[bool],
):  # fmt: skip
    """Rotate a group of heads of q, or, in the blocks after those, of k. Without GIVEN ones, t has position t % seq."""
    tokens = ct.bid(0) * TOKENS + ct.arange(TOKENS, dtype=ct.int32)
    if GIVEN:
        rows = ct.gather(positions, (tokens,)).astype(ct.int32)
    else:
        rows = tokens % seq
    rows, tokens = rows[:, None, None], tokens[:, None, None]
    groups = ct.cdiv(q.shape[1], HEADS)
    if ct.bid(1) < groups:
        rotate(q, q_out, cos, sin, rows, tokens, ct.bid(1), sign, HEADS, PAIRS, INTERLEAVED, REST)
    else:
        rotate(k, k_out, cos, sin, rows, tokens, ct.bid(1) - groups, sign, HEADS, PAIRS, INTERLEAVED, REST)
