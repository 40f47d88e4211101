"""Paged prefill for sm_90 in Gluon: a few warps load, two warpgroups compute 64 rows of queries of one head each.

The loading warps keep rings of key and value blocks in shared memory filled through TMA; how a computing warpgroup uses
them is in `opmux_triton.scoring.hopper_pipeline_kernels`, as in attention's forward. Two things differ: a block comes
as boxes of BOX keys, each of which lies in one page, and a program finds its tiles by searching the sequences' offsets.
A box that would lie past a sequence's last key is the box of that key again.

Blocks that need a mask come first, the last of them first of all: in it, values past the last key are set to 0 in
shared memory before use. Where a result is still not finite, a row may have met a NaN that it does not see: the program
says so in ``troubles``, and the portable kernel computes the whole result again.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from opmux_triton.hopper.names import load_block, synchronize
from opmux_triton.hopper.order import visits
from opmux_triton.paged.hopper_tile_kernels import block_ranges, block_start, tile_at
from opmux_triton.scoring import hopper_pipeline_kernels as pipeline
from opmux_triton.scoring.hopper_softmax import mask, softmax


@gluon.jit
def _pages_of(row, table_stride, key, last_box, BOX: gl.constexpr, PAGE: gl.constexpr, COUNT: gl.constexpr):
    """The pages of the ``COUNT`` boxes from ``key`` on: all lookups are issued before the first is needed."""
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
    """A loading warp: loads keys, values or both, block by block, one of ``PARTS`` parts of each.

    A block of small pages has many boxes, and each takes time to issue: several warps share them. Queries come with the
    values, which are needed last, so that a warp of its own can load the next tile's keys before there is room for its
    queries.
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
            ranges = block_ranges(tile, queries, keys, left, right, ROWS, BLOCK, LEFT, RIGHT)
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
            for index in range(ranges[1]):
                key = block_start(index, ranges, BLOCK) + FIRST * BOX
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
    """Set the rows of a block of values from ``rows`` on to 0."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // v_tile.shape[1], v_tile.shape[1] // 8], [4, 1], [1, 0])
    values = v_tile.load(layout)
    inside = gl.arange(0, v_tile.shape[0], layout=gl.SliceLayout(1, layout)) < rows
    v_tile.store(gl.where(inside[:, None], values, gl.zeros_like(values)))
    fence_async_shared()
    synchronize()


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
    WIDTHS: gl.constexpr = (HEAD_DIM, 0, HEAD_DIM, 0)
    rings = (k_blocks, v_blocks, k_blocks, v_blocks)
    of_rings = (k_full, k_empty, v_full, v_empty)
    dtype: gl.constexpr = out.dtype.element_ty
    PARTIAL: gl.constexpr = LEFT or RIGHT
    trouble = gl.zeros([64], gl.float32, pipeline.row_layout(HEAD_DIM))  # NaN once a result is not finite
    used = 0
    done = 0
    for visit in range(visits(places * heads)):
        _sequence, tile, head, first, queries, keys, live = tile_at(
            visit, offsets, lengths, offsets_stride, lengths_stride, heads, batch, steps, places, fewest, ROWS
        )
        if live:
            ranges = block_ranges(tile, queries, keys, left, right, ROWS, BLOCK, LEFT, RIGHT)
            query = tile * ROWS + GROUP * 64 + gl.arange(0, 64, layout=pipeline.row_layout(BLOCK))
            top, total = pipeline.sums_before(None if sinks is None else sinks + head * sinks_stride, BLOCK)
            mean = gl.zeros([64, HEAD_DIM], gl.float32, pipeline.product_layout(HEAD_DIM))
            rest = gl.zeros([64, 16], gl.float32, pipeline.product_layout(16))  # heads are powers of two here

            slot = GROUP * SLOTS + done % SLOTS
            mbarrier.wait(q_full.index(slot), done // SLOTS & 1)
            q_tile = q_tiles.index(slot).reshape([64, HEAD_DIM])
            scores = pipeline.first_scores(used, (q_tile, q_tile), rings, of_rings, BLOCK, WIDTHS, STAGES)
            start = block_start(0, ranges, BLOCK)
            scores = mask(scores, start, query, queries, keys, left, right, LEFT, RIGHT)
            exact, total, top, _decay = softmax(scores, total, top, scale)
            weights = gl.convert_layout(exact.to(dtype), pipeline.weight_layout(HEAD_DIM))
            if start + BLOCK > keys:  # both warpgroups write the same zeros
                stage = used % STAGES
                mbarrier.wait(v_full.index(stage), used // STAGES & 1)
                _clear_past(v_blocks.index(stage), keys - start)
            used += 1

            for index in range(1, ranges[1]):
                mean, rest, weights, total, top = pipeline.step(
                    index, used, 0, mean, rest, weights, total, top, (q_tile, q_tile), rings, of_rings, None, query,
                    ranges, (queries, keys, left, right), scale,
                    block_start, BLOCK, WIDTHS, LEFT, RIGHT, STAGES, GROUP, GROUPS, False,
                )  # fmt: skip
                used += 1

            mbarrier.arrive(q_empty.index(slot), count=1)
            mean, rest, total = pipeline.issue_last(
                used, mean, rest, weights, total, rings, of_rings, BLOCK, WIDTHS, STAGES
            )
            if lse is not None:
                lse_rows = lse + head.to(gl.int64) * tokens + first + query
                gl.store(lse_rows, pipeline.lse_of(top, total), mask=query < queries)
            mean, rest, inverse = pipeline.wait_for_last(used, mean, rest, total, of_rings, WIDTHS, STAGES)
            row = tile * ROWS + GROUP * 64 + gl.arange(0, 64, layout=pipeline.row_layout(HEAD_DIM))
            if PARTIAL:
                trouble += gl.where(row < queries, gl.sum(mean * 0.0, 1), 0.0)
            mean = mean * inverse[:, None]
            column = gl.arange(0, HEAD_DIM, layout=gl.SliceLayout(0, pipeline.product_layout(HEAD_DIM)))
            places_of = out + (((first + row).to(gl.int64) * heads + head) * HEAD_DIM)[:, None] + column[None, :]
            gl.store(places_of, mean.to(dtype), mask=((row < queries) & (first + row < tokens))[:, None])
            done += 1
    if PARTIAL:
        troubles.index(GROUP).store(trouble)
