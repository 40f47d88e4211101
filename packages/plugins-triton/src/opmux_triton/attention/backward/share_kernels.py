"""The last step of gradients of keys and values that several programs computed parts of."""

import triton
import triton.language as tl

from opmux_triton.dependent_launch import await_predecessor
from opmux_triton.rounding import rounded

MOST_SHARES: tl.constexpr = tl.constexpr(8)
"""How many parts `sum_of_shares` adds at most."""


@triton.jit
def _sum(parts, gradient, block, rows, shares, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, ROWS: tl.constexpr):
    row = block.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK_DIM)
    inside = (row < rows)[:, None] & (column < DIM)[None, :]
    total = tl.zeros([ROWS, BLOCK_DIM], tl.float32)
    for share in tl.static_range(MOST_SHARES):
        places = (row * shares + share)[:, None] * DIM + column[None, :]
        total += tl.load(parts + places, mask=inside & (row * 0 + share < shares)[:, None], other=0.0)
    tl.store(gradient + row[:, None] * DIM + column[None, :], rounded(total, gradient.dtype.element_ty), mask=inside)


@triton.jit
def sum_of_shares(
    parts_k, parts_v, grad_k, grad_v, rows, blocks_k, shares,
    HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    ROWS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Sum ``(rows, shares, dim)`` float32 over the shares, in their order, and round once.

    The first ``blocks_k`` programs sum gradients of keys, the others those of values.
    """
    await_predecessor(DEPENDENT)
    program = tl.program_id(0)
    if program < blocks_k:
        _sum(parts_k, grad_k, program, rows, shares, HEAD_DIM, BLOCK_D, ROWS)
    else:
        _sum(parts_v, grad_v, program - blocks_k, rows, shares, VALUE_DIM, BLOCK_V, ROWS)
