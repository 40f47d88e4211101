"""Kernels planted to be found wanting."""

import triton
import triton.language as tl


@triton.jit
def copy(x, y, count, BLOCK: tl.constexpr):
    """A copy, 16 bytes a thread where the pointers allow it."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < count, other=0.0), mask=at < count)


@triton.jit
def loaded(x, at):
    """A load in a function of its own."""
    return tl.load(x + at)


@triton.jit
def count_up(x, counts, count, BLOCK: tl.constexpr):
    """Adds x to the counts, atomically; the mask is for the counts alone."""
    at = tl.arange(0, BLOCK)
    tl.atomic_add(counts + at, loaded(x, at), mask=at < count)


@triton.jit
def count_up_by_swaps(counts, BLOCK: tl.constexpr):
    """Counts that are 0 become 1, atomically, without a mask."""
    tl.atomic_cas(counts + tl.arange(0, BLOCK), tl.zeros([BLOCK], tl.int32), tl.full([BLOCK], 1, tl.int32))


@triton.jit
def copy_strided(x, y, stride, count, BLOCK: tl.constexpr):
    """A copy that the compiler cannot widen."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at * stride, mask=at < count, other=0.0), mask=at < count)


@triton.jit
def product(x, w, y, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """y = x w^T, one tile."""
    rows, columns, inner = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    total = tl.zeros([M, N], tl.float32)
    for start in range(0, k, K):
        a = tl.load(x + rows[:, None] * k + start + inner[None, :])
        b = tl.load(w + columns[None, :] * k + start + inner[:, None])
        total = tl.dot(a, b, total)
    tl.store(y + rows[:, None] * N + columns[None, :], total.to(y.dtype.element_ty))


@triton.jit
def not_compiling(x, y, count, BLOCK: tl.constexpr):
    """A type error, at compile time."""
    at = tl.arange(0, BLOCK)
    tl.static_assert(BLOCK < 0, "planted: this kernel does not compile")
    tl.store(y + at, tl.load(x + at))
