"""Attention of the new tokens of ragged sequences over their paged keys and values, whole or in splits of the keys.

A program holds BLOCK_M rows of one sequence and one kv head: the query heads that share it lie beside each other, so
row ``r`` is head ``r % GROUP`` of the group for new token ``r // GROUP``, and one product serves them all. Keys come
in blocks of BLOCK_N, aligned to key 0; the pages of the next block are looked up while this one is loaded.

With several splits, each program takes an equal share of the blocks that its rows attend to, as read on the device,
and stores a sum that is neither normalised nor rounded; `combine_kernels` joins them. If the first split has all
blocks, it writes the result itself. If no sequence has more than one new token, the first split also stores how many
splits had a share, so that the kernel that joins them need not compute it from lengths.
"""

import triton
import triton.language as tl

from opmux_triton.dependent_launch import await_predecessor
from opmux_triton.paged.block_kernels import attend_blocks, blocks_of, count_of, excess_of, numbers_of, sequence_at
from opmux_triton.paged.code_kernels import RAISED, as_halves, scaled, values_of
from opmux_triton.scoring.base2 import LN_2
from opmux_triton.scoring.online import with_sink


@triton.jit
def clear_rest(
    out, lse, first, step, tokens, kv_head,
    HEADS: tl.constexpr, GROUP: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_V: tl.constexpr,
    LSE: tl.constexpr,
):  # fmt: skip
    """Tokens past the last sequence: every ``step``-th from ``first`` gets output 0 and lse -inf, for one kv head."""
    group = tl.arange(0, BLOCK_G)
    head = kv_head * GROUP + group
    value_dims = tl.arange(0, BLOCK_V)
    zeros = tl.zeros([BLOCK_G, BLOCK_V], out.dtype.element_ty)
    for token in range(first, tokens, step):
        rows = (tl.cast(token, tl.int64) * HEADS + head) * VALUE_DIM
        live = (group < GROUP)[:, None] & (value_dims < VALUE_DIM)[None, :]
        tl.store(out + rows[:, None] + value_dims[None, :], zeros, mask=live)
        if LSE:
            nothing = tl.full([BLOCK_G], float("-inf"), tl.float32)
            tl.store(lse + head.to(tl.int64) * tokens + token, nothing, mask=group < GROUP)


@triton.jit
def places_of(values, numbers, value_dims, VALUE_DIM: tl.constexpr):
    """Where the values of rows are stored. Computed when they are stored, to save registers."""
    return values + numbers[:, None] * VALUE_DIM + value_dims[None, :]


