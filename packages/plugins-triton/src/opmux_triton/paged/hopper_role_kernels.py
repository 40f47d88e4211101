"""Paged prefill for sm_90 in Gluon: a few warps load, two warpgroups compute 64 rows of queries of one head each.

The order of work is that of `attention.forward.hopper_kernels`: rings of key and value blocks filled through TMA, and
the scores of the next block issued before the product of the current weights and values (Shah et al., FlashAttention-3
(2024), section 3.2). What is different: a block comes as boxes of BOX keys, each of which lies in one page, and a
program finds its tiles by searching the sequences' offsets. A box that would lie past a sequence's last key is the
box of that key again.

Blocks that need a mask come first, the last of them first of all: in it, values past the last key are set to 0 in
shared memory before use. Where a result is not finite in spite of that, a row may have met a NaN that it does not see:
the program says so in ``troubles``, and the portable kernel does all of it anew.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from opmux_triton.hopper.names import load_block, synchronize
from opmux_triton.hopper.order import visits
from opmux_triton.paged.hopper_tile_kernels import block_counts, block_start, tile_at
from opmux_triton.scoring.base2 import LN_2, LOG2_E
from opmux_triton.scoring.hopper_softmax import mask, softmax


@gluon.jit
def _pages_of(row, table_stride, key, last_box, BOX: gl.constexpr, PAGE: gl.constexpr, COUNT: gl.constexpr):
    """The pages of the ``COUNT`` boxes from ``key`` on: all lookups are on their way before the first is needed."""
    pages = ()
    for box in gl.static_range(COUNT):
        pages += (gl.load(row + gl.minimum(key + box * BOX, last_box) // PAGE * table_stride),)
    return pages


@gluon.jit
def _load_boxes(
    tma_of, ring, full, pages, key, last_box, kv_head, stage,
    BLOCK: gl.constexpr, BOX: gl.constexpr, PAGE: gl.constexpr, HEAD_DIM: gl.constexpr,
    FIRST: gl.constexpr, COUNT: gl.constexpr,
):  # fmt: skip
    """``COUNT`` boxes from the ``FIRST`` one of a block on, 64 columns at a time: so they lie in a swizzled block."""
    BOXES: gl.constexpr = BLOCK // BOX
    HALVES: gl.constexpr = HEAD_DIM // 64
    mbarrier.expect(full.index(stage), COUNT * BOX * HEAD_DIM * 2)
    for box in gl.static_range(COUNT):
        slot = 0
        if BOX != PAGE:
            slot = gl.minimum(key + box * BOX, last_box) % PAGE
        for half in gl.static_range(HALVES):
            place = ring.index((stage * HALVES + half) * BOXES + FIRST + box)
            load_block(tma_of, [pages[box], slot, kv_head, half * 64], full.index(stage), place)


@gluon.jit
def load_tiles(
    given, BLOCK: gl.constexpr, BOX: gl.constexpr, PAGE: gl.constexpr, HEAD_DIM: gl.constexpr,
    LEFT: gl.constexpr, RIGHT: gl.constexpr, STAGES: gl.constexpr, SLOTS: gl.constexpr, GROUPS: gl.constexpr,
    KEYS: gl.constexpr, VALUES: gl.constexpr, PART: gl.constexpr, PARTS: gl.constexpr,
):  # fmt: skip
    """A loading warp: keys, values or both, block by block, of each one of ``PARTS`` parts.

    A block of small pages is many boxes, each of which takes a warp its time: more warps share them. Queries come with
    the values, which are needed last: a warp of its own has the next tile's keys on their way before there is room for
    its queries.
    """
    q_tma, k_tma, v_tma, offsets, lengths, table, buffers, barriers, sizes, strides = given
    q_tiles, k_ring, v_ring = buffers
    q_full, q_empty, k_full, k_empty, v_full, v_empty = barriers
    heads, groups, _tokens, batch, steps, places, fewest, _scale, left, right = sizes
    offsets_stride, lengths_stride, table_row_stride, table_stride = strides
    ROWS: gl.constexpr = 64 * GROUPS
    COUNT: gl.constexpr = BLOCK // BOX // PARTS
    FIRST: gl.constexpr = PART * COUNT
    loaded = 0
    done = 0
    for visit in range(visits(places * heads)):
        sequence, tile, head, start, queries, keys, live = tile_at(
            visit, offsets, lengths, offsets_stride, lengths_stride, heads, batch, steps, places, fewest, ROWS
        )
        if live:
            masked, rights, blocks, begin, full_begin, most = block_counts(
                tile, queries, keys, left, right, ROWS, BLOCK, LEFT, RIGHT
            )
            if VALUES and PART == 0:
                for group in gl.static_range(GROUPS):
                    slot = group * SLOTS + done % SLOTS
                    mbarrier.wait(q_empty.index(slot), (done // SLOTS & 1) ^ 1)
                    mbarrier.expect(q_full.index(slot), q_tma.block_type.nbytes)
                    load_block(
                        q_tma, [0, start + tile * ROWS + group * 64, head, 0], q_full.index(slot), q_tiles.index(slot)
                    )
            row = table + sequence.to(gl.int64) * table_row_stride
            last_box = (keys - 1) // BOX * BOX
            for index in range(blocks):
                key = block_start(index, masked, rights, begin, full_begin, most, BLOCK) + FIRST * BOX
                pages = _pages_of(row, table_stride, key, last_box, BOX, PAGE, COUNT)
                stage = loaded % STAGES
                phase = (loaded // STAGES & 1) ^ 1
                if KEYS:
                    mbarrier.wait(k_empty.index(stage), phase)
                    _load_boxes(
                        k_tma, k_ring, k_full, pages, key, last_box, head // groups, stage,
                        BLOCK, BOX, PAGE, HEAD_DIM, FIRST, COUNT,
                    )  # fmt: skip
                if VALUES:
                    mbarrier.wait(v_empty.index(stage), phase)
                    _load_boxes(
                        v_tma, v_ring, v_full, pages, key, last_box, head // groups, stage,
                        BLOCK, BOX, PAGE, HEAD_DIM, FIRST, COUNT,
                    )  # fmt: skip
                loaded += 1
            done += 1


@gluon.jit
def _clear_past(v_tile, rows):
    """Sets the rows of a block of values from ``rows`` on to 0."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // v_tile.shape[1], v_tile.shape[1] // 8], [4, 1], [1, 0])
    values = v_tile.load(layout)
    inside = gl.arange(0, v_tile.shape[0], layout=gl.SliceLayout(1, layout)) < rows
    v_tile.store(gl.where(inside[:, None], values, gl.zeros_like(values)))
    fence_async_shared()
    synchronize()


