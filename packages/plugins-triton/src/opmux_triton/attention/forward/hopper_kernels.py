"""Attention forward for sm_90 in Gluon: one warp loads, two or three warpgroups compute 64 rows of queries each.

The loading warp keeps rings of key and value blocks in shared memory filled through TMA. A computing warpgroup issues
the scores of the next block before the product of the current weights and values, and computes the softmax of the one
while the tensor cores do the other. Both orders of overlap, within a warpgroup and among them (``TURNS``), are those of
Shah et al., FlashAttention-3 (2024), sections 3.1 and 3.2. A program computes several tiles, see `hopper_tile_kernels`;
the queries of the next one are loaded, and the results of the last one stored, while it works on one.

The blocks that need a mask come first, so that all others run without one. Where a result is not finite, the program
looks at its tiles once more, see `hopper_repair_kernels`.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from opmux_triton.attention.forward.hopper_repair_kernels import repair
from opmux_triton.attention.forward.hopper_tile_kernels import block_counts, block_start, visited_tile
from opmux_triton.hopper.names import load_block, store_block
from opmux_triton.hopper.order import visits
from opmux_triton.scoring.base2 import LN_2, LOG2_E
from opmux_triton.scoring.hopper_softmax import mask, softmax


@gluon.jit
def _load_tiles(
    q_tma, k_tma, v_tma, buffers, barriers, sizes,
    BLOCK: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr,
):  # fmt: skip
    """The loading warp: for each tile its queries, then keys and values block by block."""
    q_tiles, k_ring, v_ring = buffers
    q_full, q_empty, k_full, k_empty, v_full, v_empty, _turns = barriers
    pairs, heads, groups, queries, keys, tiles, section, _scale, left, right = sizes
    ROWS: gl.constexpr = 64 * GROUPS
    loaded = 0
    for visit in range(visits(tiles * pairs)):
        tile, pair = visited_tile(visit, tiles, pairs, section, RIGHT)
        entry = pair // heads
        head = pair % heads
        kv_head = head // groups
        masked, blocks, begin, full_begin, full_end, lefts = block_counts(
            tile, queries, keys, left, right, ROWS, BLOCK, LEFT, RIGHT
        )
        for group in gl.static_range(GROUPS):
            slot = group * 2 + (visit & 1)
            mbarrier.wait(q_empty.index(slot), (visit // 2 & 1) ^ 1)
            mbarrier.expect(q_full.index(slot), q_tma.block_type.nbytes)
            load_block(q_tma, [entry, tile * ROWS + group * 64, head, 0], q_full.index(slot), q_tiles.index(slot))
        for index in range(blocks):
            start = block_start(index, masked, begin, full_begin, full_end, lefts, BLOCK)
            stage = loaded % STAGES
            phase = (loaded // STAGES & 1) ^ 1
            mbarrier.wait(k_empty.index(stage), phase)
            mbarrier.expect(k_full.index(stage), k_tma.block_type.nbytes)
            load_block(k_tma, [entry, start, kv_head, 0], k_full.index(stage), k_ring.index(stage))
            mbarrier.wait(v_empty.index(stage), phase)
            mbarrier.expect(v_full.index(stage), v_tma.block_type.nbytes)
            load_block(v_tma, [entry, start, kv_head, 0], v_full.index(stage), v_ring.index(stage))
            loaded += 1


@gluon.jit
def _step(
    index, used, turn, mean, weights, total, top, q_tile, k_ring, v_ring, k_full, k_empty, v_full, v_empty, turns,
    query, masked, begin, full_begin, full_end, lefts, queries, keys, scale, left, right,
    GROUP: gl.constexpr, GROUPS: gl.constexpr, TURNS: gl.constexpr, HEAD_DIM: gl.constexpr,
    BLOCK: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, STAGES: gl.constexpr, score_layout: gl.constexpr,
):  # fmt: skip
    """Block ``index``'s scores and weights, while block ``index - 1``'s weights and values are multiplied.

    ``used`` counts the blocks of the rings before that of ``index``, ``turn`` the steps before this one.
    """
    stage = used % STAGES
    before = (used - 1) % STAGES
    mbarrier.wait(k_full.index(stage), used // STAGES & 1)
    if TURNS:  # one warpgroup issues its products while the others are at their softmax
        mbarrier.wait(turns.index(GROUP), (turn & 1) ^ (1 if GROUP == 0 else 0))
    scores = gl.zeros([64, BLOCK], gl.float32, score_layout)
    k_tile = k_ring.index(stage).reshape([BLOCK, HEAD_DIM]).permute((1, 0))
    scores = warpgroup_mma(q_tile, k_tile, scores, use_acc=False, is_async=True)
    mbarrier.wait(v_full.index(before), (used - 1) // STAGES & 1)
    v_tile = v_ring.index(before).reshape([BLOCK, HEAD_DIM])
    mean = warpgroup_mma(weights, v_tile, mean, is_async=True)
    if TURNS:
        mbarrier.arrive(turns.index((GROUP + 1) % GROUPS), count=1)
    scores = warpgroup_mma_wait(1, [scores])
    if LEFT or RIGHT:
        if index < masked:
            start = block_start(index, masked, begin, full_begin, full_end, lefts, BLOCK)
            scores = mask(scores, start, query, queries, keys, left, right, LEFT, RIGHT)
    exact, total, top, decay = softmax(scores, total, top, scale)
    # Passed long ago: a branch, across which the assembler does not move the softmax behind the product.
    mbarrier.wait(v_full.index(before), (used - 1) // STAGES & 1)
    mean, weights = warpgroup_mma_wait(0, [mean, weights])
    mbarrier.arrive(k_empty.index(stage), count=1)
    mbarrier.arrive(v_empty.index(before), count=1)
    mean = mean * gl.convert_layout(decay, gl.SliceLayout(1, mean.type.layout))[:, None]
    new_weights = gl.convert_layout(exact.to(weights.dtype), weights.type.layout)
    return mean, new_weights, total, top


@gluon.jit
def _compute_tiles(
    out_tma, lse, sinks, troubles, buffers, barriers, sizes,
    BLOCK: gl.constexpr, HEAD_DIM: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, MASKED: gl.constexpr,
    STAGES: gl.constexpr, GROUPS: gl.constexpr, GROUP: gl.constexpr, TURNS: gl.constexpr,
):  # fmt: skip
    """A computing warpgroup: for each tile its 64 rows of queries."""
    q_tiles, k_ring, v_ring = buffers
    q_full, q_empty, k_full, k_empty, v_full, v_empty, turns = barriers
    pairs, heads, _groups, queries, keys, tiles, section, scale, left, right = sizes
    ROWS: gl.constexpr = 64 * GROUPS
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    mean_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    weight_layout: gl.constexpr = gl.DotOperandLayout(0, mean_layout, 2)
    row_layout: gl.constexpr = gl.SliceLayout(1, score_layout)
    # The rows of `row_layout`, and of each row the four threads that share it: conversions between the two are free.
    total_layout: gl.constexpr = gl.DistributedLinearLayout(
        reg_bases=[[8, 0]],
        lane_bases=[[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]],
        block_bases=[],
        shape=[64, 4],
    )
    dtype: gl.constexpr = out_tma.dtype
    PARTIAL: gl.constexpr = LEFT or RIGHT
    trouble = gl.zeros([64], gl.float32, gl.SliceLayout(1, mean_layout))  # NaN once a result is not finite
    used = 0
    for visit in range(visits(tiles * pairs)):
        tile, pair = visited_tile(visit, tiles, pairs, section, RIGHT)
        entry = pair // heads
        head = pair % heads
        masked, blocks, begin, full_begin, full_end, lefts = block_counts(
            tile, queries, keys, left, right, ROWS, BLOCK, LEFT, RIGHT
        )
        query = tile * ROWS + GROUP * 64 + gl.arange(0, 64, layout=row_layout)
        if sinks is not None:
            top = gl.full([64], 0.0, gl.float32, row_layout) + gl.load(sinks + head).to(gl.float32) * LOG2_E
            quarter = gl.exp2(top - gl.where(top == float("-inf"), 0.0, top)) * 0.25
            quarter = gl.convert_layout(quarter, gl.SliceLayout(1, total_layout))
            total = quarter[:, None] + gl.zeros([64, 4], gl.float32, total_layout)
        else:
            top = gl.full([64], float("-inf"), gl.float32, row_layout)
            total = gl.zeros([64, 4], gl.float32, total_layout)
        mean = gl.zeros([64, HEAD_DIM], gl.float32, mean_layout)

        slot = GROUP * 2 + (visit & 1)
        mbarrier.wait(q_full.index(slot), visit // 2 & 1)
        q_tile = q_tiles.index(slot).reshape([64, HEAD_DIM])
        stage = used % STAGES
        mbarrier.wait(k_full.index(stage), used // STAGES & 1)
        k_tile = k_ring.index(stage).reshape([BLOCK, HEAD_DIM]).permute((1, 0))
        scores = gl.zeros([64, BLOCK], gl.float32, score_layout)
        scores = warpgroup_mma(q_tile, k_tile, scores, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(0, [scores])
        mbarrier.arrive(k_empty.index(stage), count=1)
        if visit > 0:
            tma.store_wait(0)
            mbarrier.arrive(q_empty.index(GROUP * 2 + ((visit & 1) ^ 1)), count=1)
        if MASKED and masked > 0:
            start = block_start(0, masked, begin, full_begin, full_end, lefts, BLOCK)
            scores = mask(scores, start, query, queries, keys, left, right, LEFT, RIGHT)
        exact, total, top, _decay = softmax(scores, total, top, scale)
        weights = gl.convert_layout(exact.to(dtype), weight_layout)
        used += 1

        for index in range(1, blocks):
            mean, weights, total, top = _step(
                index, used, used - visit - 1, mean, weights, total, top, q_tile, k_ring, v_ring,
                k_full, k_empty, v_full, v_empty, turns, query,
                masked, begin, full_begin, full_end, lefts, queries, keys, scale, left, right,
                GROUP, GROUPS, TURNS, HEAD_DIM, BLOCK, LEFT, RIGHT, STAGES, score_layout,
            )  # fmt: skip
            used += 1

        stage = (used - 1) % STAGES
        mbarrier.wait(v_full.index(stage), (used - 1) // STAGES & 1)
        v_tile = v_ring.index(stage).reshape([BLOCK, HEAD_DIM])
        mean = warpgroup_mma(weights, v_tile, mean, is_async=True)
        total = gl.convert_layout(gl.sum(total, 1), row_layout)
        if lse is not None:
            lse_rows = lse + (entry * heads + head).to(gl.int64) * queries + query
            gl.store(lse_rows, (top + gl.log2(total)) * LN_2, mask=query < queries)
        inverse = 1.0 / gl.where(total == 0, 1.0, total)
        mean = warpgroup_mma_wait(0, [mean])
        mbarrier.arrive(v_empty.index(stage), count=1)
        if PARTIAL:
            trouble += gl.sum(mean * 0.0, 1)
        mean = mean * gl.convert_layout(inverse, gl.SliceLayout(1, mean_layout))[:, None]
        q_tile.store(mean.to(dtype))  # the queries are read for the last time above
        fence_async_shared()
        store_block(out_tma, [entry, tile * ROWS + GROUP * 64, head, 0], q_tiles.index(slot))
    tma.store_wait(0)
    if PARTIAL:
        # The stores have read shared memory; what follows may write the same results, so they have to be done.
        trouble = gl.inline_asm_elementwise(
            "cp.async.bulk.wait_group 0; mov.b32 $0, $1;", "=f,f", [trouble],
            dtype=gl.float32, is_pure=False, pack=1,
        )  # fmt: skip
        troubles.index(GROUP).store(trouble)


_PER_CALL = ("pairs", "heads", "groups", "queries", "keys", "tiles", "section", "scale", "left", "right")


@gluon.jit(do_not_specialize=_PER_CALL)
def attention_forward(
    out, lse, q, k, v, sinks, out_tma, q_tma, k_tma, v_tma,
    q_batch_stride, q_stride, q_head_stride, k_batch_stride, k_stride, k_head_stride,
    v_batch_stride, v_stride, v_head_stride,
    pairs, heads, groups, queries, keys, tiles, section, scale, left, right,
    HEAD_DIM: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, MASKED: gl.constexpr, BLOCK: gl.constexpr,
    STAGES: gl.constexpr, GROUPS: gl.constexpr, TURNS: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """`attention_lse` of tensors ``(batch, seq, heads, HEAD_DIM)``; ``scale`` is positive and holds log2(e).

    ``MASKED`` is unset where every query sees all keys, in whole blocks. Tiles have ``64 * GROUPS`` rows of
    queries. ``REGISTERS`` is what a thread of a computing warpgroup gets.
    """
    q_tiles = gl.allocate_shared_memory(q_tma.dtype, [2 * GROUPS, 1, 64, 1, HEAD_DIM], q_tma.layout)
    k_ring = gl.allocate_shared_memory(k_tma.dtype, [STAGES, 1, BLOCK, 1, HEAD_DIM], k_tma.layout)
    v_ring = gl.allocate_shared_memory(v_tma.dtype, [STAGES, 1, BLOCK, 1, HEAD_DIM], v_tma.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [2 * GROUPS, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [2 * GROUPS, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    troubles = gl.allocate_shared_memory(gl.float32, [GROUPS, 64], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    for slot in gl.static_range(2 * GROUPS):
        mbarrier.init(q_full.index(slot), count=1)
        mbarrier.init(q_empty.index(slot), count=1)
    for group in gl.static_range(GROUPS):
        mbarrier.init(turns.index(group), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(k_empty.index(stage), count=GROUPS)
        mbarrier.init(v_full.index(stage), count=1)
        mbarrier.init(v_empty.index(stage), count=GROUPS)
    fence_async_shared()

    buffers = (q_tiles, k_ring, v_ring)
    barriers = (q_full, q_empty, k_full, k_empty, v_full, v_empty, turns)
    sizes = (pairs, heads, groups, queries, keys, tiles, section, scale, left, right)
    # fmt: off
    if GROUPS == 2:
        gl.warp_specialize([
            (_compute_tiles, (out_tma, lse, sinks, troubles, buffers, barriers, sizes,
                              BLOCK, HEAD_DIM, LEFT, RIGHT, MASKED, STAGES, GROUPS, 0, TURNS)),
            (_compute_tiles, (out_tma, lse, sinks, troubles, buffers, barriers, sizes,
                              BLOCK, HEAD_DIM, LEFT, RIGHT, MASKED, STAGES, GROUPS, 1, TURNS)),
            (_load_tiles, (q_tma, k_tma, v_tma, buffers, barriers, sizes, BLOCK, LEFT, RIGHT, STAGES, GROUPS)),
        ], [4, 1], [REGISTERS, 24])
    else:
        gl.warp_specialize([
            (_compute_tiles, (out_tma, lse, sinks, troubles, buffers, barriers, sizes,
                              BLOCK, HEAD_DIM, LEFT, RIGHT, MASKED, STAGES, GROUPS, 0, TURNS)),
            (_compute_tiles, (out_tma, lse, sinks, troubles, buffers, barriers, sizes,
                              BLOCK, HEAD_DIM, LEFT, RIGHT, MASKED, STAGES, GROUPS, 1, TURNS)),
            (_compute_tiles, (out_tma, lse, sinks, troubles, buffers, barriers, sizes,
                              BLOCK, HEAD_DIM, LEFT, RIGHT, MASKED, STAGES, GROUPS, 2, TURNS)),
            (_load_tiles, (q_tma, k_tma, v_tma, buffers, barriers, sizes, BLOCK, LEFT, RIGHT, STAGES, GROUPS)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 24])
    # fmt: on
    if LEFT or RIGHT:
        row: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
        trouble = gl.zeros([64], gl.float32, row)
        for group in gl.static_range(GROUPS):
            trouble += troubles.index(group).load(row)
        if gl.max(gl.where(trouble == 0, 0, 1), 0) > 0:
            strides = (
                q_batch_stride, q_stride, q_head_stride, k_batch_stride, k_stride, k_head_stride,
                v_batch_stride, v_stride, v_head_stride,
            )  # fmt: skip
            repair(out, q, k, v, sinks, strides, sizes, BLOCK, HEAD_DIM, LEFT, RIGHT, GROUPS)
