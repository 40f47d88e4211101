"""The kernel of rotary position embedding: one program holds TOKENS tokens and BLOCK_HEADS heads, of q or of k."""

import triton
import triton.language as tl

from opmux_triton.addressing import load_tile, row_starts, store_tile
from opmux_triton.dependent_launch import await_predecessor
from opmux_triton.rounding import rounded


@triton.jit
def _turned(first, second, cosine, sine, dtype: tl.constexpr):
    first, second = first.to(tl.float32), second.to(tl.float32)
    return rounded(first * cosine - second * sine, dtype), rounded(second * cosine + first * sine, dtype)


@triton.jit
def _rotate(
    source, target, token, seq, stride, head_stride, outer, heads_from, live, cosine, sine,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr, HALF_BLOCK: tl.constexpr,
    REST_BLOCK: tl.constexpr, INTERLEAVED: tl.constexpr, IN_PLACE: tl.constexpr, BLOCK_HEADS: tl.constexpr,
):  # fmt: skip
    """Rotate the first 2 * HALF dims of some heads of some tokens, and copy the others."""
    head = heads_from + tl.arange(0, BLOCK_HEADS)[None, :, None]
    inside = live & (head < HEADS)
    rows = source + row_starts(token, seq, stride, outer, HEADS * HEAD_DIM) + head.to(tl.int64) * head_stride
    if IN_PLACE:
        results = rows
    else:
        results = target + token * (HEADS * HEAD_DIM) + head * HEAD_DIM
    if INTERLEAVED:
        at = tl.arange(0, 2 * HALF_BLOCK)[None, None, :]
        within = inside & (at < 2 * HALF)
        pairs = load_tile(rows + at, within, False, "")
        first, second = tl.split(tl.reshape(pairs, [pairs.shape[0], BLOCK_HEADS, HALF_BLOCK, 2]))
        first, second = _turned(first, second, cosine, sine, source.dtype.element_ty)
        pairs = tl.reshape(tl.join(first, second), pairs.shape)
        if IN_PLACE:
            tl.debug_barrier()  # all is read before anything is written
        store_tile(results + at, pairs, within, False)
    else:
        at = tl.arange(0, HALF_BLOCK)[None, None, :]
        within = inside & (at < HALF)
        first = load_tile(rows + at, within, False, "")
        second = load_tile(rows + at + HALF, within, False, "")
        first, second = _turned(first, second, cosine, sine, source.dtype.element_ty)
        if IN_PLACE:
            tl.debug_barrier()
        store_tile(results + at, first, within, False)
        store_tile(results + at + HALF, second, within, False)
    if REST_BLOCK > 0:
        at = 2 * HALF + tl.arange(0, REST_BLOCK)[None, None, :]
        within = inside & (at < HEAD_DIM)
        store_tile(results + at, load_tile(rows + at, within, False, ""), within, False)


@triton.jit(do_not_specialize=["tokens", "seq"])
def rope(
    q, k, q_out, k_out, cos, sin, positions, tokens, q_stride, q_head_stride, k_stride, k_head_stride,
    cos_stride, sin_stride, positions_stride, seq, q_outer, k_outer, positions_outer,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr, REST_BLOCK: tl.constexpr, INTERLEAVED: tl.constexpr, IN_PLACE: tl.constexpr,
    BACKWARD: tl.constexpr, BLOCK_HEADS: tl.constexpr, TOKENS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Rotate q and k by the angles of their positions, with BACKWARD by the opposite ones; k may be None.

    With ``seq``, token t is entry ``t % seq`` of sequence ``t // seq``, else entry t of the only one; without
    positions the entry is its position. Strides of None are those of contiguous tensors. The results are contiguous;
    IN_PLACE they are q and k.
    """
    await_predecessor(DEPENDENT)
    Q_BLOCKS: tl.constexpr = (HEADS + BLOCK_HEADS - 1) // BLOCK_HEADS
    K_BLOCKS: tl.constexpr = 0 if k is None else (KV_HEADS + BLOCK_HEADS - 1) // BLOCK_HEADS
    program = tl.program_id(0)
    block = program % (Q_BLOCKS + K_BLOCKS)
    token = (program // (Q_BLOCKS + K_BLOCKS)).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)[:, None, None]
    live = token < tokens
    if positions is not None:
        places = positions + row_starts(token, seq, positions_stride, positions_outer, 1)
        position = tl.load(places, mask=live, other=0).to(tl.int64)
    elif seq is not None:
        position = token % seq
    else:
        position = token
    at = tl.arange(0, HALF_BLOCK)[None, None, :]
    within = live & (at < HALF)
    cosine = tl.load(cos + row_starts(position, None, cos_stride, None, HALF) + at, mask=within, other=0.0)
    sine = tl.load(sin + row_starts(position, None, sin_stride, None, HALF) + at, mask=within, other=0.0)
    if BACKWARD:
        sine = -sine
    if block < Q_BLOCKS:
        _rotate(
            q, q_out, token, seq, q_stride, q_head_stride, q_outer, block * BLOCK_HEADS, live, cosine, sine,
            HEADS, HEAD_DIM, HALF, HALF_BLOCK, REST_BLOCK, INTERLEAVED, IN_PLACE, BLOCK_HEADS,
        )  # fmt: skip
    elif K_BLOCKS > 0:
        _rotate(
            k, k_out, token, seq, k_stride, k_head_stride, k_outer, (block - Q_BLOCKS) * BLOCK_HEADS, live, cosine,
            sine, KV_HEADS, HEAD_DIM, HALF, HALF_BLOCK, REST_BLOCK, INTERLEAVED, IN_PLACE, BLOCK_HEADS,
        )  # fmt: skip
