"""Where rows of a tensor begin, and loads of tiles: what the row-wise kernels share."""

import triton
import triton.language as tl


@triton.jit
def row_starts(row, inner, stride, outer, WIDTH: tl.constexpr):
    """The offsets of rows, int64 as ``row`` is: dense rows of WIDTH, one stride, or two (see `opmux_triton.rows`)."""
    if stride is None:
        starts = row * WIDTH
    elif inner is None:
        starts = row * stride
    else:
        starts = row // inner * outer + row % inner * stride
    return starts


@triton.jit
def load_tile(pointers, inside, WHOLE: tl.constexpr, EVICT: tl.constexpr):
    """A tile, 0 outside; where the tile is WHOLE nothing is outside."""
    if WHOLE:
        values = tl.load(pointers, eviction_policy=EVICT)
    else:
        values = tl.load(pointers, mask=inside, other=0.0, eviction_policy=EVICT)
    return values


@triton.jit
def store_tile(pointers, values, inside, WHOLE: tl.constexpr):
    """Write a tile; where it is WHOLE nothing is outside."""
    if WHOLE:
        tl.store(pointers, values)
    else:
        tl.store(pointers, values, mask=inside)
