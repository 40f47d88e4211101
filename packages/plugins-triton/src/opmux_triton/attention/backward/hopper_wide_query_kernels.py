"""Attention's backward for sm_90 in Gluon, for heads of more than 128: the gradients of queries.

A program owns 128 queries of a head, 64 for each of two warpgroups, and goes through the keys that they attend to, 64
at a time. It computes scores and their gradients again; `hopper_wide_kernels` says why. With the notation of
`hopper_kernels`:

    S = Q K',  dP = dO V',  dS = P (dP - shift),  dQ += dS K
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from opmux_triton.attention.backward.hopper_tile_kernels import place_of
from opmux_triton.attention.backward.hopper_wide_parts import (
    across,
    along,
    load_rows,
    new_barriers,
    rest_or_least,
    score_layout,
    store_rows,
    sum_layout,
    swizzled,
    wait_for,
)
from opmux_triton.hopper.names import synchronize
from opmux_triton.scoring import masks
from opmux_triton.scoring.base2 import LOG2_E

_limits = gluon.jit(masks.key_limits.fn)
_bounds = gluon.jit(masks.bounds.fn)
_ROWS: gl.constexpr = gl.constexpr(128)
_BLOCK: gl.constexpr = gl.constexpr(64)


@gluon.jit
def _key_blocks(tile, queries, keys, left, right, LEFT: gl.constexpr, RIGHT: gl.constexpr):
    """(begin, before, full_begin, full_end, masked, count): ``masked`` blocks, ``before`` of them left of the full."""
    begin, full_begin, full_end, end = _limits(tile * _ROWS, queries, keys, left, right, _ROWS, _BLOCK, LEFT, RIGHT)
    before = (full_begin - begin) // _BLOCK
    masked = before + (end - full_end + _BLOCK - 1) // _BLOCK
    return begin, before, full_begin, full_end, masked, masked + (full_end - full_begin) // _BLOCK


@gluon.jit
def _start_of(step, begin, before, full_begin, full_end, masked):
    """The first key of a step's block: the masked ones first."""
    start = begin + step * _BLOCK
    if step >= before:
        start = full_end + (step - before) * _BLOCK
    if step >= masked:
        start = full_begin + (step - masked) * _BLOCK
    return start


