"""Attention forward: a program holds ROWS queries of one head and walks over the blocks of keys that they attend to.

Online softmax in base 2, as in Dao, FlashAttention-2 (2023). Blocks that every query attends to whole run without a
mask. A masked score is -inf and its weight 0, but 0 times a NaN or an infinity in the value is NaN: where results are
not finite and some keys are masked, `_blocks` computes them again from the finite values, and `_nonfinite_blocks` finds
what NaN and infinities contribute to the queries that do attend to them.
"""

import triton
import triton.language as tl

from opmux_triton.scoring.base2 import LN_2, LOG2_E
from opmux_triton.scoring.masks import attends, key_limits
from opmux_triton.scoring.online import weights_of, with_sink


@triton.jit
def tile_of(program, tiles, pairs, section, LONGEST_FIRST: tl.constexpr):
    """Which tile of queries of which (batch, head) pair a program computes.

    Pairs go in sections of that many, so that the keys and values that are read at a time stay in the cache. Within a
    section, all pairs' tiles of one index come before those of the next; where later queries attend to more keys, the
    last tiles come first, so that short ones fill the end.
    """
    before = program // (section * tiles) * section
    width = tl.minimum(section, pairs - before)
    place = program - before * tiles
    tile = place // width
    if LONGEST_FIRST:
        tile = tiles - 1 - tile
    return tile, before + place % width


@triton.jit
def sequence_of(offsets, place, tokens):
    """Where a ragged batch's sequence begins and how long it is, never outside of the tokens."""
    begin = tl.minimum(tl.maximum(tl.load(offsets + place), 0), tokens)
    end = tl.minimum(tl.maximum(tl.load(offsets + place + 1), begin), tokens)
    return begin, end - begin


@triton.jit
def _tanh(x):
    """The hyperbolic tangent in float32: by exponentials, near 0 by its series, which does not cancel."""
    power = tl.exp2(tl.abs(x) * -2.8853900817779268)
    far = (1.0 - power) / (1.0 + power)
    sign = x.to(tl.int32, bitcast=True) & -0x80000000
    far = (far.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)
    square = x * x
    near = -0.053968253968253968 + square * (0.021869488536155203 + square * -0.0088632355299021965)
    near = x + x * square * (-0.33333333333333333 + square * (0.13333333333333333 + square * near))
    return tl.where(tl.abs(x) < 0.3, near, far)


@triton.jit
def _load(base, row, stride, column, rows, columns, MASK_ROWS: tl.constexpr, MASK_COLUMNS: tl.constexpr):
    """A tile of a matrix whose last stride is 1; 0 outside of it."""
    places = base + row.to(tl.int64)[:, None] * stride + column[None, :]
    if MASK_ROWS and MASK_COLUMNS:
        return tl.load(places, mask=(row < rows)[:, None] & (column < columns)[None, :], other=0.0)
    if MASK_ROWS:
        return tl.load(places, mask=(row < rows)[:, None], other=0.0)
    if MASK_COLUMNS:
        return tl.load(places, mask=(column < columns)[None, :], other=0.0)
    return tl.load(places)


