"""Attention's backward for sm_90 in Gluon: five products, one warp loads, two warpgroups compute 64 keys each.

A program owns 128 keys of a kv head and goes through the queries of all its query heads, ``ROWS`` at a time, which
come through TMA in a ring. With ``S`` the scores and ``P`` the probabilities, keys being rows:

    S' = K Q',  dP' = V dO',  dS' = P' (dP' - shift),  dV += P' dO,  dK += dS' Q,  dQ = dS K

``P'`` and ``dS'`` are operands in registers; ``dS'`` goes through shared memory too, since the gradient of a query
needs all 128 keys. It is summed over programs, in float32 and in the order in which they come, in blocks of 64 x 64
that lie as the registers of the product do: a thread adds four numbers at a time, and `sum_of_queries` sorts them.

Source: Shah et al., FlashAttention-3 (2024), section 3 and appendix B; Dao, FlashAttention-2 (2023), section 3.1.2.
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
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from opmux_triton.attention.backward.hopper_load_kernels import KEYS, load
from opmux_triton.attention.backward.hopper_query_kernels import PANEL, add_queries
from opmux_triton.attention.backward.hopper_tile_kernels import (
    masked_start,
    query_blocks,
    share_of,
    shared_place_of,
)
from opmux_triton.hopper.names import synchronize
from opmux_triton.hopper.views import view
from opmux_triton.scoring.base2 import LOG2_E


@gluon.jit
def _queries_of(
    moved_tiles, k_tiles, slot, zero, ROWS: gl.constexpr, HEAD_DIM: gl.constexpr, GROUP: gl.constexpr
):  # fmt: skip
    """Start the product of a step's dS and the keys: 64 x 64 of it."""
    panel_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    swizzled: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    dtype: gl.constexpr = moved_tiles.dtype
    grad_queries = gl.zeros([64, 64], gl.float32, panel_layout)
    for half in gl.static_range(2):
        of_rows = view(moved_tiles.index(slot * 2 + half), dtype, [ROWS // 64, 64, 64], swizzled)
        of_dims = view(k_tiles.index(half + zero), dtype, [HEAD_DIM // 64, 64, 64], swizzled)
        grad_queries = warpgroup_mma(
            of_rows.index(GROUP if ROWS == 128 else 0).permute((1, 0)), of_dims.index(GROUP if ROWS == 64 else 0),
            grad_queries, use_acc=half > 0, is_async=True,
        )  # fmt: skip
    return grad_queries


@gluon.jit
def _step(
    grad_keys, grad_values, used, at, panel, start, sums, sums_tma, staging, buffers, barriers, sizes,
    MASKED: gl.constexpr, HEAD_DIM: gl.constexpr, ROWS: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr, QUERIES: gl.constexpr, LATE: gl.constexpr,
):  # fmt: skip
    """Add the contributions of ``ROWS`` queries of a head; with LATE, their own gradients follow one step later."""
    k_tiles, v_tiles, q_ring, grad_ring, log_sums, shifts, moved_tiles = buffers
    _kv_full, q_full, q_empty, grad_full, grad_empty, shared = barriers
    (
        _pairs, _kv_heads, _groups, _shares, queries, keys, _tiles, _section, _row, _plane, _panels, scale, inverse,
        left, right,
    ) = sizes  # fmt: skip
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    sum_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, sum_layout, 2)
    numbers: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    columns: gl.constexpr = gl.SliceLayout(0, score_layout)
    dtype: gl.constexpr = q_ring.dtype
    # Starting the sum from these numbers would save registers, but delay the product.
    FOLD: gl.constexpr = ROWS > 64

    stage = used % STAGES
    phase = used // STAGES & 1
    slot = used % (3 if LATE else 2)
    phase_of_slot = used // (3 if LATE else 2) & 1
    # Zero, which the compiler does not know: else it would keep each address of a product in a register of its own.
    zero = used >> 30
    k_tile = k_tiles.index(GROUP + zero).reshape([64, HEAD_DIM])
    v_tile = v_tiles.index(GROUP + zero).reshape([64, HEAD_DIM])
    q_tile = q_ring.index(stage).reshape([ROWS, HEAD_DIM])
    grad_tile = grad_ring.index(stage).reshape([ROWS, HEAD_DIM])

    mbarrier.wait(q_full.index(stage), phase)
    log_sum = view(log_sums.index(stage), gl.float32, [ROWS], numbers).load(columns)
    scores = gl.zeros([64, ROWS], gl.float32, score_layout)
    if MASKED:
        # In terms of the columns of this block. What is masked stays out of dS too, unless dP is not finite.
        key = start + GROUP * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, score_layout))
        diagonal = key - (keys - queries) - at
        column = gl.arange(0, ROWS, layout=columns) + zero
        first = gl.where(key < keys, diagonal - right if RIGHT else 0, ROWS)
    if FOLD:
        scores -= (log_sum * inverse)[None, :]
        if MASKED:
            nothing = gl.where(inverse > 0, float("-inf"), float("inf"))
            scores = gl.where(column[None, :] >= first[:, None], scores, nothing)
            if LEFT:
                scores = gl.where(column[None, :] <= (diagonal + left)[:, None], scores, nothing)
    scores = warpgroup_mma(k_tile, q_tile.permute((1, 0)), scores, use_acc=FOLD, is_async=True)
    mbarrier.wait(grad_full.index(stage), phase)
    shift = view(shifts.index(stage), gl.float32, [ROWS], numbers).load(columns)
    moved = gl.zeros([64, ROWS], gl.float32, score_layout) - shift[None, :]
    moved = warpgroup_mma(v_tile, grad_tile.permute((1, 0)), moved, is_async=True)
    scores = warpgroup_mma_wait(1, [scores])
    if FOLD:
        weights = gl.exp2(scores * (scale * LOG2_E))
    else:
        weights = gl.exp2(scores * (scale * LOG2_E) - log_sum[None, :])
    if MASKED and not FOLD:
        weights = gl.where(column[None, :] >= first[:, None], weights, 0.0)
        if LEFT:
            weights = gl.where(column[None, :] <= (diagonal + left)[:, None], weights, 0.0)
    left_operand = gl.convert_layout(weights.to(dtype), operand)
    moved = warpgroup_mma_wait(0, [moved])
    grad_values = warpgroup_mma(left_operand, grad_tile, grad_values, is_async=True)

    halves = (weights * moved).to(dtype)
    if QUERIES:
        if LATE:
            slot_before = (used + 2) % 3
            mbarrier.wait(shared.index(slot_before), (used - 1) // 3 & 1, pred=used > 0)
        moved_tiles.index(slot * 2 + GROUP).store(halves)
        fence_async_shared()
        synchronize()
        mbarrier.arrive(shared.index(slot), count=1)
    score_operand = gl.convert_layout(halves, operand)
    if QUERIES:
        if LATE:
            grad_queries = _queries_of(moved_tiles, k_tiles, slot_before, zero, ROWS, HEAD_DIM, GROUP)
        else:
            mbarrier.wait(shared.index(slot), phase_of_slot)
            grad_queries = _queries_of(moved_tiles, k_tiles, slot, zero, ROWS, HEAD_DIM, GROUP)
        grad_keys = warpgroup_mma(score_operand, q_tile, grad_keys, is_async=True)
        grad_queries, grad_values, left_operand = warpgroup_mma_wait(1, [grad_queries, grad_values, left_operand])
    else:
        grad_keys = warpgroup_mma(score_operand, q_tile, grad_keys, is_async=True)
        grad_values, left_operand = warpgroup_mma_wait(1, [grad_values, left_operand])
    synchronize()
    mbarrier.arrive(grad_empty.index(stage), count=1)
    if QUERIES:
        add_queries(grad_queries, panel, used > 0 if LATE else True, sums, sums_tma, staging)
    grad_keys, score_operand = warpgroup_mma_wait(0, [grad_keys, score_operand])
    synchronize()
    mbarrier.arrive(q_empty.index(stage), count=1)
    return grad_keys, grad_values


@gluon.jit
def _compute(
    sums, sums_tma, stagings, grad_k, grad_v, notes, buffers, barriers, sizes,
    COLUMNS: gl.constexpr, HEAD_DIM: gl.constexpr, ROWS: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr, QUERIES: gl.constexpr, LATE: gl.constexpr,
):  # fmt: skip
    """A computing warpgroup: 64 keys, and half of each block of queries' gradients."""
    k_tiles, _v_tiles, _q_ring, _grad_ring, _log_sums, _shifts, moved_tiles = buffers
    kv_full, _q_full, _q_empty, _grad_full, _grad_empty, shared = barriers
    (
        pairs, kv_heads, groups, shares, queries, keys, tiles, section, _row, _plane, panels, scale, _inverse, left,
        right,
    ) = sizes  # fmt: skip
    sum_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    tile, pair, share = shared_place_of(gl.program_id(0), tiles, pairs, shares, section)
    entry = pair // kv_heads
    kv_head = pair % kv_heads
    start = tile * KEYS
    begin, before, masked, full_begin, full_end, count = query_blocks(
        tile, queries, keys, left, right, KEYS, ROWS, LEFT, RIGHT
    )
    grad_keys = gl.zeros([64, HEAD_DIM], gl.float32, sum_layout)
    grad_values = gl.zeros([64, HEAD_DIM], gl.float32, sum_layout)
    first_head = pair * groups
    staging = stagings.index(GROUP)
    panel_before = 0
    mbarrier.wait(kv_full.index(0), 0)
    first, steps = share_of(groups * masked, share, shares)
    for used in range(steps):
        step = first + used
        at = masked_start(step % masked, begin, before, full_end, ROWS)
        panel = (first_head + step // masked) * panels + at // 64 * (HEAD_DIM // 64) + GROUP
        grad_keys, grad_values = _step(
            grad_keys, grad_values, used, at, panel_before if LATE else panel, start,
            sums, sums_tma, staging, buffers, barriers, sizes,
            True, HEAD_DIM, ROWS, LEFT, RIGHT, STAGES, GROUP, QUERIES, LATE,
        )  # fmt: skip
        panel_before = panel
    first, full_steps = share_of(groups * count, share, shares)
    for used in range(full_steps):
        step = first + used
        at = full_begin + step % count * ROWS
        panel = (first_head + step // count) * panels + at // 64 * (HEAD_DIM // 64) + GROUP
        grad_keys, grad_values = _step(
            grad_keys, grad_values, steps + used, at, panel_before if LATE else panel, start,
            sums, sums_tma, staging, buffers, barriers, sizes,
            False, HEAD_DIM, ROWS, LEFT, RIGHT, STAGES, GROUP, QUERIES, LATE,
        )  # fmt: skip
        panel_before = panel
    if QUERIES and LATE:
        used = steps + full_steps
        mbarrier.wait(shared.index((used + 2) % 3), (used - 1) // 3 & 1, pred=used > 0)
        grad_queries = _queries_of(moved_tiles, k_tiles, (used + 2) % 3, 0, ROWS, HEAD_DIM, GROUP)
        grad_queries = warpgroup_mma_wait(0, [grad_queries])
        add_queries(grad_queries, panel_before, used > 0, sums, sums_tma, staging)
    if LEFT or RIGHT:
        trouble = gl.sum(grad_keys * 0.0 + grad_values * 0.0, 1)
        gl.store(notes + tile * pairs + pair + gl.zeros_like(trouble).to(gl.int32), 1, mask=trouble != 0)
    key = start + GROUP * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, sum_layout))
    column = gl.arange(0, HEAD_DIM, layout=gl.SliceLayout(0, sum_layout))
    rows = (((entry.to(gl.int64) * keys + key.to(gl.int64)) * kv_heads + kv_head) * shares + share) * COLUMNS
    places_of = rows[:, None] + column[None, :]
    live = (key < keys)[:, None] & (column < COLUMNS)[None, :]
    gl.store(grad_k + places_of, (grad_keys * scale).to(grad_k.dtype.element_ty), mask=live)
    if sums_tma is not None:
        tma.store_wait(0)  # shared memory ends with the program
    gl.store(grad_v + places_of, grad_values.to(grad_v.dtype.element_ty), mask=live)


_PER_CALL = (
    "pairs", "kv_heads", "groups", "shares", "queries", "keys", "tiles", "section", "row", "plane", "panels",
    "scale", "inverse", "left", "right",
)  # fmt: skip


@gluon.jit(do_not_specialize=_PER_CALL)
def attention_backward(
    sums, sums_tma, grad_k, grad_v, notes, q_tma, k_tma, v_tma, grad_tma, rows_tma,
    pairs, kv_heads, groups, shares, queries, keys, tiles, section, row, plane, panels, scale, inverse, left, right,
    COLUMNS: gl.constexpr, HEAD_DIM: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, ROWS: gl.constexpr,
    STAGES: gl.constexpr, QUERIES: gl.constexpr, LATE: gl.constexpr, REGISTERS: gl.constexpr, DEPENDENT: gl.constexpr,
):  # fmt: skip
    """Gradients of keys and values, and sums for those of queries, ``(batch, heads, panels, 4096)``.

    Heads have ``COLUMNS`` columns; copies write zeros into those from there to ``HEAD_DIM``, 64 or 128.

    ``rows_tma`` holds the lse to base 2 of each row of queries, then the shift of each, ``row`` to a head, ``plane`` of
    each. ``inverse`` is that of ``scale * log2(e)``. ``pairs`` are of batch entries and kv heads. ``ROWS * HEAD_DIM``
    is 8192. ``sums_tma`` adds in bulk where given, else each thread adds its own.

    The query blocks of a tile of keys are divided between ``shares`` programs. Where there are several, ``grad_k`` and
    ``grad_v`` hold ``(batch, keys, kv_heads, shares, COLUMNS)`` float32 parts.
    """
    k_tiles = gl.allocate_shared_memory(k_tma.dtype, [2, 1, 64, 1, HEAD_DIM], k_tma.layout)
    v_tiles = gl.allocate_shared_memory(v_tma.dtype, [2, 1, 64, 1, HEAD_DIM], v_tma.layout)
    q_ring = gl.allocate_shared_memory(q_tma.dtype, [STAGES, 1, ROWS, 1, HEAD_DIM], q_tma.layout)
    grad_ring = gl.allocate_shared_memory(grad_tma.dtype, [STAGES, 1, ROWS, 1, HEAD_DIM], grad_tma.layout)
    swizzled: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    moved_tiles = gl.allocate_shared_memory(q_tma.dtype, [6 if LATE else 4, 64, ROWS], swizzled)
    stagings = moved_tiles  # not used
    if sums_tma is not None:
        stagings = gl.allocate_shared_memory(gl.float32, [2, PANEL], sums_tma.layout)
    log_sums = gl.allocate_shared_memory(gl.float32, [STAGES, ROWS], rows_tma.layout)
    shifts = gl.allocate_shared_memory(gl.float32, [STAGES, ROWS], rows_tma.layout)
    kv_full = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    q_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    grad_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    grad_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    shared = gl.allocate_shared_memory(gl.int64, [3, 1], mbarrier.MBarrierLayout())
    mbarrier.init(kv_full.index(0), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(q_full.index(stage), count=1)
        mbarrier.init(q_empty.index(stage), count=2)
        mbarrier.init(grad_full.index(stage), count=1)
        mbarrier.init(grad_empty.index(stage), count=2)
    for slot in gl.static_range(3):
        mbarrier.init(shared.index(slot), count=2)
    fence_async_shared()
    if DEPENDENT:  # what comes after this waits for the kernel before; the next one may begin to start
        gdc_wait()
        gdc_launch_dependents()

    buffers = (k_tiles, v_tiles, q_ring, grad_ring, log_sums, shifts, moved_tiles)
    barriers = (kv_full, q_full, q_empty, grad_full, grad_empty, shared)
    sizes = (
        pairs, kv_heads, groups, shares, queries, keys, tiles, section, row, plane, panels, scale, inverse, left, right
    )  # fmt: skip
    # fmt: off
    gl.warp_specialize([
        (_compute, (sums, sums_tma, stagings, grad_k, grad_v, notes, buffers, barriers, sizes,
                    COLUMNS, HEAD_DIM, ROWS, LEFT, RIGHT, STAGES, 0, QUERIES, LATE)),
        (_compute, (sums, sums_tma, stagings, grad_k, grad_v, notes, buffers, barriers, sizes,
                    COLUMNS, HEAD_DIM, ROWS, LEFT, RIGHT, STAGES, 1, QUERIES, LATE)),
        (load, (q_tma, k_tma, v_tma, grad_tma, rows_tma, buffers, barriers, sizes, ROWS, LEFT, RIGHT, STAGES)),
    ], [4, 1], [REGISTERS, 24])
    # fmt: on
