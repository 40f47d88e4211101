"""Attention of one new token of each sequence over its paged keys and values, in equal shares of the batch's keys.

The blocks of keys that the tokens attend to lie in one line, sequence by sequence. It is cut into equal shares wherever
sequences begin and end, and a program takes a share for one tile: the query heads, up to BLOCK_M of them, that share a
kv head. So every program reads as many bytes as any other, however the lengths differ, and one wave of programs keeps
the device's memory busy to its end. The tiles of a share are neighbours in the grid, as their keys are in memory.

The part of a sequence in a share is a segment. A segment that is a whole sequence gives the result. The sum over any
other one, neither normalised nor rounded, goes to a slot of its program, and `join_kernels` joins the slots. A program
needs two at most: for the sequence that is cut where its share begins, and for the one cut where it ends.
"""

import triton
import triton.language as tl

from opmux_triton.dependent_launch import await_predecessor
from opmux_triton.paged.block_kernels import pages_at, scores_of, weighed
from opmux_triton.paged.code_kernels import RAISED, as_halves, beside, of_pairs, pairs, scaled, values_of
from opmux_triton.paged.kernels import clear_rest, places_of
from opmux_triton.scoring.base2 import LN_2
from opmux_triton.scoring.online import weights_of, with_sink


@triton.jit
def keys_of(length, left, BLOCK_N: tl.constexpr, LEFT: tl.constexpr):
    """(low, begin, end): a sequence's last token sees keys from ``low`` on, in the blocks [begin, end): at least one.

    No bound on the right matters to the last token.
    """
    low = length * 0
    if LEFT:
        low = tl.maximum(length - 1 - left, 0)
    begin = low // BLOCK_N
    return low, begin, tl.maximum((length + BLOCK_N - 1) // BLOCK_N, begin + 1)


@triton.jit
def blocks_from(
    offsets, lengths, first, batch, left, offsets_stride, lengths_stride,
    BLOCK_B: tl.constexpr, BLOCK_N: tl.constexpr, LEFT: tl.constexpr,
):  # fmt: skip
    """How many blocks of keys each of BLOCK_B sequences from ``first`` on attends to: 0 without a new token."""
    index = first + tl.arange(0, BLOCK_B)
    there = index < batch
    start = tl.load(offsets + index * offsets_stride, mask=there, other=0)
    stop = tl.load(offsets + (index + 1) * offsets_stride, mask=there, other=0)
    length = tl.load(lengths + index * lengths_stride, mask=there, other=0)
    _, begin, end = keys_of(length, left, BLOCK_N, LEFT)
    return tl.where(stop > start, end - begin, 0)


@triton.jit
def blocks_of_batch(
    offsets, lengths, batch, left, offsets_stride, lengths_stride,
    BLOCK_B: tl.constexpr, BLOCK_N: tl.constexpr, LEFT: tl.constexpr,
):  # fmt: skip
    """The length of the line."""
    total = 0
    for first in range(0, batch, BLOCK_B):
        blocks = blocks_from(
            offsets, lengths, first, batch, left, offsets_stride, lengths_stride, BLOCK_B, BLOCK_N, LEFT
        )
        total += tl.sum(blocks, 0)
    return total


@triton.jit
def sequence_with(
    at, offsets, lengths, batch, left, offsets_stride, lengths_stride,
    BLOCK_B: tl.constexpr, BLOCK_N: tl.constexpr, LEFT: tl.constexpr,
):  # fmt: skip
    """The sequence that block ``at`` of the line belongs to, and where that sequence's blocks begin."""
    sequence = 0
    origin = 0
    passed = 0
    for first in range(0, batch, BLOCK_B):
        blocks = blocks_from(
            offsets, lengths, first, batch, left, offsets_stride, lengths_stride, BLOCK_B, BLOCK_N, LEFT
        )
        ends = passed + tl.cumsum(blocks, 0)
        before = ends <= at
        sequence += tl.sum(before.to(tl.int32), 0)
        origin = tl.maximum(origin, tl.max(tl.where(before, ends, 0), 0))
        passed = tl.max(ends, 0)
    return sequence, origin


@triton.jit
def rows_of(
    page, block, page_stride, slot_stride,
    PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr, NARROW: tl.constexpr,
):  # fmt: skip
    """(rows, inner): the elements of a block of keys lie at the sum of both from the head's first one on.

    Only ``rows`` differs from block to block where blocks hold whole pages or pages whole blocks: one product and one
    sum for a row's address instead of four. NARROW says that 32 bits are enough for ``inner``.
    """
    number = tl.arange(0, BLOCK_N)
    if PAGE_SIZE % BLOCK_N == 0:
        slot = number
        begin = tl.cast(block * BLOCK_N % PAGE_SIZE, tl.int64)
        rows = page.to(tl.int64) * page_stride + begin * slot_stride
    else:
        slot = number % PAGE_SIZE if BLOCK_N % PAGE_SIZE == 0 else (block * BLOCK_N + number) % PAGE_SIZE
        rows = (page.to(tl.int64) * page_stride)[:, None]
    if not NARROW:
        slot = slot.to(tl.int64)
    return rows, (slot * slot_stride)[:, None] + tl.arange(0, BLOCK)[None, :]


@triton.jit
def attend_keys(
    q, k_head, v_head, table, first, last, low, high,
    k_page_stride, k_slot_stride, v_page_stride, v_slot_stride, table_stride, factor, cap,
    PAGE_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, LEFT: tl.constexpr, SOFTCAP: tl.constexpr,
    WIDE: tl.constexpr, NARROW: tl.constexpr, UPCAST: tl.constexpr, FORMAT: tl.constexpr, FP8: tl.constexpr,
    PAIRED: tl.constexpr, RAISE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """(sum, top, total) over the blocks [first, last), for rows that all see the keys [low, high).

    RAISE: see `weights_of`; STAGES: of the loop, None for the launch's.
    """
    WIDTH: tl.constexpr = BLOCK_V // 2 if PAIRED else BLOCK_V
    COLUMNS: tl.constexpr = VALUE_DIM // 2 if PAIRED else VALUE_DIM
    acc = tl.zeros([BLOCK_M, WIDTH], tl.float32)
    if PAIRED:
        odd = tl.zeros([BLOCK_M, WIDTH], tl.float32)
        v_head, v_page_stride, v_slot_stride = pairs(v_head), v_page_stride // 2, v_slot_stride // 2
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    page = pages_at(table, table_stride, first, tl.where(first < last, high, 0), PAGE_SIZE, BLOCK_N)
    for block in tl.range(first, last, num_stages=STAGES):
        key = block * BLOCK_N + tl.arange(0, BLOCK_N)
        k_rows, k_inner = rows_of(page, block, k_page_stride, k_slot_stride, PAGE_SIZE, BLOCK_N, BLOCK_D, NARROW)
        v_rows, v_inner = rows_of(page, block, v_page_stride, v_slot_stride, PAGE_SIZE, BLOCK_N, WIDTH, NARROW)
        page = pages_at(table, table_stride, block + 1, high, PAGE_SIZE, BLOCK_N)
        seen = key < high
        if LEFT:
            seen = seen & (key >= low)
        inside = seen[:, None]
        k_inside = inside if HEAD_DIM == BLOCK_D else inside & (tl.arange(0, BLOCK_D) < HEAD_DIM)[None, :]
        v_inside = inside if VALUE_DIM == BLOCK_V else inside & (tl.arange(0, WIDTH) < COLUMNS)[None, :]
        k = tl.load(k_head + k_rows + k_inner, mask=k_inside, other=0.0)
        v = tl.load(v_head + v_rows + v_inner, mask=v_inside, other=0.0)
        k = values_of(k, q.dtype, FORMAT, FP8)
        scores = tl.where(seen[None, :], scores_of(q, k, factor, cap, SOFTCAP, UPCAST), float("-inf"))
        weights, new_top, decay = weights_of(scores, top, factor, SOFTCAP, WIDE, RAISE)
        total = total * decay + tl.sum(weights, 1)
        if PAIRED:
            lower, upper = of_pairs(v, q.dtype, FORMAT)
            acc = weighed(weights, lower, acc * decay[:, None], UPCAST)
            odd = weighed(weights, upper, odd * decay[:, None], UPCAST)
        else:
            v = values_of(v, q.dtype, FORMAT, FP8)
            acc = weighed(weights, v, acc * decay[:, None], UPCAST)
        top = new_top
    if PAIRED:
        acc = beside(acc, odd)
    return acc, top, total


@triton.jit
def attend_shares(
    q, k_cache, v_cache, offsets, lengths, table, sinks, out, lse, sums, statistics, joins,
    batch, tokens, left,
    q_token_stride, q_head_stride, k_page_stride, k_slot_stride, k_head_stride,
    v_page_stride, v_slot_stride, v_head_stride,
    offsets_stride, lengths_stride, table_row_stride, table_stride, sinks_stride, factor, cap,
    q_scale, k_scale, v_scale, q_scale_stride, k_scale_stride, v_scale_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, PAGE_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_B: tl.constexpr, LEAST: tl.constexpr, LEFT: tl.constexpr,
    SOFTCAP: tl.constexpr, SCALED: tl.constexpr, SINKS: tl.constexpr, LSE: tl.constexpr, NARROW: tl.constexpr,
    UPCAST: tl.constexpr, Q_FORMAT: tl.constexpr, FORMAT: tl.constexpr, FP8: tl.constexpr, PAIRED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A share, of LEAST blocks or more, for one tile. The grid is (shares * tiles,).

    ``joins`` gets, for each token and tile, the share in which its sequence begins and how many shares have part of it.
    """
    await_predecessor(DEPENDENT)
    parts: tl.constexpr = (GROUP + BLOCK_M - 1) // BLOCK_M
    tiles: tl.constexpr = HEADS // GROUP * parts
    tile = tl.program_id(0) % tiles
    own = tl.program_id(0) // tiles
    shares = tl.num_programs(0) // tiles
    kv_head = tile // parts
    total = blocks_of_batch(offsets, lengths, batch, left, offsets_stride, lengths_stride, BLOCK_B, BLOCK_N, LEFT)
    share = tl.maximum((total + shares - 1) // shares, LEAST)
    at = own * share
    stop = tl.minimum(at + share, total)
    rest = tl.maximum(tl.load(offsets + batch * offsets_stride), 0)
    clear_rest(out, lse, rest + own, shares, tokens, kv_head, HEADS, GROUP, VALUE_DIM, BLOCK_G, BLOCK_V, LSE)

    WIDE: tl.constexpr = not SOFTCAP and out.dtype.element_ty == tl.float32
    HALVED: tl.constexpr = PAIRED and out.dtype.element_ty == tl.bfloat16
    factor = scaled(scaled(factor, q_scale, q_scale_stride, kv_head), k_scale, k_scale_stride, kv_head)
    sign = 1.0
    if SCALED and not SOFTCAP:  # the sign of the factor, or its being 0, is the queries'
        sign = tl.where(factor > 0, 1.0, tl.where(factor < 0, -1.0, 0.0))
        factor = tl.where(factor == 0, 1.0, tl.abs(factor))
    row = tile % parts * BLOCK_M + tl.arange(0, BLOCK_M)
    head = kv_head * GROUP + row
    dims = tl.arange(0, BLOCK_D)
    value_dims = tl.arange(0, BLOCK_V)
    k_head = k_cache + tl.cast(kv_head, tl.int64) * k_head_stride
    v_head = v_cache + tl.cast(kv_head, tl.int64) * v_head_stride
    sequence, origin = sequence_with(
        at, offsets, lengths, batch, left, offsets_stride, lengths_stride, BLOCK_B, BLOCK_N, LEFT
    )
    while at < stop:
        token = tl.load(offsets + sequence * offsets_stride)
        following = tl.load(offsets + (sequence + 1) * offsets_stride)
        length = tl.load(lengths + sequence * lengths_stride)
        low, begin, end = keys_of(length, left, BLOCK_N, LEFT)
        if following > token:
            begins = at == origin
            first = begin + at - origin
            last = tl.minimum(begin + stop - origin, end)
            asking = token + row * 0
            live = (row < GROUP) & (asking >= 0) & (asking < tokens)
            asked = live[:, None] if HEAD_DIM == BLOCK_D else live[:, None] & (dims < HEAD_DIM)[None, :]
            q_rows = q + asking.to(tl.int64) * q_token_stride + head.to(tl.int64) * q_head_stride
            queried = values_of(
                tl.load(q_rows[:, None] + dims[None, :], mask=asked, other=0.0), out.dtype.element_ty, Q_FORMAT, FP8
            )
            if SCALED and not SOFTCAP:
                queried = (queried * sign).to(queried.dtype)
            fits = False
            halves = queried
            halves_factor = factor
            if HALVED:
                halves, halves_factor, fits = as_halves(queried, factor, cap, FORMAT, SOFTCAP)
            if fits:
                acc, top, weight = attend_keys(
                    halves, k_head, v_head, table + tl.cast(sequence, tl.int64) * table_row_stride, first, last, low,
                    length, k_page_stride, k_slot_stride, v_page_stride, v_slot_stride, table_stride, halves_factor,
                    cap, PAGE_SIZE, HEAD_DIM, VALUE_DIM, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_V, LEFT, SOFTCAP, WIDE,
                    NARROW, UPCAST, FORMAT, FP8, PAIRED, RAISED, None,
                )  # fmt: skip
            else:
                acc, top, weight = attend_keys(
                    queried, k_head, v_head, table + tl.cast(sequence, tl.int64) * table_row_stride, first, last, low,
                    length, k_page_stride, k_slot_stride, v_page_stride, v_slot_stride, table_stride, factor, cap,
                    PAGE_SIZE, HEAD_DIM, VALUE_DIM, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_V, LEFT, SOFTCAP, WIDE, NARROW,
                    UPCAST, FORMAT, FP8, PAIRED, 0.0, 2 if HALVED else None,
                )  # fmt: skip
            if v_scale is not None:
                acc = acc * tl.load(v_scale + kv_head * v_scale_stride)
            if WIDE:
                top = top * factor
            inside = live[:, None] & (value_dims < VALUE_DIM)[None, :]
            if begins & (token >= 0) & (token < tokens):
                join = joins + (tl.cast(token, tl.int64) * tiles + tile) * 2
                tl.store(join, own.to(tl.float32))
                tl.store(join + 1, ((origin + end - begin - 1) // share - own + 1).to(tl.float32))
            if begins & (last == end):
                if SINKS:
                    sink = tl.load(sinks + head * sinks_stride, mask=live, other=0.0).to(tl.float32)
                    decay, weight, top = with_sink(weight, top, sink)
                    acc = acc * decay[:, None]
                result = acc / tl.where(weight == 0, 1.0, weight)[:, None]
                number = tl.cast(token, tl.int64) * HEADS + head
                tl.store(places_of(out, number, value_dims, VALUE_DIM), result.to(out.dtype.element_ty), mask=inside)
                if LSE:
                    logarithm = (top + tl.log2(weight)) * LN_2
                    tl.store(lse + head.to(tl.int64) * tokens + token, logarithm, mask=live)
            else:
                slot = tl.program_id(0).to(tl.int64) * 2 + begins.to(tl.int32)
                number = slot * BLOCK_M + tl.arange(0, BLOCK_M)
                tl.store(places_of(sums, number, value_dims, VALUE_DIM), acc, mask=inside)
                tl.store(statistics + number * 2, top, mask=live)
                tl.store(statistics + number * 2 + 1, weight, mask=live)
            at += last - first
            origin += end - begin
        sequence += 1