@triton.jit
def _blocks(
    mean, total, top, q, query, k, v, k_tma, v_tma, k_stride, v_stride, k_entry, k_token, kv_head,
    low, high, queries, keys, scale, cap, left, right,
    HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK: tl.constexpr,
    HEAD_BLOCK: tl.constexpr, VALUE_BLOCK: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    SOFTCAP: tl.constexpr, WIDE: tl.constexpr, TMA: tl.constexpr, MASKED: tl.constexpr, FINITE: tl.constexpr,
    STAGES: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """The online softmax over the keys in [low, high); ``FINITE`` counts values that are not finite as 0.

    ``top`` is as `weights_of` has it.
    """
    head_column = tl.arange(0, HEAD_BLOCK)
    value_column = tl.arange(0, VALUE_BLOCK)
    for start in tl.range(low, high, BLOCK, num_stages=STAGES):
        key = start + tl.arange(0, BLOCK)
        if TMA:
            k_tile = k_tma.load([k_entry, k_token + start, kv_head, 0]).reshape(BLOCK, HEAD_BLOCK)
        else:
            k_tile = _load(k, key, k_stride, head_column, keys, HEAD_DIM, MASKED, HEAD_BLOCK != HEAD_DIM)
        if UPCAST:
            k_tile = k_tile.to(tl.float32)
        scores = tl.dot(q, k_tile.T, input_precision="ieee")
        if SOFTCAP:
            scores = _tanh(scores * scale) * cap
        if MASKED:
            seen = attends(query[:, None], key[None, :], queries, keys, left, right, LEFT, RIGHT)
            scores = tl.where(seen, scores, float("-inf"))
        weights, new_top, decay = weights_of(scores, top, scale, SOFTCAP, WIDE)
        total = total * decay + tl.sum(weights, 1)
        mean = mean * decay[:, None]
        if TMA:
            v_tile = v_tma.load([k_entry, k_token + start, kv_head, 0]).reshape(BLOCK, VALUE_BLOCK)
        else:
            v_tile = _load(v, key, v_stride, value_column, keys, VALUE_DIM, MASKED, VALUE_BLOCK != VALUE_DIM)
        if FINITE:
            v_tile = tl.where(tl.abs(v_tile.to(tl.float32)) < float("inf"), v_tile, 0.0).to(v_tile.dtype)
        if UPCAST:
            v_tile = v_tile.to(tl.float32)
            mean = tl.dot(weights, v_tile, mean, input_precision="ieee")
        else:
            mean = tl.dot(weights.to(v_tile.dtype), v_tile, mean, input_precision="ieee")
        top = new_top
    return mean, total, top


@triton.jit
def _scaled(mean, total, top, scale, sinks, sink):
    """Sums with the top of unscaled scores, as those with the top of exponents, and with the sink if there is one."""
    top = top * scale
    if sinks is not None:
        decay, total, top = with_sink(total, top, sink)
        mean = mean * decay[:, None]
    return mean, total, top


@triton.jit
def _nonfinite_blocks(
    query, v, v_stride, low, high, queries, keys, left, right,
    VALUE_DIM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, VALUE_BLOCK: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """What values that are not finite add to the queries that attend to them: NaN, an infinity, or 0.

    Products of the mask and a code count them: +inf is 1, -inf 1024, NaN both; so a block has fewer than 1024 keys.
    """
    column = tl.arange(0, VALUE_BLOCK)
    count = tl.zeros([ROWS, VALUE_BLOCK], tl.float32)
    for start in tl.range(low, high, BLOCK, num_stages=1):
        key = start + tl.arange(0, BLOCK)
        values = _load(v, key, v_stride, column, keys, VALUE_DIM, True, VALUE_BLOCK != VALUE_DIM).to(tl.float32)
        code = tl.where(values < float("inf"), 0.0, 1.0) + tl.where(values > float("-inf"), 0.0, 1024.0)
        seen = attends(query[:, None], key[None, :], queries, keys, left, right, LEFT, RIGHT)
        if UPCAST:
            count = tl.dot(seen.to(tl.float32), code, count, input_precision="ieee")
        else:
            count = tl.dot(seen.to(tl.float16), code.to(tl.float16), count)
        # Back to 0 or 1 of each, before counts reach 1024.
        minus = count >= 1024.0
        plus = (count - tl.floor(count * (1 / 1024)) * 1024.0) >= 1.0
        count = tl.where(plus, 1.0, 0.0) + tl.where(minus, 1024.0, 0.0)
    minus = count >= 1024.0
    plus = count - tl.where(minus, 1024.0, 0.0) >= 1.0
    return tl.where(plus, float("inf"), 0.0) - tl.where(minus, float("inf"), 0.0)


_PER_CALL = ("batch", "heads", "groups", "queries", "keys", "tiles", "section", "scale", "cap", "left", "right")


@triton.jit(do_not_specialize=_PER_CALL)
def attention_forward(
    out, lse, q, k, v, k_tma, v_tma, sinks, offsets_q, offsets_k,
    q_batch_stride, q_stride, q_head_stride, k_batch_stride, k_stride, k_head_stride,
    v_batch_stride, v_stride, v_head_stride,
    batch, heads, groups, queries, keys, tiles, section, scale, cap, left, right,
    HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, RAGGED: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    FOLD: tl.constexpr, SOFTCAP: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, HEAD_BLOCK: tl.constexpr,
    VALUE_BLOCK: tl.constexpr, CAREFUL_BLOCK: tl.constexpr, TMA: tl.constexpr, FAST: tl.constexpr,
    CAREFUL: tl.constexpr, STAGES: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """`attention_lse`, and `attention_varlen_lse` where ``RAGGED``: then queries and keys are the numbers of tokens.

    ``scale`` holds log2(e) without a cap; with one, ``scale`` is divided by the cap, and ``cap`` is the cap times
    log2(e). ``FOLD`` says that the scale is positive and that there is no cap. ``left`` and ``right`` count where
    ``LEFT`` and ``RIGHT``. One program more than the sequences need clears the tokens behind them. ``FAST``
    computes the results, ``CAREFUL`` again those that are not finite: two launches where registers are scarce.
    """
    tile, pair = tile_of(tl.program_id(0), tiles, (batch + RAGGED) * heads, section, RIGHT)
    entry = pair // heads
    head = pair % heads
    kv_head = head // groups
    token_q = 0
    token_k = 0
    tokens_q = queries
    out_column = tl.arange(0, VALUE_BLOCK)
    if RAGGED:
        if entry == batch and not FAST:
            return
        if entry == batch:  # no sequence: the tokens behind the last one
            past = tl.minimum(tl.maximum(tl.load(offsets_q + batch), 0), tokens_q)
            for start in range(past + tile * ROWS, tokens_q, tiles * ROWS):
                token = start + tl.arange(0, ROWS)
                places = out + (token.to(tl.int64)[:, None] * heads + head) * VALUE_DIM + out_column[None, :]
                inside = (token < tokens_q)[:, None] & (out_column < VALUE_DIM)[None, :]
                tl.store(places, tl.zeros([ROWS, VALUE_BLOCK], out.dtype.element_ty), mask=inside)
                if lse is not None:
                    nothing = tl.full([ROWS], float("-inf"), tl.float32)
                    tl.store(lse + head.to(tl.int64) * tokens_q + token, nothing, mask=token < tokens_q)
            return
        token_q, queries = sequence_of(offsets_q, entry, tokens_q)
        token_k, keys = sequence_of(offsets_k, entry, keys)
        if tile * ROWS >= queries:
            return
    k_entry = 0 if RAGGED else entry
    entry = entry.to(tl.int64)
    if RAGGED:
        q += token_q.to(tl.int64) * q_stride
        k += token_k.to(tl.int64) * k_stride
        v += token_k.to(tl.int64) * v_stride
        out += token_q.to(tl.int64) * heads * VALUE_DIM
    else:
        q += entry * q_batch_stride
        k += entry * k_batch_stride
        v += entry * v_batch_stride
        out += entry * queries * heads * VALUE_DIM
    q += head.to(tl.int64) * q_head_stride
    k += kv_head.to(tl.int64) * k_head_stride
    v += kv_head.to(tl.int64) * v_head_stride
    out += head * VALUE_DIM

    query = tile * ROWS + tl.arange(0, ROWS)
    q_tile = _load(q, query, q_stride, tl.arange(0, HEAD_BLOCK), queries, HEAD_DIM, True, HEAD_BLOCK != HEAD_DIM)
    WIDE: tl.constexpr = not SOFTCAP and k.dtype.element_ty == tl.float32
    if UPCAST:
        q_tile = q_tile.to(tl.float32)
    if not (FOLD or SOFTCAP):  # the sign of the scale, or its being 0, is the queries'
        q_tile = (q_tile * tl.where(scale > 0, 1.0, tl.where(scale < 0, -1.0, 0.0))).to(q_tile.dtype)
        scale = tl.where(scale == 0, 1.0, tl.abs(scale))
    mean = tl.zeros([ROWS, VALUE_BLOCK], tl.float32)
    sink = 0.0
    if sinks is not None:
        sink = tl.load(sinks + head).to(tl.float32)
    if sinks is not None and not WIDE:  # a score like others, but without a value; WIDE tops know no sink
        first_top = sink * LOG2_E + tl.zeros([ROWS], tl.float32)
        weight = tl.where(sink == float("-inf"), 0.0, tl.where(sink < float("inf"), 1.0, float("nan")))
        first_total = weight + tl.zeros([ROWS], tl.float32)
    else:
        first_top = tl.full([ROWS], float("-inf"), tl.float32)
        first_total = tl.zeros([ROWS], tl.float32)
    top = first_top
    total = first_total
    begin, full_begin, full_end, end = key_limits(
        tile * ROWS, queries, keys, left, right, ROWS, BLOCK, LEFT, RIGHT
    )  # fmt: skip
    # Masks of columns take registers of their own: then a window gets one loop, masked throughout, not three.
    ONE: tl.constexpr = LEFT and (HEAD_BLOCK != HEAD_DIM or VALUE_BLOCK != VALUE_DIM)
    if FAST:
        if LEFT:
            mean, total, top = _blocks(
                mean, total, top, q_tile, query, k, v, k_tma, v_tma, k_stride, v_stride, k_entry, token_k, kv_head,
                begin, end if ONE else tl.minimum(full_begin, end), queries, keys, scale, cap, left, right,
                HEAD_DIM, VALUE_DIM, BLOCK, HEAD_BLOCK, VALUE_BLOCK, LEFT, RIGHT,
                SOFTCAP, WIDE, TMA, True, False, STAGES, UPCAST,
            )  # fmt: skip
        if not ONE:
            mean, total, top = _blocks(
                mean, total, top, q_tile, query, k, v, k_tma, v_tma, k_stride, v_stride, k_entry, token_k, kv_head,
                full_begin, full_end, queries, keys, scale, cap, left, right,
                HEAD_DIM, VALUE_DIM, BLOCK, HEAD_BLOCK, VALUE_BLOCK, LEFT, RIGHT,
                SOFTCAP, WIDE, TMA, False, False, STAGES, UPCAST,
            )  # fmt: skip
            mean, total, top = _blocks(
                mean, total, top, q_tile, query, k, v, k_tma, v_tma, k_stride, v_stride, k_entry, token_k, kv_head,
                full_end, end, queries, keys, scale, cap, left, right,
                HEAD_DIM, VALUE_DIM, BLOCK, HEAD_BLOCK, VALUE_BLOCK, LEFT, RIGHT,
                SOFTCAP, WIDE, TMA, True, False, STAGES, UPCAST,
            )  # fmt: skip

    live = query < queries
    places = out + (query.to(tl.int64) * heads * VALUE_DIM)[:, None] + out_column[None, :]
    inside = live[:, None] & (out_column < VALUE_DIM)[None, :]
    if FAST:
        if WIDE:
            mean, total, top = _scaled(mean, total, top, scale, sinks, sink)
        if lse is not None:
            lse_row = lse + (head.to(tl.int64) * tokens_q + token_q if RAGGED else (entry * heads + head) * queries)
            tl.store(lse_row + query, (top + tl.log2(total)) * LN_2, mask=live)
        mean = mean / tl.where(total == 0, 1.0, total)[:, None]
        tl.store(places, mean.to(out.dtype.element_ty), mask=inside)
    else:
        mean = tl.load(places, mask=inside, other=0.0).to(tl.float32)
    if CAREFUL:
        if tl.max(tl.max(tl.where(tl.abs(mean) < float("inf"), 0, 1), 1), 0) > 0:  # rare: compute everything again
            mean, total, top = _blocks(
                tl.zeros([ROWS, VALUE_BLOCK], tl.float32), first_total, first_top, q_tile, query, k, v, k_tma, v_tma,
                k_stride, v_stride, k_entry, token_k, kv_head,
                begin, end, queries, keys, scale, cap, left, right,
                HEAD_DIM, VALUE_DIM, CAREFUL_BLOCK, HEAD_BLOCK, VALUE_BLOCK, LEFT, RIGHT,
                SOFTCAP, WIDE, False, True, True, 1, UPCAST,
            )  # fmt: skip
            if WIDE:
                mean, total, top = _scaled(mean, total, top, scale, sinks, sink)
            mean = mean / tl.where(total == 0, 1.0, total)[:, None]
            tl.debug_barrier()
            tl.store(places, mean.to(out.dtype.element_ty), mask=inside)
            excess = _nonfinite_blocks(
                query, v, v_stride, begin, end, queries, keys, left, right,
                VALUE_DIM, ROWS, CAREFUL_BLOCK, VALUE_BLOCK, LEFT, RIGHT, UPCAST,
            )  # fmt: skip
            tl.debug_barrier()
            finite = tl.load(places, mask=inside, other=0.0).to(tl.float32)
            tl.store(places, (finite + excess).to(out.dtype.element_ty), mask=inside)