@gluon.jit
def _step(
    index, used, mean, weights, total, top, q_tile, k_blocks, v_blocks, k_full, k_empty, v_full, v_empty,
    query, masked, rights, begin, full_begin, most, queries, keys, scale, left, right,
    BLOCK: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, STAGES: gl.constexpr, score_layout: gl.constexpr,
):  # fmt: skip
    """Block ``index``'s scores and weights, while block ``index - 1``'s weights and values are multiplied.

    ``used`` counts the blocks of the rings before that of ``index``. One loop for blocks with and without a mask: of
    two, the second one would unpack and pack the weights that it gets from the first in every step.
    """
    stage = used % STAGES
    before = (used - 1) % STAGES
    mbarrier.wait(k_full.index(stage), used // STAGES & 1)
    scores = gl.zeros([64, BLOCK], gl.float32, score_layout)
    scores = warpgroup_mma(q_tile, k_blocks.index(stage).permute((1, 0)), scores, use_acc=False, is_async=True)
    mbarrier.wait(v_full.index(before), (used - 1) // STAGES & 1)
    mean = warpgroup_mma(weights, v_blocks.index(before), mean, is_async=True)
    scores = warpgroup_mma_wait(1, [scores])
    if LEFT or RIGHT:
        if index < masked:
            start = block_start(index, masked, rights, begin, full_begin, most, BLOCK)
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
def compute_tiles(
    given, BLOCK: gl.constexpr, HEAD_DIM: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr,
    STAGES: gl.constexpr, SLOTS: gl.constexpr, GROUPS: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """A computing warpgroup: for each tile its 64 rows of queries."""
    out, lse, sinks, offsets, lengths, troubles, buffers, barriers, sizes, strides, sinks_stride = given
    q_tiles, k_blocks, v_blocks = buffers
    q_full, q_empty, k_full, k_empty, v_full, v_empty = barriers
    heads, _groups, tokens, batch, steps, places, fewest, scale, left, right = sizes
    offsets_stride, lengths_stride, _table_row_stride, _table_stride = strides
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
    dtype: gl.constexpr = out.dtype.element_ty
    PARTIAL: gl.constexpr = LEFT or RIGHT
    trouble = gl.zeros([64], gl.float32, gl.SliceLayout(1, mean_layout))  # NaN once a result is not finite
    used = 0
    done = 0
    for visit in range(visits(places * heads)):
        _sequence, tile, head, first, queries, keys, live = tile_at(
            visit, offsets, lengths, offsets_stride, lengths_stride, heads, batch, steps, places, fewest, ROWS
        )
        if live:
            masked, rights, blocks, begin, full_begin, most = block_counts(
                tile, queries, keys, left, right, ROWS, BLOCK, LEFT, RIGHT
            )
            query = tile * ROWS + GROUP * 64 + gl.arange(0, 64, layout=row_layout)
            if sinks is not None:
                sink = gl.load(sinks + head * sinks_stride).to(gl.float32) * LOG2_E
                top = gl.full([64], 0.0, gl.float32, row_layout) + sink
                quarter = gl.exp2(top - gl.where(top == float("-inf"), 0.0, top)) * 0.25
                quarter = gl.convert_layout(quarter, gl.SliceLayout(1, total_layout))
                total = quarter[:, None] + gl.zeros([64, 4], gl.float32, total_layout)
            else:
                top = gl.full([64], float("-inf"), gl.float32, row_layout)
                total = gl.zeros([64, 4], gl.float32, total_layout)
            mean = gl.zeros([64, HEAD_DIM], gl.float32, mean_layout)

            slot = GROUP * SLOTS + done % SLOTS
            mbarrier.wait(q_full.index(slot), done // SLOTS & 1)
            q_tile = q_tiles.index(slot).reshape([64, HEAD_DIM])
            stage = used % STAGES
            mbarrier.wait(k_full.index(stage), used // STAGES & 1)
            scores = gl.zeros([64, BLOCK], gl.float32, score_layout)
            scores = warpgroup_mma(q_tile, k_blocks.index(stage).permute((1, 0)), scores, use_acc=False, is_async=True)
            scores = warpgroup_mma_wait(0, [scores])
            mbarrier.arrive(k_empty.index(stage), count=1)
            start = block_start(0, masked, rights, begin, full_begin, most, BLOCK)
            scores = mask(scores, start, query, queries, keys, left, right, LEFT, RIGHT)
            exact, total, top, _decay = softmax(scores, total, top, scale)
            weights = gl.convert_layout(exact.to(dtype), weight_layout)
            if start + BLOCK > keys:  # each warpgroup does it, and neither minds that the other does
                mbarrier.wait(v_full.index(stage), used // STAGES & 1)
                _clear_past(v_blocks.index(stage), keys - start)
            used += 1

            for index in range(1, blocks):
                mean, weights, total, top = _step(
                    index, used, mean, weights, total, top, q_tile, k_blocks, v_blocks,
                    k_full, k_empty, v_full, v_empty, query, masked, rights, begin, full_begin, most,
                    queries, keys, scale, left, right, BLOCK, LEFT, RIGHT, STAGES, score_layout,
                )  # fmt: skip
                used += 1

            mbarrier.arrive(q_empty.index(slot), count=1)
            stage = (used - 1) % STAGES
            mbarrier.wait(v_full.index(stage), (used - 1) // STAGES & 1)
            mean = warpgroup_mma(weights, v_blocks.index(stage), mean, is_async=True)
            total = gl.convert_layout(gl.sum(total, 1), row_layout)
            if lse is not None:
                lse_rows = lse + head.to(gl.int64) * tokens + first + query
                gl.store(lse_rows, (top + gl.log2(total)) * LN_2, mask=query < queries)
            inverse = 1.0 / gl.where(total == 0, 1.0, total)
            mean = warpgroup_mma_wait(0, [mean])
            mbarrier.arrive(v_empty.index(stage), count=1)
            row = tile * ROWS + GROUP * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, mean_layout))
            if PARTIAL:
                trouble += gl.where(row < queries, gl.sum(mean * 0.0, 1), 0.0)
            mean = mean * gl.convert_layout(inverse, gl.SliceLayout(1, mean_layout))[:, None]
            column = gl.arange(0, HEAD_DIM, layout=gl.SliceLayout(0, mean_layout))
            places_of = out + (((first + row).to(gl.int64) * heads + head) * HEAD_DIM)[:, None] + column[None, :]
            gl.store(places_of, mean.to(dtype), mask=((row < queries) & (first + row < tokens))[:, None])
            done += 1
    if PARTIAL:
        troubles.index(GROUP).store(trouble)
