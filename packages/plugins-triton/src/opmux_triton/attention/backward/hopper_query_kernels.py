"""The gradients of queries that the programs of the Hopper kernels sum: how blocks are added, sorted and rounded.

The sums are float32 and are added in the order in which programs reach them, in panels of 64 queries and 64 columns
whose elements lie as the registers of the product do: a thread adds four numbers at a time.
"""

import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from opmux_triton.dependent_launch import await_predecessor
from opmux_triton.hopper.names import synchronize
from opmux_triton.rounding import rounded

PANEL: gl.constexpr = gl.constexpr(4096)
"""Numbers of a panel."""


@builtin
def _add_in_bulk(descriptor, place, source, _semantic=None):
    """Start to add a buffer of shared memory to global memory."""
    place = _semantic._convert_to_ir_values(place, require_i64=False)
    kind = ir.DESCRIPTOR_REDUCE_KIND.ADD
    _semantic.builder.create_async_tma_reduce(kind, descriptor.handle, place, source.handle)


@gluon.jit
def add_queries(grad_queries, panel, present, sums, sums_tma, staging):
    """Add a block of 64 x 64, as its registers lie, to 4096 numbers, if it is present."""
    flat: gl.constexpr = gl.BlockedLayout([4], [32], [4], [0])
    # row = 16 warp + 8 high + lane // 4, column = 8 eighth + 2 (lane % 4) + low
    parts = grad_queries.reshape([4, 2, 8, 8, 4, 2]).permute((3, 0, 2, 4, 1, 5)).reshape([PANEL])
    parts = gl.convert_layout(parts, flat, assert_trivial=True)
    if sums_tma is not None:
        tma.store_wait(0)
        synchronize()
        staging.store(parts)
        fence_async_shared()
        synchronize()
        if present:
            _add_in_bulk(sums_tma, [panel * PANEL], staging)
    else:
        places = sums + panel.to(gl.int64) * PANEL
        places += gl.arange(0, PANEL, layout=flat)
        gl.atomic_add(places, parts, mask=gl.full([PANEL], present, gl.int1, flat), sem="relaxed", scope="gpu")


@triton.jit
def sum_of_queries(
    sums, grad_q, notes, queries, heads, pairs, panels, scale,
    COLUMNS: tl.constexpr, HEAD_DIM: tl.constexpr, NOTED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Gradients of 64 queries of a head from what `attention_backward` summed; notes those that are not finite."""
    await_predecessor(DEPENDENT)
    program = tl.program_id(0)
    pair = program % pairs
    block = program // pairs
    SIDE: tl.constexpr = HEAD_DIM // 64
    first = (pair.to(tl.int64) * panels + block * SIDE) * 4096
    found = tl.load(sums + first + tl.arange(0, 64 * HEAD_DIM))
    # panel, eighth of columns, warp, lane // 4, lane % 4, high, low: see `add_queries`
    found = tl.reshape(found, (SIDE, 8, 4, 8, 4, 2, 2))
    found = tl.reshape(tl.permute(found, (2, 5, 3, 0, 1, 4, 6)), (64, HEAD_DIM))
    row = block * 64 + tl.arange(0, 64)
    if NOTED:
        tl.store(notes + program, tl.max(tl.max(tl.where(tl.abs(found) < float("inf"), 0, 1), 1), 0))
    places = (pair // heads).to(tl.int64) * queries + row
    column = tl.arange(0, HEAD_DIM)
    places = (places * heads + pair % heads)[:, None] * COLUMNS + column[None, :]
    live = (row < queries)[:, None] & (column < COLUMNS)[None, :]
    tl.store(grad_q + places, rounded(found * scale, grad_q.dtype.element_ty), mask=live)
