"""Kernels that merge partial attention results, and the backward of that: one program for some queries of a head."""

import triton
import triton.language as tl

from opmux_triton.rounding import rounded
from opmux_triton.scoring.base2 import LN_2, LOG2_E


@triton.jit
def begin(base, entry, head, inner, outer_stride, inner_stride, head_stride):
    """Where a head of a batch entry begins, the leading dims folded into two."""
    leading = (entry // inner).to(tl.int64) * outer_stride + (entry % inner).to(tl.int64) * inner_stride
    return base + leading + head * head_stride


@triton.jit
def place(queries, heads, ROWS: tl.constexpr):
    """What a program works on: (batch entry, head, queries, which of these exist)."""
    program = tl.program_id(0)
    blocks = (queries + ROWS - 1) // ROWS
    row = program // heads % blocks * ROWS + tl.arange(0, ROWS)
    return program // heads // blocks, program % heads, row.to(tl.int64), row < queries


@triton.jit
def load_rows(start, row, stride, live, DIM: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of DIM elements in float32, 0 where there are none."""
    dims = tl.arange(0, BLOCK)
    inside = live[:, None] & (dims < DIM)[None, :]
    return tl.load(start + row[:, None] * stride + dims[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def store_rows(start, value, row, stride, live, DIM: tl.constexpr, BLOCK: tl.constexpr):
    """The inverse, rounded."""
    dims = tl.arange(0, BLOCK)
    inside = live[:, None] & (dims < DIM)[None, :]
    tl.store(start + row[:, None] * stride + dims[None, :], rounded(value, start.dtype.element_ty), mask=inside)


@triton.jit
def shares(lse_a, lse_b):
    """The weights of both sides and the joint lse; where neither attended to anything, 0, 0 and -inf."""
    nothing = (lse_a == float("-inf")) & (lse_b == float("-inf"))
    top = tl.maximum(lse_a, lse_b)
    top = tl.where(top == float("-inf"), 0.0, top)
    part_a = tl.exp2((lse_a - top) * LOG2_E)
    part_b = tl.exp2((lse_b - top) * LOG2_E)
    total = tl.where(nothing, 1.0, part_a + part_b)
    lse = tl.where(nothing, float("-inf"), top + tl.log2(total) * LN_2)
    return part_a / total, part_b / total, lse


@triton.jit
def merge(
    out_a, lse_a, out_b, lse_b, out, lse, queries, heads, inner,
    out_a_outer, out_a_inner, out_a_h, out_a_s,
    lse_a_outer, lse_a_inner, lse_a_h, lse_a_s,
    out_b_outer, out_b_inner, out_b_h, out_b_s,
    lse_b_outer, lse_b_inner, lse_b_h, lse_b_s,
    DIM: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """``out = w_a * out_a + w_b * out_b`` with the weights of `shares`; a side without weight is not read."""
    entry, head, row, live = place(queries, heads, ROWS)
    head = head.to(tl.int64)
    a_start = begin(lse_a, entry, head, inner, lse_a_outer, lse_a_inner, lse_a_h)
    b_start = begin(lse_b, entry, head, inner, lse_b_outer, lse_b_inner, lse_b_h)
    a = tl.load(a_start + row * lse_a_s, mask=live, other=0.0)
    b = tl.load(b_start + row * lse_b_s, mask=live, other=0.0)
    a_start = begin(out_a, entry, head, inner, out_a_outer, out_a_inner, out_a_h)
    b_start = begin(out_b, entry, head, inner, out_b_outer, out_b_inner, out_b_h)
    of_a = load_rows(a_start, row, out_a_s, live & (a != float("-inf")), DIM, BLOCK)
    of_b = load_rows(b_start, row, out_b_s, live & (b != float("-inf")), DIM, BLOCK)
    weight_a, weight_b, joint = shares(a, b)
    first = entry.to(tl.int64) * queries
    start = out + (first * heads + head) * DIM
    store_rows(start, of_a * weight_a[:, None] + of_b * weight_b[:, None], row, heads * DIM, live, DIM, BLOCK)
    tl.store(lse + first * heads + head * queries + row, joint, mask=live)


@triton.jit
def merge_backward(
    grad_out, grad_lse, out_a, lse_a, out_b, lse_b, grad_out_a, grad_lse_a, grad_out_b, grad_lse_b, queries, heads,
    inner, grad_out_outer, grad_out_inner, grad_out_h, grad_out_s,
    grad_lse_outer, grad_lse_inner, grad_lse_h, grad_lse_s,
    out_a_outer, out_a_inner, out_a_h, out_a_s,
    lse_a_outer, lse_a_inner, lse_a_h, lse_a_s,
    out_b_outer, out_b_inner, out_b_h, out_b_s,
    lse_b_outer, lse_b_inner, lse_b_h, lse_b_s,
    DIM: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    WANTS_OUT_A: tl.constexpr, WANTS_LSE_A: tl.constexpr, WANTS_OUT_B: tl.constexpr, WANTS_LSE_B: tl.constexpr,
):  # fmt: skip
    """``grad_out_x = w_x * grad_out``; ``grad_lse_x = w_x * (grad_out . (out_x - out) + grad_lse)``."""
    entry, head, row, live = place(queries, heads, ROWS)
    head = head.to(tl.int64)
    a_start = begin(lse_a, entry, head, inner, lse_a_outer, lse_a_inner, lse_a_h)
    b_start = begin(lse_b, entry, head, inner, lse_b_outer, lse_b_inner, lse_b_h)
    a = tl.load(a_start + row * lse_a_s, mask=live, other=0.0)
    b = tl.load(b_start + row * lse_b_s, mask=live, other=0.0)
    weight_a, weight_b, joint = shares(a, b)
    has_a = live & (a != float("-inf"))
    has_b = live & (b != float("-inf"))
    start = begin(grad_out, entry, head, inner, grad_out_outer, grad_out_inner, grad_out_h)
    gradient = load_rows(start, row, grad_out_s, live, DIM, BLOCK)
    first = entry.to(tl.int64) * queries
    of_out = (first * heads + head) * DIM
    of_lse = first * heads + head * queries
    if WANTS_OUT_A:
        share = tl.where(has_a[:, None], gradient * weight_a[:, None], 0.0)
        store_rows(grad_out_a + of_out, share, row, heads * DIM, live, DIM, BLOCK)
    if WANTS_OUT_B:
        share = tl.where(has_b[:, None], gradient * weight_b[:, None], 0.0)
        store_rows(grad_out_b + of_out, share, row, heads * DIM, live, DIM, BLOCK)
    if WANTS_LSE_A or WANTS_LSE_B:
        a_start = begin(out_a, entry, head, inner, out_a_outer, out_a_inner, out_a_h)
        b_start = begin(out_b, entry, head, inner, out_b_outer, out_b_inner, out_b_h)
        along_a = tl.sum(gradient * load_rows(a_start, row, out_a_s, has_a, DIM, BLOCK), 1)
        along_b = tl.sum(gradient * load_rows(b_start, row, out_b_s, has_b, DIM, BLOCK), 1)
        start = begin(grad_lse, entry, head, inner, grad_lse_outer, grad_lse_inner, grad_lse_h)
        moved = tl.load(start + row * grad_lse_s, mask=live & (joint != float("-inf")), other=0.0)
        along = along_a * weight_a + along_b * weight_b
        if WANTS_LSE_A:
            tl.store(grad_lse_a + of_lse + row, weight_a * (along_a - along + moved), mask=live)
        if WANTS_LSE_B:
            tl.store(grad_lse_b + of_lse + row, weight_b * (along_b - along + moved), mask=live)
