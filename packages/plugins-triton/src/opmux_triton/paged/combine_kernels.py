"""Joins the results of the splits of the keys, for each query and head: sums, maxima and totals of weights."""

import triton
import triton.language as tl

from opmux_triton.dependent_launch import await_predecessor
from opmux_triton.paged.block_kernels import blocks_of, count_of, numbers_of, sequence_at
from opmux_triton.scoring.base2 import LN_2
from opmux_triton.scoring.online import with_sink


@triton.jit
def left_by_splits(
    sums, statistics, first, there, token, head, tokens,
    HEADS: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Load the sums, maxima and totals of BLOCK_S splits from ``first`` on, of those below ``there``."""
    split = first + tl.arange(0, BLOCK_S)
    value_dims = tl.arange(0, BLOCK_V)
    part = numbers_of(token, head, split, tokens, HEADS)
    top = tl.load(statistics + part * 2, mask=split < there, other=float("-inf"))
    total = tl.load(statistics + part * 2 + 1, mask=split < there, other=0.0)
    inside = (split < there)[:, None] & (value_dims < VALUE_DIM)[None, :]
    acc = tl.load(sums + part[:, None] * VALUE_DIM + value_dims[None, :], mask=inside, other=0.0)
    return acc, top, total


@triton.jit
def joined(acc, top, total, one, one_top, one_total):
    """Add the sums, maxima and totals of some splits to a running one."""
    new_top = tl.maximum(top, tl.max(one_top, 0))
    anchor = tl.where(new_top == float("-inf"), 0.0, new_top)
    decay = tl.exp2(top - anchor)
    weight = tl.exp2(one_top - anchor)
    total = total * decay + tl.sum(one_total * weight, 0)
    acc = acc * decay + tl.sum(one * weight[:, None], 0)
    return acc, new_top, total


@triton.jit
def combine(
    sums, statistics, offsets, lengths, sinks, out, lse,
    batch, tokens, splits, fewest, most, left, right, offsets_stride, lengths_stride, sinks_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_V: tl.constexpr, LEAST: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    SINKS: tl.constexpr, LSE: tl.constexpr, SINGLE: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One token and head: the splits that `attend` gave blocks to, BLOCK_S at a time, always in the same order.

    With SINGLE (as in `attend`) the number of these splits is loaded together with the results that the first BLOCK_S
    of all splits may have left: one wait for memory instead of four.
    """
    await_predecessor(DEPENDENT)
    token = tl.program_id(0) // HEADS
    head = tl.program_id(0) % HEADS
    live = token < tl.load(offsets + batch * offsets_stride)
    if SINGLE:
        there = splits
        counted = tl.load(count_of(statistics, token, head // GROUP, splits, tokens, HEADS, GROUP))
        # Undefined for a token beyond `max_seqlen_q`: it must not lead past the splits.
        active = tl.minimum(tl.where(live, counted, 0.0).to(tl.int32), splits)
    else:
        if not live:
            return
        sequence = sequence_at(offsets, offsets_stride, batch, token, 1, 1, 0)
        start = tl.load(offsets + sequence * offsets_stride)
        queries = tl.load(offsets + (sequence + 1) * offsets_stride) - start
        length = tl.load(lengths + sequence * lengths_stride)
        tile = ((token - start) * GROUP + head % GROUP) // BLOCK_M
        begin, _, _, end, _, _, share = blocks_of(
            tile, queries, length, left, right, splits, GROUP, BLOCK_M, BLOCK_N, LEAST, LEFT, RIGHT
        )
        active = (end - begin + share - 1) // share
        if (queries <= fewest) | (queries > most) | (active <= 1):
            return
        there = active

    value_dims = tl.arange(0, BLOCK_V)
    one, one_top, one_total = left_by_splits(
        sums, statistics, 0, there, token, head, tokens, HEADS, VALUE_DIM, BLOCK_S, BLOCK_V
    )
    if SINGLE:
        wrote = tl.arange(0, BLOCK_S) < active
        one = tl.where(wrote[:, None], one, 0.0)
        one_top = tl.where(wrote, one_top, float("-inf"))
        one_total = tl.where(wrote, one_total, 0.0)
    sink = 0.0
    if SINKS:
        sink = tl.load(sinks + head * sinks_stride).to(tl.float32)
    top = float("-inf")
    total = 0.0
    acc, top, total = joined(tl.zeros([BLOCK_V], tl.float32), top, total, one, one_top, one_total)
    for first in range(BLOCK_S, active, BLOCK_S):
        one, one_top, one_total = left_by_splits(
            sums, statistics, first, active, token, head, tokens, HEADS, VALUE_DIM, BLOCK_S, BLOCK_V
        )
        acc, top, total = joined(acc, top, total, one, one_top, one_total)
    if active > 1:
        if SINKS:
            decay, total, top = with_sink(total, top, sink)
            result = acc * (decay / tl.where(total == 0, 1.0, total))
        else:
            result = acc / tl.where(total == 0, 1.0, total)
        row = (tl.cast(token, tl.int64) * HEADS + head) * VALUE_DIM
        tl.store(out + row + value_dims, result.to(out.dtype.element_ty), mask=value_dims < VALUE_DIM)
        if LSE:
            at = tl.cast(head, tl.int64) * tokens + token
            tl.store(lse + at, (top + tl.log2(total)) * LN_2)
