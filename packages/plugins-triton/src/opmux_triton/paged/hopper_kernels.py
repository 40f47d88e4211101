"""The kernel of paged prefill for sm_90: shared memory, barriers, and the warps' roles, see `hopper_role_kernels`."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from opmux_triton.paged.hopper_role_kernels import compute_tiles, load_tiles

_RENAMED = gl.constexpr(hasattr(gl.shared_memory_descriptor, "reinterpret"))
"""Triton 3.9 has `_reinterpret` without the underscore."""

_PER_CALL = ("heads", "groups", "tokens", "batch", "steps", "places", "fewest", "scale", "left", "right")


@gluon.jit
def _clear_rest(out, lse, rest, tokens, heads, HEAD_DIM: gl.constexpr):
    """Tokens past the last sequence get output 0 and lse -inf; the programs share them."""
    layout: gl.constexpr = gl.BlockedLayout([8], [32], [4], [0])
    column = gl.arange(0, 1024, layout=layout)
    for token in range(rest + gl.program_id(0), tokens, gl.num_programs(0)):
        zeros = gl.zeros([1024], out.dtype.element_ty, layout)
        for start in range(0, heads * HEAD_DIM, 1024):
            at = out + token.to(gl.int64) * heads * HEAD_DIM + start + column
            gl.store(at, zeros, mask=start + column < heads * HEAD_DIM)
        if lse is not None:
            for start in range(0, heads, 1024):
                at = lse + (start + column).to(gl.int64) * tokens + token
                gl.store(at, gl.full([1024], float("-inf"), gl.float32, layout), mask=start + column < heads)


@gluon.jit(do_not_specialize=_PER_CALL)
def prefill(
    out, lse, sinks, offsets, lengths, table, troubles, q_tma, k_tma, v_tma,
    offsets_stride, lengths_stride, table_row_stride, table_stride, sinks_stride,
    heads, groups, tokens, batch, steps, places, fewest, scale, left, right,
    HEAD_DIM: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, PAGE: gl.constexpr, BOX: gl.constexpr,
    BLOCK: gl.constexpr, STAGES: gl.constexpr, SLOTS: gl.constexpr, LOADERS: gl.constexpr,
    REGISTERS: gl.constexpr, LOADING: gl.constexpr,
):  # fmt: skip
    """The sequences with more than ``fewest`` new tokens; ``scale`` is positive and holds log2(e).

    A thread of a computing warpgroup gets ``REGISTERS``, one of the loading warp ``LOADING``. A program's word in
    ``troubles`` (where there may be any) becomes 1 if a result of its own is not finite, else 0.
    """
    GROUPS: gl.constexpr = 2
    PARTS: gl.constexpr = 2 if LOADERS == 4 and BLOCK > BOX else 1
    BOXES: gl.constexpr = STAGES * (HEAD_DIM // 64) * (BLOCK // BOX)
    dtype: gl.constexpr = q_tma.dtype
    block_layout: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    q_tiles = gl.allocate_shared_memory(dtype, [SLOTS * GROUPS, 1, 64, 1, HEAD_DIM], q_tma.layout)
    k_ring = gl.allocate_shared_memory(dtype, [BOXES, 1, BOX, 1, 64], k_tma.layout)
    v_ring = gl.allocate_shared_memory(dtype, [BOXES, 1, BOX, 1, 64], v_tma.layout)
    # 64 columns of all boxes of a block, then the other 64: as a swizzled block lies.
    if _RENAMED:
        k_blocks = k_ring.reinterpret(dtype, [STAGES, BLOCK, HEAD_DIM], block_layout)
        v_blocks = v_ring.reinterpret(dtype, [STAGES, BLOCK, HEAD_DIM], block_layout)
    else:
        k_blocks = k_ring._reinterpret(dtype, [STAGES, BLOCK, HEAD_DIM], block_layout)
        v_blocks = v_ring._reinterpret(dtype, [STAGES, BLOCK, HEAD_DIM], block_layout)
    q_full = gl.allocate_shared_memory(gl.int64, [SLOTS * GROUPS, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [SLOTS * GROUPS, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    trouble_of = gl.allocate_shared_memory(gl.float32, [GROUPS, 64], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    for slot in gl.static_range(SLOTS * GROUPS):
        mbarrier.init(q_full.index(slot), count=1)
        mbarrier.init(q_empty.index(slot), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=PARTS)
        mbarrier.init(k_empty.index(stage), count=GROUPS)
        mbarrier.init(v_full.index(stage), count=PARTS)
        mbarrier.init(v_empty.index(stage), count=GROUPS)
    fence_async_shared()
    _clear_rest(out, lse, gl.maximum(gl.load(offsets + batch * offsets_stride), 0), tokens, heads, HEAD_DIM)

    barriers = (q_full, q_empty, k_full, k_empty, v_full, v_empty)
    sizes = (heads, groups, tokens, batch, steps, places, fewest, scale, left, right)
    strides = (offsets_stride, lengths_stride, table_row_stride, table_stride)
    tiles = (out, lse, sinks, offsets, lengths, trouble_of, (q_tiles, k_blocks, v_blocks), barriers, sizes, strides,
             sinks_stride)  # fmt: skip
    loads = (q_tma, k_tma, v_tma, offsets, lengths, table, (q_tiles, k_ring, v_ring), barriers, sizes, strides)
    # Constants stay outside of the tuples: they would become numbers of the call there.
    # fmt: off
    if LOADERS == 1:
        gl.warp_specialize([
            (compute_tiles, (tiles, BLOCK, HEAD_DIM, LEFT, RIGHT, STAGES, SLOTS, GROUPS, 0)),
            (compute_tiles, (tiles, BLOCK, HEAD_DIM, LEFT, RIGHT, STAGES, SLOTS, GROUPS, 1)),
            (load_tiles, (loads, BLOCK, BOX, PAGE, HEAD_DIM, LEFT, RIGHT, STAGES, SLOTS, GROUPS, True, True, 0, 1)),
        ], [4, 1], [REGISTERS, LOADING])
    elif PARTS == 1:
        gl.warp_specialize([
            (compute_tiles, (tiles, BLOCK, HEAD_DIM, LEFT, RIGHT, STAGES, SLOTS, GROUPS, 0)),
            (compute_tiles, (tiles, BLOCK, HEAD_DIM, LEFT, RIGHT, STAGES, SLOTS, GROUPS, 1)),
            (load_tiles, (loads, BLOCK, BOX, PAGE, HEAD_DIM, LEFT, RIGHT, STAGES, SLOTS, GROUPS, True, False, 0, 1)),
            (load_tiles, (loads, BLOCK, BOX, PAGE, HEAD_DIM, LEFT, RIGHT, STAGES, SLOTS, GROUPS, False, True, 0, 1)),
        ], [4, 1, 1], [REGISTERS, LOADING, LOADING])
    else:
        gl.warp_specialize([
            (compute_tiles, (tiles, BLOCK, HEAD_DIM, LEFT, RIGHT, STAGES, SLOTS, GROUPS, 0)),
            (compute_tiles, (tiles, BLOCK, HEAD_DIM, LEFT, RIGHT, STAGES, SLOTS, GROUPS, 1)),
            (load_tiles, (loads, BLOCK, BOX, PAGE, HEAD_DIM, LEFT, RIGHT, STAGES, SLOTS, GROUPS, True, False, 0, 2)),
            (load_tiles, (loads, BLOCK, BOX, PAGE, HEAD_DIM, LEFT, RIGHT, STAGES, SLOTS, GROUPS, True, False, 1, 2)),
            (load_tiles, (loads, BLOCK, BOX, PAGE, HEAD_DIM, LEFT, RIGHT, STAGES, SLOTS, GROUPS, False, True, 0, 2)),
            (load_tiles, (loads, BLOCK, BOX, PAGE, HEAD_DIM, LEFT, RIGHT, STAGES, SLOTS, GROUPS, False, True, 1, 2)),
        ], [4, 1, 1, 1, 1], [REGISTERS, LOADING, LOADING, LOADING, LOADING])
    # fmt: on
    if LEFT or RIGHT:
        row: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
        trouble = trouble_of.index(0).load(row) + trouble_of.index(1).load(row)
        gl.store(troubles + gl.program_id(0), gl.max(gl.where(trouble == 0, 0, 1), 0))
