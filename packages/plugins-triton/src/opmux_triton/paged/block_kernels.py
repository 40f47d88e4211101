"""The online softmax over blocks of paged keys: where blocks lie, which keys rows see, scores, sums.

A weight of 0 does not silence a NaN, so values past a sequence's end are not loaded at all. Where rows see different
keys, values that some of them do not see are multiplied by 0; if a sum is then not finite, it is computed again from
the finite values, and what each row sees of the others is counted (`excess_of`).
"""

import triton
import triton.language as tl

from opmux_triton.paged.code_kernels import beside, of_pairs, pairs, values_of
from opmux_triton.scoring.online import weights_of

_CHUNK = tl.constexpr(256)
"""Offsets that `sequence_at` compares at a time."""


@triton.jit
def sequence_at(offsets, offsets_stride, batch, place, GROUP: tl.constexpr, BLOCK_M: tl.constexpr, STEP: tl.constexpr):
    """The last sequence ``b`` with ``offsets[b] * GROUP // BLOCK_M + b * STEP <= place``; 0 if there is none."""
    count = 0
    for first in range(0, batch, _CHUNK):
        index = first + tl.arange(0, _CHUNK)
        start = tl.load(offsets + index * offsets_stride, mask=index < batch, other=0)
        before = (start * GROUP // BLOCK_M + index * STEP <= place) & (index < batch)
        count += tl.sum(before.to(tl.int32), 0)
    return tl.maximum(count - 1, 0)


@triton.jit
def blocks_of(
    tile, queries, length, left, right, splits,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, LEAST: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr,
):  # fmt: skip
    """Which blocks of keys a tile of rows attends to, and how many of them each split takes.

    Returns:
        (begin, full_begin, full_end, end, low, high, share): keys of [low, high) lie in the blocks [begin, end), and
        each row sees all of the blocks [full_begin, full_end). A split takes ``share`` blocks.
    """
    offset = length - queries
    first = tile * BLOCK_M // GROUP
    last = tl.minimum((tile * BLOCK_M + BLOCK_M - 1) // GROUP, queries - 1)
    low = 0
    full_low = 0
    high = length
    full_high = length
    if LEFT:
        low = tl.maximum(first + offset - left, 0)
        full_low = tl.maximum(last + offset - left, 0)
    if RIGHT:
        high = tl.minimum(last + offset + right + 1, length)
        full_high = tl.minimum(first + offset + right + 1, length)
    begin = low // BLOCK_N
    end = (high + BLOCK_N - 1) // BLOCK_N
    full_begin = tl.minimum((full_low + BLOCK_N - 1) // BLOCK_N, end)
    full_end = tl.maximum(full_high // BLOCK_N, full_begin)
    share = tl.maximum((end - begin + splits - 1) // splits, LEAST)
    return begin, full_begin, full_end, end, low, high, share


@triton.jit
def numbers_of(token, head, split, tokens, HEADS: tl.constexpr):
    """The indices of rows among those of all splits; results have one split."""
    return (tl.cast(split, tl.int64) * tokens + token) * HEADS + head


@triton.jit
def count_of(statistics, token, kv_head, splits, tokens, HEADS: tl.constexpr, GROUP: tl.constexpr):
    """Where the number of active splits is stored for a sequence's one token and its kv head: after their results."""
    kv_heads: tl.constexpr = HEADS // GROUP
    behind = tl.cast(splits, tl.int64) * tokens * HEADS * 2
    return statistics + behind + tl.cast(token, tl.int64) * kv_heads + kv_head


@triton.jit
def pages_at(table, table_stride, block, high, PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr):
    """The pages of a block of keys: one where a page holds whole blocks, else one for each key. None past ``high``."""
    if PAGE_SIZE % BLOCK_N == 0:
        key = block * BLOCK_N
    else:
        key = block * BLOCK_N + tl.arange(0, BLOCK_N)
    return tl.load(table + key // PAGE_SIZE * table_stride, mask=key < high, other=0)


@triton.jit
def sees(key, position, high, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """Which keys the rows see, those at these positions."""
    seen = (key < high)[None, :]
    if LEFT:
        seen = seen & (key[None, :] >= position[:, None] - left)
    if RIGHT:
        seen = seen & (key[None, :] <= position[:, None] + right)
    return seen


@triton.jit
def scores_of(q, k, factor, cap, SOFTCAP: tl.constexpr, UPCAST: tl.constexpr):
    """Products of queries and keys; with a cap, these times ``factor``, capped, as exponents of 2."""
    if UPCAST:
        q = q.to(tl.float32)
        k = k.to(tl.float32)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    if SOFTCAP:
        # cap * tanh(x) with factor * q.k = 2 x to base 2; the form is right for infinities too.
        return cap - 2.0 * cap / (tl.exp2(scores * factor) + 1.0)
    return scores


@triton.jit
def weighed(weights, v, acc, UPCAST: tl.constexpr):
    """``acc + weights @ v``, the weights rounded to v's dtype (but for the interpreter, which would cut them off)."""
    if UPCAST:
        return tl.dot(weights, v.to(tl.float32), acc, input_precision="ieee")
    return tl.dot(weights.to(v.dtype), v, acc, input_precision="ieee")


@triton.jit
def attend_blocks(
    acc, top, total, q, k_head, v_head, table, position, first, last, low, high, left, right,
    k_page_stride, k_slot_stride, v_page_stride, v_slot_stride, table_stride, factor, cap,
    PAGE_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, SOFTCAP: tl.constexpr, WIDE: tl.constexpr, UPCAST: tl.constexpr,
    FORMAT: tl.constexpr, FP8: tl.constexpr, PAIRED: tl.constexpr, RAISE: tl.constexpr, STAGES: tl.constexpr,
    MASK: tl.constexpr,
):  # fmt: skip
    """The online softmax over the blocks [first, last); ``top`` is as `weights_of` has it.

    MASK is ``"none"`` where each row sees each key, ``"keys"`` where all rows see the same ones, else ``"rows"``, or
    ``"finite"``, which takes 0 for values that are NaN or Inf. PAIRED (see `of_pairs`) takes an ``acc`` of 0;
    RAISE: see `weights_of`.
    """
    dims = tl.arange(0, BLOCK_D)
    WIDTH: tl.constexpr = BLOCK_V // 2 if PAIRED else BLOCK_V
    COLUMNS: tl.constexpr = VALUE_DIM // 2 if PAIRED else VALUE_DIM
    value_dims = tl.arange(0, WIDTH)
    if PAIRED:
        acc = tl.zeros([q.shape[0], WIDTH], tl.float32)
        odd = tl.zeros([q.shape[0], WIDTH], tl.float32)
        v_head, v_page_stride, v_slot_stride = pairs(v_head), v_page_stride // 2, v_slot_stride // 2
    page = pages_at(table, table_stride, first, tl.where(first < last, high, 0), PAGE_SIZE, BLOCK_N)
    for block in tl.range(first, last, num_stages=STAGES):
        key = block * BLOCK_N + tl.arange(0, BLOCK_N)
        if PAGE_SIZE % BLOCK_N == 0:
            slot = block * BLOCK_N % PAGE_SIZE + tl.arange(0, BLOCK_N)
        else:
            slot = key % PAGE_SIZE
        k_rows = k_head + (page.to(tl.int64) * k_page_stride + slot.to(tl.int64) * k_slot_stride)[:, None]
        v_rows = v_head + (page.to(tl.int64) * v_page_stride + slot.to(tl.int64) * v_slot_stride)[:, None]
        page = pages_at(table, table_stride, block + 1, high, PAGE_SIZE, BLOCK_N)
        inside = ((key >= low) & (key < high))[:, None]
        k_at = k_rows + dims[None, :]
        v_at = v_rows + value_dims[None, :]
        if MASK != "none":
            k = tl.load(k_at, mask=inside if HEAD_DIM == BLOCK_D else inside & (dims < HEAD_DIM)[None, :], other=0.0)
            v = tl.load(
                v_at, mask=inside if VALUE_DIM == BLOCK_V else inside & (value_dims < COLUMNS)[None, :], other=0.0
            )
        else:
            if HEAD_DIM == BLOCK_D:
                k = tl.load(k_at)
            else:
                k = tl.load(k_at, mask=(dims < HEAD_DIM)[None, :], other=0.0)
            if VALUE_DIM == BLOCK_V:
                v = tl.load(v_at)
            else:
                v = tl.load(v_at, mask=(value_dims < COLUMNS)[None, :], other=0.0)
        k = values_of(k, q.dtype, FORMAT, FP8)
        scores = scores_of(q, k, factor, cap, SOFTCAP, UPCAST)
        if MASK != "none":
            if MASK == "keys":
                seen = ((key >= low) & (key < high))[None, :]
            else:
                seen = sees(key, position, high, left, right, LEFT, RIGHT)
            scores = tl.where(seen, scores, float("-inf"))
        weights, new_top, decay = weights_of(scores, top, factor, SOFTCAP, WIDE, RAISE)
        total = total * decay + tl.sum(weights, 1)
        acc = acc * decay[:, None]
        if PAIRED:
            lower, upper = of_pairs(v, q.dtype, FORMAT)
            acc = weighed(weights, lower, acc, UPCAST)
            odd = weighed(weights, upper, odd * decay[:, None], UPCAST)
        else:
            v = values_of(v, q.dtype, FORMAT, FP8)
            if MASK == "finite":
                v = tl.where(tl.abs(v.to(tl.float32)) < float("inf"), v, 0.0)
            acc = weighed(weights, v, acc, UPCAST)
        top = new_top
    if PAIRED:
        acc = beside(acc, odd)
    return acc, top, total


@triton.jit
def excess_of(
    acc, v_head, table, position, first, last, low, high, left, right, v_page_stride, v_slot_stride, table_stride,
    PAGE_SIZE: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_V: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, UPCAST: tl.constexpr,
    FORMAT: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """What NaN and Inf among the values that a row sees add to its sum: NaN, Inf, -Inf or 0, in the shape of ``acc``.

    They are counted, as a weight of 0 does not silence a NaN: Inf in units of 1/256, -Inf of 1, NaN of 256, all exact
    in 16 bits.
    """
    value_dims = tl.arange(0, BLOCK_V)
    count = tl.zeros_like(acc)
    for block in tl.range(first, last, num_stages=1):
        key = block * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = ((key >= low) & (key < high))[:, None] & (value_dims < VALUE_DIM)[None, :]
        page = pages_at(table, table_stride, block, high, PAGE_SIZE, BLOCK_N)
        v_rows = v_head + (page.to(tl.int64) * v_page_stride + (key % PAGE_SIZE).to(tl.int64) * v_slot_stride)[:, None]
        v = tl.load(v_rows + value_dims[None, :], mask=inside, other=0.0)
        if FORMAT != "":  # counts are exact in float16
            v = values_of(v, tl.float16, FORMAT, FP8)
        values = v.to(tl.float32)
        kind = tl.where(values > 0, 0.00390625, tl.where(values < 0, 1.0, 256.0))
        kind = tl.where(tl.abs(values) < float("inf"), 0.0, kind).to(v.dtype)
        seen = sees(key, position, high, left, right, LEFT, RIGHT)
        count = weighed(tl.where(seen, 1.0, 0.0), kind, count, UPCAST)
    both = (count >= 1) & (count != tl.floor(count))
    excess = tl.where(count >= 1, float("-inf"), tl.where(count > 0, float("inf"), 0.0))
    return tl.where((count >= 256) | both, float("nan"), excess)
