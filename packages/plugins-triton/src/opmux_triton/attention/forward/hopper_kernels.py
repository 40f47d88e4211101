"""Attention forward for sm_90 in Gluon: one warp loads, two or three warpgroups compute 64 rows of queries each.

The loading warp keeps rings of key and value blocks in shared memory filled through TMA; how a computing warpgroup uses
them is in `opmux_triton.scoring.hopper_pipeline_kernels`. A program computes several tiles, see `hopper_tile_kernels`;
the queries of the next one are loaded, and the results of the last one stored, while it works on one.

The blocks that need a mask come first, so that all others run without one. Where a result is not finite, the program
looks at its tiles again, see `hopper_repair_kernels`.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from opmux_triton.attention.forward.hopper_repair_kernels import repair
from opmux_triton.attention.forward.hopper_tile_kernels import block_ranges, block_start, visited_tile
from opmux_triton.hopper.names import load_block, store_block
from opmux_triton.hopper.order import visits
from opmux_triton.scoring import hopper_pipeline_kernels as pipeline
from opmux_triton.scoring.hopper_softmax import mask, softmax


@gluon.jit
def _load_parts(tma, rest_tma, place, barrier, tile, rest, FIRST: gl.constexpr):
    """Start to load rows of one head: its first columns, and the rest where there is one."""
    entry, row, head = place
    if rest_tma is None:
        mbarrier.expect(barrier, tma.block_type.nbytes)
    else:
        mbarrier.expect(barrier, tma.block_type.nbytes + rest_tma.block_type.nbytes)
        load_block(rest_tma, [entry, row, head, FIRST], barrier, rest)
    load_block(tma, [entry, row, head, 0], barrier, tile)


@gluon.jit
def _load_tiles(
    descriptors, rest_descriptors, buffers, barriers, sizes,
    BLOCK: gl.constexpr, WIDTHS: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, SLOTS: gl.constexpr,
    STAGES: gl.constexpr, GROUPS: gl.constexpr,
):  # fmt: skip
    """The loading warp: for each tile its queries, then keys and values block by block."""
    q_tma, k_tma, v_tma = descriptors
    q_rest_tma, k_rest_tma, v_rest_tma = rest_descriptors
    q_tiles, k_ring, v_ring, q_rests, k_rests, v_rests = buffers
    q_full, q_empty, k_full, k_empty, v_full, v_empty, _turns = barriers
    pairs, heads, groups, queries, keys, tiles, section, _scale, left, right = sizes
    ROWS: gl.constexpr = 64 * GROUPS
    loaded = 0
    for visit in range(visits(tiles * pairs)):
        tile, pair = visited_tile(visit, tiles, pairs, section, RIGHT)
        entry = pair // heads
        head = pair % heads
        kv_head = head // groups
        ranges = block_ranges(tile, queries, keys, left, right, ROWS, BLOCK, LEFT, RIGHT)
        for group in gl.static_range(GROUPS):
            slot = group * SLOTS + visit % SLOTS
            mbarrier.wait(q_empty.index(slot), (visit // SLOTS & 1) ^ 1)
            place = (entry, tile * ROWS + group * 64, head)
            _load_parts(
                q_tma, q_rest_tma, place, q_full.index(slot), q_tiles.index(slot), q_rests.index(slot), WIDTHS[0]
            )
        for index in range(ranges[1]):
            place = (entry, block_start(index, ranges, BLOCK), kv_head)
            stage = loaded % STAGES
            phase = (loaded // STAGES & 1) ^ 1
            mbarrier.wait(k_empty.index(stage), phase)
            _load_parts(
                k_tma, k_rest_tma, place, k_full.index(stage), k_ring.index(stage), k_rests.index(stage), WIDTHS[0]
            )
            mbarrier.wait(v_empty.index(stage), phase)
            _load_parts(
                v_tma, v_rest_tma, place, v_full.index(stage), v_ring.index(stage), v_rests.index(stage), WIDTHS[2]
            )
            loaded += 1


@gluon.jit
def _compute_tiles(
    out_tma, out_rest_tma, lse, sinks, troubles, buffers, barriers, sizes,
    BLOCK: gl.constexpr, WIDTHS: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, MASKED: gl.constexpr,
    SLOTS: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr, GROUP: gl.constexpr, TURNS: gl.constexpr,
):  # fmt: skip
    """A computing warpgroup: for each tile its 64 rows of queries."""
    q_tiles, k_ring, v_ring, q_rests, k_rests, v_rests = buffers
    q_full, q_empty, k_full, k_empty, v_full, v_empty, turns = barriers
    pairs, heads, _groups, queries, keys, tiles, section, scale, left, right = sizes
    rings = (k_ring, v_ring, k_rests, v_rests)
    of_rings = (k_full, k_empty, v_full, v_empty)
    band = (queries, keys, left, right)
    ROWS: gl.constexpr = 64 * GROUPS
    VALUE: gl.constexpr = WIDTHS[2]
    VALUE_REST: gl.constexpr = WIDTHS[3] if WIDTHS[3] > 0 else 16
    dtype: gl.constexpr = out_tma.dtype
    PARTIAL: gl.constexpr = LEFT or RIGHT
    trouble = gl.zeros([64], gl.float32, pipeline.row_layout(VALUE))  # NaN once a result is not finite
    used = 0
    for visit in range(visits(tiles * pairs)):
        tile, pair = visited_tile(visit, tiles, pairs, section, RIGHT)
        entry = pair // heads
        head = pair % heads
        ranges = block_ranges(tile, queries, keys, left, right, ROWS, BLOCK, LEFT, RIGHT)
        query = tile * ROWS + GROUP * 64 + gl.arange(0, 64, layout=pipeline.row_layout(BLOCK))
        top, total = pipeline.sums_before(None if sinks is None else sinks + head, BLOCK)
        mean = gl.zeros([64, VALUE], gl.float32, pipeline.product_layout(VALUE))
        rest = gl.zeros([64, VALUE_REST], gl.float32, pipeline.product_layout(VALUE_REST))

        slot = GROUP * SLOTS + visit % SLOTS
        mbarrier.wait(q_full.index(slot), visit // SLOTS & 1)
        q_tile = q_tiles.index(slot).reshape([64, WIDTHS[0]])
        q_rest = q_tile
        if WIDTHS[1] > 0:
            q_rest = q_rests.index(slot).reshape([64, WIDTHS[1]])
        scores = pipeline.first_scores(used, (q_tile, q_rest), rings, of_rings, BLOCK, WIDTHS, STAGES)
        if SLOTS > 1 and visit > 0:
            tma.store_wait(0)
            mbarrier.arrive(q_empty.index(GROUP * SLOTS + (visit - 1) % SLOTS), count=1)
        if MASKED and ranges[0] > 0:
            start = block_start(0, ranges, BLOCK)
            scores = mask(scores, start, query, queries, keys, left, right, LEFT, RIGHT)
        exact, total, top, _decay = softmax(scores, total, top, scale)
        weights = gl.convert_layout(exact.to(dtype), pipeline.weight_layout(VALUE))
        used += 1

        for index in range(1, ranges[1]):
            mean, rest, weights, total, top = pipeline.step(
                index, used, used - visit - 1, mean, rest, weights, total, top, (q_tile, q_rest), rings, of_rings,
                turns, query, ranges, band, scale, block_start,
                BLOCK, WIDTHS, LEFT, RIGHT, STAGES, GROUP, GROUPS, TURNS,
            )  # fmt: skip
            used += 1

        mean, rest, total = pipeline.issue_last(
            used, mean, rest, weights, total, rings, of_rings, BLOCK, WIDTHS, STAGES
        )
        if lse is not None:
            lse_rows = lse + (entry * heads + head).to(gl.int64) * queries + query
            gl.store(lse_rows, pipeline.lse_of(top, total), mask=query < queries)
        mean, rest, inverse = pipeline.wait_for_last(used, mean, rest, total, of_rings, WIDTHS, STAGES)
        if PARTIAL:
            trouble += gl.sum(mean * 0.0, 1)
        # The queries are read for the last time above: results take their place.
        gl.static_assert(WIDTHS[2] == WIDTHS[0])
        q_tile.store((mean * inverse[:, None]).to(dtype))
        if WIDTHS[3] > 0:
            if PARTIAL:
                trouble += gl.convert_layout(gl.sum(rest * 0.0, 1), trouble.type.layout)
            of_rest = gl.convert_layout(inverse, gl.SliceLayout(1, rest.type.layout))
            q_rest.store((rest * of_rest[:, None]).to(dtype))
        fence_async_shared()
        row = tile * ROWS + GROUP * 64
        store_block(out_tma, [entry, row, head, 0], q_tiles.index(slot))
        if WIDTHS[3] > 0:
            store_block(out_rest_tma, [entry, row, head, VALUE], q_rests.index(slot))
        if SLOTS == 1:
            tma.store_wait(0)
            mbarrier.arrive(q_empty.index(GROUP), count=1)
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
    out, lse, q, k, v, sinks, out_tma, q_tma, k_tma, v_tma, out_rest_tma, q_rest_tma, k_rest_tma, v_rest_tma,
    q_batch_stride, q_stride, q_head_stride, k_batch_stride, k_stride, k_head_stride,
    v_batch_stride, v_stride, v_head_stride,
    pairs, heads, groups, queries, keys, tiles, section, scale, left, right,
    HEAD_DIM: gl.constexpr, VALUE_DIM: gl.constexpr, HEAD: gl.constexpr, HEAD_REST: gl.constexpr,
    VALUE: gl.constexpr, VALUE_REST: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, MASKED: gl.constexpr,
    BLOCK: gl.constexpr, SLOTS: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr, TURNS: gl.constexpr,
    REGISTERS: gl.constexpr,
):  # fmt: skip
    """`attention_lse` of tensors ``(batch, seq, heads, dim)``; ``scale`` is positive and holds log2(e).

    A head comes as ``HEAD`` columns and ``HEAD_REST`` more, a value as ``VALUE`` and ``VALUE_REST``: powers of two
    that hold ``HEAD_DIM`` and ``VALUE_DIM``. Copies write zeros into columns past the last one.
    ``MASKED`` is unset where every query sees all keys, in whole blocks. Tiles have ``64 * GROUPS`` rows of
    queries. ``REGISTERS`` is what a thread of a computing warpgroup gets.
    """
    WIDTHS: gl.constexpr = (HEAD, HEAD_REST, VALUE, VALUE_REST)
    q_tiles = gl.allocate_shared_memory(q_tma.dtype, [SLOTS * GROUPS, 1, 64, 1, HEAD], q_tma.layout)
    k_ring = gl.allocate_shared_memory(k_tma.dtype, [STAGES, 1, BLOCK, 1, HEAD], k_tma.layout)
    v_ring = gl.allocate_shared_memory(v_tma.dtype, [STAGES, 1, BLOCK, 1, VALUE], v_tma.layout)
    q_rests = q_tiles
    k_rests = k_ring
    v_rests = v_ring
    if HEAD_REST > 0:
        q_rests = gl.allocate_shared_memory(q_tma.dtype, [SLOTS * GROUPS, 1, 64, 1, HEAD_REST], q_rest_tma.layout)
        k_rests = gl.allocate_shared_memory(k_tma.dtype, [STAGES, 1, BLOCK, 1, HEAD_REST], k_rest_tma.layout)
    if VALUE_REST > 0:
        v_rests = gl.allocate_shared_memory(v_tma.dtype, [STAGES, 1, BLOCK, 1, VALUE_REST], v_rest_tma.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [SLOTS * GROUPS, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [SLOTS * GROUPS, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    troubles = gl.allocate_shared_memory(gl.float32, [GROUPS, 64], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    for slot in gl.static_range(SLOTS * GROUPS):
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

    descriptors = (q_tma, k_tma, v_tma)
    rest_descriptors = (q_rest_tma, k_rest_tma, v_rest_tma)
    buffers = (q_tiles, k_ring, v_ring, q_rests, k_rests, v_rests)
    barriers = (q_full, q_empty, k_full, k_empty, v_full, v_empty, turns)
    sizes = (pairs, heads, groups, queries, keys, tiles, section, scale, left, right)
    # fmt: off
    if GROUPS == 2:
        gl.warp_specialize([
            (_compute_tiles, (out_tma, out_rest_tma, lse, sinks, troubles, buffers, barriers, sizes,
                              BLOCK, WIDTHS, LEFT, RIGHT, MASKED, SLOTS, STAGES, GROUPS, 0, TURNS)),
            (_compute_tiles, (out_tma, out_rest_tma, lse, sinks, troubles, buffers, barriers, sizes,
                              BLOCK, WIDTHS, LEFT, RIGHT, MASKED, SLOTS, STAGES, GROUPS, 1, TURNS)),
            (_load_tiles, (descriptors, rest_descriptors, buffers, barriers, sizes,
                           BLOCK, WIDTHS, LEFT, RIGHT, SLOTS, STAGES, GROUPS)),
        ], [4, 1], [REGISTERS, 24])
    else:
        gl.warp_specialize([
            (_compute_tiles, (out_tma, out_rest_tma, lse, sinks, troubles, buffers, barriers, sizes,
                              BLOCK, WIDTHS, LEFT, RIGHT, MASKED, SLOTS, STAGES, GROUPS, 0, TURNS)),
            (_compute_tiles, (out_tma, out_rest_tma, lse, sinks, troubles, buffers, barriers, sizes,
                              BLOCK, WIDTHS, LEFT, RIGHT, MASKED, SLOTS, STAGES, GROUPS, 1, TURNS)),
            (_compute_tiles, (out_tma, out_rest_tma, lse, sinks, troubles, buffers, barriers, sizes,
                              BLOCK, WIDTHS, LEFT, RIGHT, MASKED, SLOTS, STAGES, GROUPS, 2, TURNS)),
            (_load_tiles, (descriptors, rest_descriptors, buffers, barriers, sizes,
                           BLOCK, WIDTHS, LEFT, RIGHT, SLOTS, STAGES, GROUPS)),
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
            repair(
                out, q, k, v, sinks, strides, sizes, BLOCK, HEAD_DIM, VALUE_DIM,
                2 * HEAD if HEAD_REST > 0 else HEAD, 2 * VALUE if VALUE_REST > 0 else VALUE, LEFT, RIGHT, GROUPS,
            )  # fmt: skip