@triton.jit
def attend(
    q, k_cache, v_cache, offsets, lengths, table, sinks, out, lse, sums, statistics, troubles,
    batch, tokens, troubled, fewest, most, left, right,
    q_token_stride, q_head_stride, k_page_stride, k_slot_stride, k_head_stride,
    v_page_stride, v_slot_stride, v_head_stride,
    offsets_stride, lengths_stride, table_row_stride, table_stride, sinks_stride, factor, cap,
    q_scale, k_scale, v_scale, q_scale_stride, k_scale_stride, v_scale_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, PAGE_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_G: tl.constexpr, LEAST: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    SOFTCAP: tl.constexpr, SCALED: tl.constexpr, SINKS: tl.constexpr, LSE: tl.constexpr, SPLIT: tl.constexpr,
    SEARCH: tl.constexpr, SINGLE: tl.constexpr, CLEAR: tl.constexpr, UPCAST: tl.constexpr,
    Q_FORMAT: tl.constexpr, FORMAT: tl.constexpr, FP8: tl.constexpr, PAIRED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One tile of rows, or a split of its keys, of a sequence with more than ``fewest`` new tokens and up to ``most``.

    The grid is (places * kv heads, splits). With SEARCH the places are counted by the tokens there are and a program
    finds its sequence; else each sequence has as many as the longest may need. SINGLE says that no sequence has more
    than one new token. With CLEAR, the tokens past the last sequence are cleared too. With ``troubles``, ``troubled``
    numbers, nothing is done unless one of them is not 0. Q_FORMAT and FORMAT are those of queries and of caches of
    8-bit codes, which are given as bytes; else they are empty.
    """
    await_predecessor(DEPENDENT)
    if troubles is not None:
        trouble = 0
        for first_trouble in range(0, troubled, 256):
            index = first_trouble + tl.arange(0, 256)
            trouble += tl.max(tl.load(troubles + index, mask=index < troubled, other=0), 0)
        if trouble == 0:
            return
    kv_heads: tl.constexpr = HEADS // GROUP
    kv_head = tl.program_id(0) % kv_heads
    place = tl.program_id(0) // kv_heads
    places = tl.num_programs(0) // kv_heads
    split = tl.program_id(1)
    splits = tl.num_programs(1)
    if SEARCH:
        place = places - 1 - place  # with causal the later tiles have more to do: they start first
        sequence = sequence_at(offsets, offsets_stride, batch, place, GROUP, BLOCK_M, 1)
        start = tl.load(offsets + sequence * offsets_stride)
        tile = place - (start * GROUP // BLOCK_M + sequence)
    else:
        sequence = place % batch
        start = tl.load(offsets + sequence * offsets_stride)
        tile = place // batch
    queries = tl.load(offsets + (sequence + 1) * offsets_stride) - start
    length = tl.load(lengths + sequence * lengths_stride)
    if CLEAR:  # after the loads above, which are in flight while this one is waited for
        rest = tl.maximum(tl.load(offsets + batch * offsets_stride), 0)
        clear_rest(
            out, lse, rest + split * places + place, places * splits, tokens, kv_head,
            HEADS, GROUP, VALUE_DIM, BLOCK_G, BLOCK_V, LSE,
        )  # fmt: skip
    if (queries <= fewest) | (queries > most) | (tile * BLOCK_M >= queries * GROUP):
        return
    begin, full_begin, full_end, end, low, high, share = blocks_of(
        tile, queries, length, left, right, splits, GROUP, BLOCK_M, BLOCK_N, LEAST, LEFT, RIGHT
    )
    first = begin + split * share
    last = tl.minimum(first + share, end)
    if SPLIT:
        if (split > 0) & (first >= last):
            return
        if SINGLE:
            if (split == 0) & (start >= 0) & (start < tokens):
                active = (end - begin + share - 1) // share
                tl.store(count_of(statistics, start, kv_head, splits, tokens, HEADS, GROUP), active.to(tl.float32))

    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    query = row // GROUP
    head = kv_head * GROUP + row % GROUP
    token = start + query
    live = (query < queries) & (token >= 0) & (token < tokens)
    position = length - queries + query
    dims = tl.arange(0, BLOCK_D)
    value_dims = tl.arange(0, BLOCK_V)
    q_rows = q + token.to(tl.int64) * q_token_stride + head.to(tl.int64) * q_head_stride
    asked = live[:, None]
    if HEAD_DIM != BLOCK_D:
        asked = asked & (dims < HEAD_DIM)[None, :]
    queried = values_of(
        tl.load(q_rows[:, None] + dims[None, :], mask=asked, other=0.0), out.dtype.element_ty, Q_FORMAT, FP8
    )
    factor = scaled(scaled(factor, q_scale, q_scale_stride, kv_head), k_scale, k_scale_stride, kv_head)
    k_head = k_cache + tl.cast(kv_head, tl.int64) * k_head_stride
    v_head = v_cache + tl.cast(kv_head, tl.int64) * v_head_stride
    pages = table + tl.cast(sequence, tl.int64) * table_row_stride

    inside = live[:, None]
    if VALUE_DIM != BLOCK_V:
        inside = inside & (value_dims < VALUE_DIM)[None, :]
    WIDE: tl.constexpr = not SOFTCAP and out.dtype.element_ty == tl.float32
    HALVED: tl.constexpr = PAIRED and out.dtype.element_ty == tl.bfloat16
    if SCALED and not SOFTCAP:  # the sign of the factor, or its being 0, is the queries'
        queried = (queried * tl.where(factor > 0, 1.0, tl.where(factor < 0, -1.0, 0.0))).to(queried.dtype)
        factor = tl.where(factor == 0, 1.0, tl.abs(factor))
    acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    fine: tl.constexpr = BLOCK_N // 16
    if SINGLE:
        fits = False
        halves = queried
        halves_factor = factor
        if HALVED:
            halves, halves_factor, fits = as_halves(queried, factor, cap, FORMAT, SOFTCAP)
        if fits:
            acc, top, total = attend_blocks(
                acc, top, total, halves, k_head, v_head, pages, position, first, last, low, high, left, right,
                k_page_stride, k_slot_stride, v_page_stride, v_slot_stride, table_stride, halves_factor, cap,
                PAGE_SIZE, HEAD_DIM, VALUE_DIM, BLOCK_N, BLOCK_D, BLOCK_V, LEFT, RIGHT, SOFTCAP, WIDE, UPCAST,
                FORMAT, FP8, PAIRED, RAISED, None, "keys",
            )  # fmt: skip
        else:
            acc, top, total = attend_blocks(
                acc, top, total, queried, k_head, v_head, pages, position, first, last, low, high, left, right,
                k_page_stride, k_slot_stride, v_page_stride, v_slot_stride, table_stride, factor, cap,
                PAGE_SIZE, HEAD_DIM, VALUE_DIM, BLOCK_N, BLOCK_D, BLOCK_V, LEFT, RIGHT, SOFTCAP, WIDE, UPCAST,
                FORMAT, FP8, PAIRED, 0.0, 2 if HALVED else None, "keys",
            )  # fmt: skip
    else:
        middle = tl.minimum(tl.maximum(full_begin, first), last)
        after = tl.maximum(tl.minimum(full_end, last), middle)
        if LEFT:
            acc, top, total = attend_blocks(
                acc, top, total, queried, k_head, v_head, pages, position, first, middle, low, high, left, right,
                k_page_stride, k_slot_stride, v_page_stride, v_slot_stride, table_stride, factor, cap,
                PAGE_SIZE, HEAD_DIM, VALUE_DIM, BLOCK_N, BLOCK_D, BLOCK_V, LEFT, RIGHT, SOFTCAP, WIDE, UPCAST,
                FORMAT, FP8, False, 0.0, None, "rows",
            )  # fmt: skip
        acc, top, total = attend_blocks(
            acc, top, total, queried, k_head, v_head, pages, position, middle, after, low, high, left, right,
            k_page_stride, k_slot_stride, v_page_stride, v_slot_stride, table_stride, factor, cap,
            PAGE_SIZE, HEAD_DIM, VALUE_DIM, BLOCK_N, BLOCK_D, BLOCK_V, LEFT, RIGHT, SOFTCAP, WIDE, UPCAST, FORMAT, FP8,
            False, 0.0, None, "none",
        )  # fmt: skip
        acc, top, total = attend_blocks(
            acc, top, total, queried, k_head, v_head, pages, position, after, last, low, high, left, right,
            k_page_stride, k_slot_stride, v_page_stride, v_slot_stride, table_stride, factor, cap,
            PAGE_SIZE, HEAD_DIM, VALUE_DIM, BLOCK_N, BLOCK_D, BLOCK_V, LEFT, RIGHT, SOFTCAP, WIDE, UPCAST, FORMAT, FP8,
            False, 0.0, None, "rows" if (LEFT or RIGHT) else "keys",
        )  # fmt: skip
        if LEFT or RIGHT:
            # Rare and slow: NaN or Inf may come from values that a row does not see.
            wrong = tl.max(tl.max(tl.where(tl.abs(acc) < float("inf"), 0, 1), 1), 0) > 0
            if wrong:
                excess = excess_of(
                    tl.zeros_like(acc), v_head, pages, position, first * fine, last * fine, low, high, left, right,
                    v_page_stride, v_slot_stride, table_stride, PAGE_SIZE, VALUE_DIM, 16, BLOCK_V, LEFT, RIGHT, UPCAST,
                    FORMAT, FP8,
                )  # fmt: skip
                # Kept where only this program writes, until the sum is known.
                if SPLIT:
                    room = places_of(sums, numbers_of(token, head, split, tokens, HEADS), value_dims, VALUE_DIM)
                else:
                    room = places_of(out, numbers_of(token, head, 0, tokens, HEADS), value_dims, VALUE_DIM)
                tl.store(room, excess.to(room.dtype.element_ty), mask=inside)
                tl.debug_barrier()
                acc, _, _ = attend_blocks(
                    tl.zeros_like(acc), tl.full([BLOCK_M], float("-inf"), tl.float32), tl.zeros_like(total),
                    queried, k_head, v_head, pages, position, first * fine, last * fine, low, high, left, right,
                    k_page_stride, k_slot_stride, v_page_stride, v_slot_stride, table_stride, factor, cap,
                    PAGE_SIZE, HEAD_DIM, VALUE_DIM, 16, BLOCK_D, BLOCK_V, LEFT, RIGHT, SOFTCAP, WIDE, UPCAST,
                    FORMAT, FP8, False, 0.0, 1, "finite",
                )  # fmt: skip
                acc += tl.load(room, mask=inside, other=0.0).to(tl.float32)

    if v_scale is not None:
        acc = acc * tl.load(v_scale + kv_head * v_scale_stride)
    if WIDE:
        top = top * factor
    if SPLIT:
        if end - begin > share:
            part = numbers_of(token, head, split, tokens, HEADS)
            tl.store(places_of(sums, part, value_dims, VALUE_DIM), acc, mask=inside)
            tl.store(statistics + part * 2, top, mask=live)
            tl.store(statistics + part * 2 + 1, total, mask=live)
            return
    if SINKS:
        sink = tl.load(sinks + head * sinks_stride, mask=live, other=0.0).to(tl.float32)
        decay, total, top = with_sink(total, top, sink)
        result = acc * (decay / tl.where(total == 0, 1.0, total))[:, None]
    else:
        result = acc / tl.where(total == 0, 1.0, total)[:, None]
    room = places_of(out, numbers_of(token, head, 0, tokens, HEADS), value_dims, VALUE_DIM)
    tl.store(room, result.to(out.dtype.element_ty), mask=inside)
    if LSE:
        logarithm = (top + tl.log2(total)) * LN_2
        tl.store(lse + head.to(tl.int64) * tokens + token, logarithm, mask=live)
