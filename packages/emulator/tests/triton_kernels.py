"""Kernels that the tests compile: Triton's language, in a file as it wants it."""

import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)


@triton.jit
def gemm(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        left = tl.load(a + rows[:, None] * k + (start + inner)[None, :])
        right = tl.load(b + columns[None, :] * k + (start + inner)[:, None])
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * n + columns[None, :], total)


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0) * columns + i, i < columns, float("-inf")).to(tl.float32)
    e = tl.exp(row - tl.max(row, 0))
    tl.store(out + tl.program_id(0) * columns + i, e / tl.sum(e, 0), i < columns)


@triton.jit
def histogram(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + tl.load(x + i, i < n, 0), 1, i < n)