@gluon.jit
def _load(
    descriptors, buffers, barriers, sizes,
    WIDTHS: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, STAGES: gl.constexpr, V_STAGES: gl.constexpr,
):  # fmt: skip
    """The loading warp."""
    q_tma, k_tma, v_tma, grad_tma = descriptors
    q_tiles, q_rests, grad_tiles, grad_rests, k_ring, k_rests, v_ring, v_rests = buffers
    q_full, k_full, k_empty, v_full, v_empty = barriers
    pairs, heads, groups, queries, keys, tiles, section, _row, _plane, _scale, left, right = sizes
    HEAD: gl.constexpr = (WIDTHS[0] + WIDTHS[1]) // 64
    VALUE: gl.constexpr = (WIDTHS[2] + WIDTHS[3]) // 64
    tile, pair = place_of(gl.program_id(0), tiles, pairs, section)
    tile = tiles - 1 - tile
    entry = pair // heads
    head = pair % heads
    kv_head = head // groups
    begin, before, full_begin, full_end, masked, count = _key_blocks(tile, queries, keys, left, right, LEFT, RIGHT)
    mbarrier.expect(q_full.index(0), 2 * (HEAD * q_tma.block_type.nbytes + VALUE * grad_tma.block_type.nbytes))
    for group in gl.static_range(2):
        at = tile * _ROWS + group * 64
        load_rows(
            q_tma, entry, at, head, q_full.index(0), q_tiles.index(group), q_rests.index(group), WIDTHS[0], WIDTHS[1]
        )
        load_rows(
            grad_tma, entry, at, head, q_full.index(0), grad_tiles.index(group), grad_rests.index(group),
            WIDTHS[2], WIDTHS[3],
        )  # fmt: skip
    for step in range(count):
        at = _start_of(step, begin, before, full_begin, full_end, masked)
        stage = step % STAGES
        mbarrier.wait(k_empty.index(stage), (step // STAGES & 1) ^ 1)
        mbarrier.expect(k_full.index(stage), HEAD * k_tma.block_type.nbytes)
        load_rows(
            k_tma, entry, at, kv_head, k_full.index(stage), k_ring.index(stage), k_rests.index(stage),
            WIDTHS[0], WIDTHS[1],
        )  # fmt: skip
        stage = step % V_STAGES
        mbarrier.wait(v_empty.index(stage), (step // V_STAGES & 1) ^ 1)
        mbarrier.expect(v_full.index(stage), VALUE * v_tma.block_type.nbytes)
        load_rows(
            v_tma, entry, at, kv_head, v_full.index(stage), v_ring.index(stage), v_rests.index(stage),
            WIDTHS[2], WIDTHS[3],
        )  # fmt: skip


@gluon.jit
def _compute(
    statistics, grad_q, notes, buffers, barriers, sizes,
    COLUMNS: gl.constexpr, WIDTHS: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, STAGES: gl.constexpr,
    V_STAGES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """A computing warpgroup: 64 queries."""
    q_tiles, q_rests, grad_tiles, grad_rests, k_ring, k_rests, v_ring, v_rests = buffers
    q_full, k_full, k_empty, v_full, v_empty = barriers
    pairs, heads, _groups, queries, keys, tiles, section, row, plane, scale, left, right = sizes
    FIRST: gl.constexpr = WIDTHS[0]
    REST: gl.constexpr = WIDTHS[1]
    rows: gl.constexpr = gl.SliceLayout(1, score_layout())
    tile, pair = place_of(gl.program_id(0), tiles, pairs, section)
    tile = tiles - 1 - tile
    entry = pair // heads
    head = pair % heads
    begin, before, full_begin, full_end, masked, count = _key_blocks(tile, queries, keys, left, right, LEFT, RIGHT)
    start = tile * _ROWS + GROUP * 64
    query = start + gl.arange(0, 64, layout=rows)
    numbers = statistics + pair.to(gl.int64) * row + query
    log_sum = gl.load(numbers, mask=query < queries, other=0.0)
    shift = gl.load(numbers + plane, mask=query < queries, other=0.0)
    low, high = _bounds(query, queries, keys, left, right, LEFT, RIGHT)
    sums = gl.zeros([64, FIRST], gl.float32, sum_layout(FIRST))
    rest = gl.zeros([64, rest_or_least(REST)], gl.float32, sum_layout(rest_or_least(REST)))
    mbarrier.wait(q_full.index(0), 0)
    for step in range(count):
        zero = step >> 30  # which the compiler does not know: it keeps no address of a product in a register of its own
        stage = step % STAGES
        v_stage = step % V_STAGES
        mbarrier.wait(k_full.index(stage), step // STAGES & 1)
        scores = gl.zeros([64, 64], gl.float32, score_layout())
        scores = across(
            q_tiles.index(GROUP + zero), q_rests.index(GROUP + zero), k_ring.index(stage), k_rests.index(stage),
            scores, False, REST,
        )  # fmt: skip
        mbarrier.wait(v_full.index(v_stage), step // V_STAGES & 1)
        moved = gl.zeros([64, 64], gl.float32, score_layout()) - shift[:, None]
        moved = across(
            grad_tiles.index(GROUP + zero), grad_rests.index(GROUP + zero), v_ring.index(v_stage),
            v_rests.index(v_stage), moved, True, WIDTHS[3],
        )  # fmt: skip
        scores = warpgroup_mma_wait(2 if WIDTHS[3] > 0 else 1, [scores])
        weights = gl.exp2(scores * (scale * LOG2_E) - log_sum[:, None])
        if step < masked:
            at = _start_of(step, begin, before, full_begin, full_end, masked)
            key = at + gl.arange(0, 64, layout=gl.SliceLayout(0, score_layout()))
            weights = gl.where(key[None, :] < high[:, None], weights, 0.0)
            if LEFT:
                weights = gl.where(key[None, :] >= low[:, None], weights, 0.0)
        moved = warpgroup_mma_wait(0, [moved])
        synchronize()
        mbarrier.arrive(v_empty.index(v_stage), count=1)
        halves = (weights * moved).to(k_ring.dtype)
        sums, rest, operand = along(halves, k_ring.index(stage), k_rests.index(stage), sums, rest, FIRST, REST)
        sums, rest = wait_for(sums, rest, operand, REST)
        synchronize()
        mbarrier.arrive(k_empty.index(stage), count=1)
    note = notes + start // 64 * pairs + pair if LEFT or RIGHT else None
    first_row = (entry.to(gl.int64) * queries * heads + head) * COLUMNS
    store_rows(grad_q, note, sums, rest, scale, start, first_row, heads * COLUMNS, queries, COLUMNS, FIRST, REST)


_PER_CALL = (
    "pairs", "heads", "groups", "queries", "keys", "tiles", "section", "row", "plane", "scale", "left", "right",
)  # fmt: skip


@gluon.jit(do_not_specialize=_PER_CALL)
def wide_queries(
    statistics, grad_q, notes, q_tma, k_tma, v_tma, grad_tma,
    pairs, heads, groups, queries, keys, tiles, section, row, plane, scale, left, right,
    HEAD_DIM: gl.constexpr, HEAD: gl.constexpr, HEAD_REST: gl.constexpr,
    VALUE: gl.constexpr, VALUE_REST: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr,
    STAGES: gl.constexpr, V_STAGES: gl.constexpr, REGISTERS: gl.constexpr, DEPENDENT: gl.constexpr,
):  # fmt: skip
    """Gradients of queries, ``(batch, queries, heads, HEAD_DIM)``.

    ``statistics`` are the lse to base 2 of each row of queries, then the shift of each, ``row`` to a head, ``plane`` of
    each. ``pairs`` are of batch entries and heads. ``notes`` has a zero for every 64 queries of each pair: 1 is written
    where a gradient is not finite. The other arguments are those of `hopper_wide_kernels.wide_keys_values`.
    """
    WIDTHS: gl.constexpr = (HEAD, HEAD_REST, VALUE, VALUE_REST)
    dtype: gl.constexpr = q_tma.dtype
    q_tiles = gl.allocate_shared_memory(dtype, [2, 64, HEAD], swizzled())
    grad_tiles = gl.allocate_shared_memory(dtype, [2, 64, VALUE], swizzled())
    k_ring = gl.allocate_shared_memory(dtype, [STAGES, 64, HEAD], swizzled())
    v_ring = gl.allocate_shared_memory(dtype, [V_STAGES, 64, VALUE], swizzled())
    q_rests = q_tiles
    grad_rests = grad_tiles
    k_rests = k_ring
    v_rests = v_ring
    if HEAD_REST > 0:
        q_rests = gl.allocate_shared_memory(dtype, [2, 64, HEAD_REST], swizzled())
        k_rests = gl.allocate_shared_memory(dtype, [STAGES, 64, HEAD_REST], swizzled())
    if VALUE_REST > 0:
        grad_rests = gl.allocate_shared_memory(dtype, [2, 64, VALUE_REST], swizzled())
        v_rests = gl.allocate_shared_memory(dtype, [V_STAGES, 64, VALUE_REST], swizzled())
    q_full = new_barriers(1, 1)
    k_full = new_barriers(STAGES, 1)
    k_empty = new_barriers(STAGES, 2)
    v_full = new_barriers(V_STAGES, 1)
    v_empty = new_barriers(V_STAGES, 2)
    fence_async_shared()
    if DEPENDENT:  # what comes after this waits for the kernel before; the next one may begin to start
        gdc_wait()
        gdc_launch_dependents()

    buffers = (q_tiles, q_rests, grad_tiles, grad_rests, k_ring, k_rests, v_ring, v_rests)
    barriers = (q_full, k_full, k_empty, v_full, v_empty)
    descriptors = (q_tma, k_tma, v_tma, grad_tma)
    sizes = (pairs, heads, groups, queries, keys, tiles, section, row, plane, scale, left, right)
    # fmt: off
    gl.warp_specialize([
        (_compute, (statistics, grad_q, notes, buffers, barriers, sizes,
                    HEAD_DIM, WIDTHS, LEFT, RIGHT, STAGES, V_STAGES, 0)),
        (_compute, (statistics, grad_q, notes, buffers, barriers, sizes,
                    HEAD_DIM, WIDTHS, LEFT, RIGHT, STAGES, V_STAGES, 1)),
        (_load, (descriptors, buffers, barriers, sizes, WIDTHS, LEFT, RIGHT, STAGES, V_STAGES)),
    ], [4, 1], [REGISTERS, 24])
    # fmt: on
