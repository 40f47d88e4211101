"""Joins the slots that `share_kernels` left of a sequence whose keys lie in several shares."""

import triton
import triton.language as tl

from opmux_triton.dependent_launch import await_predecessor
from opmux_triton.scoring.base2 import LN_2
from opmux_triton.scoring.online import with_sink


@triton.jit
def join(
    sums, statistics, joins, offsets, sinks, out, lse, batch, tokens, shares, offsets_stride, sinks_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_S: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SINKS: tl.constexpr, LSE: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """ROWS heads of a token's tile and COLUMNS of their values: BLOCK_S slots at a time, always in the same order.

    The grid is (tokens * tiles, parts of the rows, parts of the columns): most tokens of a large batch have one slot,
    and programs without work should be few.
    """
    await_predecessor(DEPENDENT)
    parts: tl.constexpr = (GROUP + BLOCK_M - 1) // BLOCK_M
    tiles: tl.constexpr = HEADS // GROUP * parts
    token = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    place = joins + tl.cast(tl.program_id(0), tl.int64) * 2
    # Undefined for a token beyond `max_seqlen_q`: they must not lead past the slots.
    begin = tl.minimum(tl.maximum(tl.load(place), 0.0), shares - 1.0).to(tl.int32)
    count = tl.minimum(tl.maximum(tl.load(place + 1), 0.0), (shares - begin).to(tl.float32)).to(tl.int32)
    live = token < tl.load(offsets + batch * offsets_stride)
    if live & (count > 1):
        row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
        in_group = tile % parts * BLOCK_M + row
        head = tile // parts * GROUP + in_group
        asked = (row < BLOCK_M) & (in_group < GROUP)
        wanted = asked[:, None] & (column < VALUE_DIM)[None, :]
        acc = tl.zeros([ROWS, COLUMNS], tl.float32)
        top = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        for first in range(0, count, BLOCK_S):
            turn = first + tl.arange(0, BLOCK_S)
            # The first share has it in its second slot, the others have it in their first one.
            slot = ((begin + turn) * tiles + tile).to(tl.int64) * 2 + (turn == 0).to(tl.int64)
            number = (slot * BLOCK_M)[:, None] + row[None, :]
            there = (turn < count)[:, None] & asked[None, :]
            tops = tl.load(statistics + number * 2, mask=there, other=float("-inf"))
            totals = tl.load(statistics + number * 2 + 1, mask=there, other=0.0)
            at = (number * VALUE_DIM)[:, :, None] + column[None, None, :]
            one = tl.load(sums + at, mask=there[:, :, None] & (column < VALUE_DIM)[None, None, :], other=0.0)
            new_top = tl.maximum(top, tl.max(tops, 0))
            anchor = tl.where(new_top == float("-inf"), 0.0, new_top)
            decay = tl.exp2(top - anchor)
            weight = tl.exp2(tops - anchor[None, :])
            total = total * decay + tl.sum(totals * weight, 0)
            acc = acc * decay[:, None] + tl.sum(one * weight[:, :, None], 0)
            top = new_top
        if SINKS:
            sink = tl.load(sinks + head * sinks_stride, mask=asked, other=0.0).to(tl.float32)
            decay, total, top = with_sink(total, top, sink)
            acc = acc * decay[:, None]
        result = acc / tl.where(total == 0, 1.0, total)[:, None]
        result_rows = (tl.cast(token, tl.int64) * HEADS + head) * VALUE_DIM
        tl.store(out + result_rows[:, None] + column[None, :], result.to(out.dtype.element_ty), mask=wanted)
        if LSE:
            if tl.program_id(2) == 0:
                logarithm = (top + tl.log2(total)) * LN_2
                tl.store(lse + head.to(tl.int64) * tokens + token, logarithm, mask=asked)
