"""Joins what the splits of the keys left of each query and head: sums, maxima and totals of weights, to base 2."""

import triton
import triton.language as tl

from opmux_triton.dependent_launch import await_predecessor
from opmux_triton.paged.block_kernels import blocks_of, sequence_at


@triton.jit
def combine(
    sums, statistics, offsets, lengths, sinks, out, lse,
    batch, tokens, splits, fewest, most, left, right, offsets_stride, lengths_stride, sinks_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_V: tl.constexpr, LEAST: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    SINKS: tl.constexpr, LSE: tl.constexpr, SINGLE: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One token and head: the splits that `attend` gave blocks to, BLOCK_S at a time, always in the same order.

    SINGLE, which is as `attend` has it, takes all splits: nothing has to be known before they are read.
    """
    await_predecessor(DEPENDENT)
    token = tl.program_id(0) // HEADS
    head = tl.program_id(0) % HEADS
    live = token < tl.load(offsets + batch * offsets_stride)
    active = splits
    if not SINGLE:
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

    value_dims = tl.arange(0, BLOCK_V)
    acc = tl.zeros([BLOCK_V], tl.float32)
    top = float("-inf")
    total = 0.0
    if SINKS:
        top = tl.load(sinks + head * sinks_stride).to(tl.float32) * 1.4426950408889634
        total = tl.exp2(top - tl.where(top == float("-inf"), 0.0, top))
    for first in range(0, active, BLOCK_S):
        split = first + tl.arange(0, BLOCK_S)
        there = split < active
        part = (split.to(tl.int64) * tokens + token) * HEADS + head
        one_top = tl.load(statistics + part * 2, mask=there, other=float("-inf"))
        one_total = tl.load(statistics + part * 2 + 1, mask=there, other=0.0)
        inside = there[:, None] & (value_dims < VALUE_DIM)[None, :]
        one = tl.load(sums + part[:, None] * VALUE_DIM + value_dims[None, :], mask=inside, other=0.0)
        new_top = tl.maximum(top, tl.max(one_top, 0))
        anchor = tl.where(new_top == float("-inf"), 0.0, new_top)
        decay = tl.exp2(top - anchor)
        weight = tl.exp2(one_top - anchor)
        total = total * decay + tl.sum(one_total * weight, 0)
        acc = acc * decay + tl.sum(one * weight[:, None], 0)
        top = new_top
    if live:
        anchor = tl.where(top == float("-inf"), 0.0, top)
        result = acc / tl.where(total == 0, 1.0, total)
        row = (tl.cast(token, tl.int64) * HEADS + head) * VALUE_DIM
        tl.store(out + row + value_dims, result.to(out.dtype.element_ty), mask=value_dims < VALUE_DIM)
        if LSE:
            at = tl.cast(head, tl.int64) * tokens + token
            tl.store(lse + at, (anchor + tl.log2(total)) * 0.6931471805599453)
