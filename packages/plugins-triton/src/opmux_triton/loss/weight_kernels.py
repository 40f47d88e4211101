"""The gradient of a linear layer's weight, summed over chunks of tokens in float32."""

import triton
import triton.language as tl

from opmux_triton.dependent_launch import await_predecessor
from opmux_triton.gemm.kernels import tile_of, tile_product
from opmux_triton.rounding import rounded


@triton.jit
def add_product(
    grads, x, sums, vocab, hidden, tokens, x_row, x_col,
    ADDED: tl.constexpr, EVEN_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP: tl.constexpr, UPCAST: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """``sums[vocab, hidden] = grads.T @ x``, plus what was there if ADDED; grads ``(tokens, vocab)`` are dense."""
    await_predecessor(DEPENDENT)
    tile_m, tile_n = tile_of(tl.program_id(0), tl.cdiv(vocab, BLOCK_M), tl.cdiv(hidden, BLOCK_N), GROUP)
    total = tile_product(
        grads, x, tile_m, tile_n, vocab, hidden, tokens, 0, tl.cdiv(tokens, BLOCK_K),
        1, 0, vocab, 1, 1, 0, x_row, x_col,
        True, True, False, False, EVEN_K, BLOCK_M, BLOCK_N, BLOCK_K, UPCAST,
    )  # fmt: skip
    at_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    at_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (at_m < vocab)[:, None] & (at_n < hidden)[None, :]
    here = sums + at_m.to(tl.int64)[:, None] * hidden + at_n[None, :]
    if ADDED:
        total += tl.load(here, mask=inside, other=0.0)
    tl.store(here, rounded(total, sums.dtype.element_ty), mask=inside)
