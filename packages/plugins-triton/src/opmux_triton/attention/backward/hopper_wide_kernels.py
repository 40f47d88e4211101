"""Attention's backward for sm_90 in Gluon, for heads of more than 128: the gradients of keys and values.

The products and the notation are those of `hopper_kernels`. The sums of 64 keys' gradients fill a warpgroup's registers
where heads are this wide, so the two computing warpgroups share 64 keys, and each of them sums one kind of gradient:

    one:        S' = K Q',    P',                        dV += P' dO
    the other:  dP' = V dO',  dS' = P' (dP' - shift),    dK += dS' Q

``P'`` goes from the one to the other through shared memory in float32: rounded there, ``dS'`` would be rounded twice.

The gradients of queries have a kernel of their own, `hopper_wide_query_kernels`, which computes scores again: seven
products instead of five. Adding float32 parts to global memory, once for every 64 keys, took longer than the two
products that it saved, and left the order of the sums open.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from opmux_triton.attention.backward.hopper_tile_kernels import masked_start, place_of, query_blocks
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
from opmux_triton.hopper.names import load_block, synchronize
from opmux_triton.hopper.views import view
from opmux_triton.scoring.base2 import LOG2_E

_SIDE: gl.constexpr = gl.constexpr(64)
"""Keys of a program, and queries of a block."""


@gluon.jit
def _load_step(
    used, entry, head, at, descriptors, buffers, barriers, heads, row, plane,
    WIDTHS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """One block of queries, of gradients, and of their numbers."""
    q_tma, _k_tma, _v_tma, grad_tma, rows_tma = descriptors
    _k, _k_rests, _v, _v_rests, q_ring, q_rests, grad_ring, grad_rests, log_sums, shifts, _p = buffers
    _kv_full, q_full, q_empty, grad_full, grad_empty, _p_full, _p_empty = barriers
    HEAD: gl.constexpr = (WIDTHS[0] + WIDTHS[1]) // 64
    VALUE: gl.constexpr = (WIDTHS[2] + WIDTHS[3]) // 64
    stage = used % STAGES
    phase = (used // STAGES & 1) ^ 1
    number = (entry * heads + head) * row + at
    mbarrier.wait(q_empty.index(stage), phase)
    mbarrier.expect(q_full.index(stage), HEAD * q_tma.block_type.nbytes + 4 * _SIDE)
    load_rows(
        q_tma, entry, at, head, q_full.index(stage), q_ring.index(stage), q_rests.index(stage), WIDTHS[0], WIDTHS[1]
    )
    load_block(rows_tma, [number], q_full.index(stage), log_sums.index(stage))
    mbarrier.wait(grad_empty.index(stage), phase)
    mbarrier.expect(grad_full.index(stage), VALUE * grad_tma.block_type.nbytes + 4 * _SIDE)
    load_rows(
        grad_tma, entry, at, head, grad_full.index(stage), grad_ring.index(stage), grad_rests.index(stage),
        WIDTHS[2], WIDTHS[3],
    )  # fmt: skip
    load_block(rows_tma, [number + plane], grad_full.index(stage), shifts.index(stage))


@gluon.jit
def _load(
    descriptors, buffers, barriers, sizes,
    WIDTHS: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The loading warp."""
    _q_tma, k_tma, v_tma, _grad_tma, _rows_tma = descriptors
    k_tile, k_rest, v_tile, v_rest, _q, _q_rests, _grad, _grad_rests, _log_sums, _shifts, _p = buffers
    pairs, kv_heads, groups, queries, keys, tiles, section, row, plane, _scale, left, right = sizes
    HEAD: gl.constexpr = (WIDTHS[0] + WIDTHS[1]) // 64
    VALUE: gl.constexpr = (WIDTHS[2] + WIDTHS[3]) // 64
    tile, pair = place_of(gl.program_id(0), tiles, pairs, section)
    entry = pair // kv_heads
    kv_head = pair % kv_heads
    begin, before, masked, full_begin, full_end, count = query_blocks(
        tile, queries, keys, left, right, _SIDE, _SIDE, LEFT, RIGHT
    )
    full = barriers[0].index(0)
    mbarrier.expect(full, HEAD * k_tma.block_type.nbytes + VALUE * v_tma.block_type.nbytes)
    start = tile * _SIDE
    load_rows(k_tma, entry, start, kv_head, full, k_tile.index(0), k_rest.index(0), WIDTHS[0], WIDTHS[1])
    load_rows(v_tma, entry, start, kv_head, full, v_tile.index(0), v_rest.index(0), WIDTHS[2], WIDTHS[3])
    for step in range(groups * masked):
        at = masked_start(step % masked, begin, before, full_end, _SIDE)
        head = kv_head * groups + step // masked
        _load_step(step, entry, head, at, descriptors, buffers, barriers, kv_heads * groups, row, plane, WIDTHS, STAGES)
    for step in range(groups * count):
        at = full_begin + step % count * _SIDE
        head = kv_head * groups + step // count
        _load_step(
            groups * masked + step, entry, head, at, descriptors, buffers, barriers, kv_heads * groups, row, plane,
            WIDTHS, STAGES,
        )  # fmt: skip


@gluon.jit
def _values_step(
    sums, rest, used, at, start, buffers, barriers, sizes,
    MASKED: gl.constexpr, WIDTHS: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The probabilities of 64 queries of a head, and what they add to the values' gradients."""
    k_tile, k_rest, _v, _v_rest, q_ring, q_rests, grad_ring, grad_rests, log_sums, _shifts, p_tiles = buffers
    _kv_full, q_full, q_empty, grad_full, grad_empty, p_full, p_empty = barriers
    _pairs, _kv_heads, _groups, queries, keys, _tiles, _section, _row, _plane, scale, left, right = sizes
    columns: gl.constexpr = gl.SliceLayout(0, score_layout())
    numbers: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    stage = used % STAGES
    slot = used % 2
    # Zero, which the compiler does not know: else it would keep each address of a product in a register of its own.
    zero = used >> 30

    mbarrier.wait(q_full.index(stage), used // STAGES & 1)
    scores = gl.zeros([64, 64], gl.float32, score_layout())
    scores = across(
        k_tile.index(zero), k_rest.index(zero), q_ring.index(stage), q_rests.index(stage), scores, False, WIDTHS[1]
    )
    log_sum = view(log_sums.index(stage), gl.float32, [64], numbers).load(columns)
    scores = warpgroup_mma_wait(0, [scores])
    weights = gl.exp2(scores * (scale * LOG2_E) - log_sum[None, :])
    if MASKED:
        # In terms of the columns of this block. What is masked stays out of dS too, unless dP is not finite.
        key = start + gl.arange(0, 64, layout=gl.SliceLayout(1, score_layout()))
        diagonal = key - (keys - queries) - at
        column = gl.arange(0, 64, layout=columns) + zero
        first = gl.where(key < keys, diagonal - right if RIGHT else 0, 64)
        weights = gl.where(column[None, :] >= first[:, None], weights, 0.0)
        if LEFT:
            weights = gl.where(column[None, :] <= (diagonal + left)[:, None], weights, 0.0)
    mbarrier.wait(p_empty.index(slot), (used // 2 & 1) ^ 1)
    p_tiles.index(slot).store(weights)
    halves = weights.to(q_ring.dtype)
    synchronize()
    mbarrier.arrive(p_full.index(slot), count=1)
    mbarrier.arrive(q_empty.index(stage), count=1)

    mbarrier.wait(grad_full.index(stage), used // STAGES & 1)
    sums, rest, operand = along(
        halves, grad_ring.index(stage), grad_rests.index(stage), sums, rest, WIDTHS[2], WIDTHS[3]
    )
    sums, rest = wait_for(sums, rest, operand, WIDTHS[3])
    synchronize()
    mbarrier.arrive(grad_empty.index(stage), count=1)
    return sums, rest


@gluon.jit
def _keys_step(sums, rest, used, buffers, barriers, WIDTHS: gl.constexpr, STAGES: gl.constexpr):
    """The score gradients of 64 queries of a head, and what they add to the keys' gradients."""
    _k, _k_rest, v_tile, v_rest, q_ring, q_rests, grad_ring, grad_rests, _log_sums, shifts, p_tiles = buffers
    _kv_full, q_full, q_empty, grad_full, grad_empty, p_full, p_empty = barriers
    columns: gl.constexpr = gl.SliceLayout(0, score_layout())
    numbers: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    stage = used % STAGES
    slot = used % 2
    zero = used >> 30  # as in `_values_step`

    mbarrier.wait(grad_full.index(stage), used // STAGES & 1)
    shift = view(shifts.index(stage), gl.float32, [64], numbers).load(columns)
    moved = gl.zeros([64, 64], gl.float32, score_layout()) - shift[None, :]
    moved = across(
        v_tile.index(zero), v_rest.index(zero), grad_ring.index(stage), grad_rests.index(stage), moved, True, WIDTHS[3]
    )
    moved = warpgroup_mma_wait(0, [moved])
    mbarrier.wait(p_full.index(slot), used // 2 & 1)
    weights = p_tiles.index(slot).load(score_layout())
    halves = (weights * moved).to(q_ring.dtype)
    synchronize()
    mbarrier.arrive(p_empty.index(slot), count=1)
    mbarrier.arrive(grad_empty.index(stage), count=1)

    mbarrier.wait(q_full.index(stage), used // STAGES & 1)
    sums, rest, operand = along(halves, q_ring.index(stage), q_rests.index(stage), sums, rest, WIDTHS[0], WIDTHS[1])
    sums, rest = wait_for(sums, rest, operand, WIDTHS[1])
    synchronize()
    mbarrier.arrive(q_empty.index(stage), count=1)
    return sums, rest


@gluon.jit
def _step(
    sums, rest, used, at, start, buffers, barriers, sizes,
    MASKED: gl.constexpr, KEYS: gl.constexpr, WIDTHS: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    if KEYS:
        return _keys_step(sums, rest, used, buffers, barriers, WIDTHS, STAGES)
    return _values_step(sums, rest, used, at, start, buffers, barriers, sizes, MASKED, WIDTHS, LEFT, RIGHT, STAGES)


@gluon.jit
def _compute(
    gradients, notes, buffers, barriers, sizes,
    KEYS: gl.constexpr, COLUMNS: gl.constexpr, WIDTHS: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """A computing warpgroup: the gradients of values, or with ``KEYS`` of keys."""
    pairs, kv_heads, groups, queries, keys, tiles, section, _row, _plane, scale, left, right = sizes
    FIRST: gl.constexpr = WIDTHS[0] if KEYS else WIDTHS[2]
    REST: gl.constexpr = WIDTHS[1] if KEYS else WIDTHS[3]
    tile, pair = place_of(gl.program_id(0), tiles, pairs, section)
    entry = pair // kv_heads
    kv_head = pair % kv_heads
    start = tile * _SIDE
    begin, before, masked, full_begin, full_end, count = query_blocks(
        tile, queries, keys, left, right, _SIDE, _SIDE, LEFT, RIGHT
    )
    sums = gl.zeros([64, FIRST], gl.float32, sum_layout(FIRST))
    rest = gl.zeros([64, rest_or_least(REST)], gl.float32, sum_layout(rest_or_least(REST)))
    mbarrier.wait(barriers[0].index(0), 0)
    for step in range(groups * masked):
        at = masked_start(step % masked, begin, before, full_end, _SIDE)
        sums, rest = _step(
            sums, rest, step, at, start, buffers, barriers, sizes, True, KEYS, WIDTHS, LEFT, RIGHT, STAGES
        )
    for step in range(groups * count):
        at = full_begin + step % count * _SIDE
        sums, rest = _step(
            sums, rest, groups * masked + step, at, start, buffers, barriers, sizes,
            False, KEYS, WIDTHS, LEFT, RIGHT, STAGES,
        )  # fmt: skip
    note = notes + tile * pairs + pair if LEFT or RIGHT else None
    first_row = (entry.to(gl.int64) * keys * kv_heads + kv_head) * COLUMNS
    factor = scale if KEYS else 1.0
    store_rows(gradients, note, sums, rest, factor, start, first_row, kv_heads * COLUMNS, keys, COLUMNS, FIRST, REST)


_PER_CALL = (
    "pairs", "kv_heads", "groups", "queries", "keys", "tiles", "section", "row", "plane", "scale", "left", "right",
)  # fmt: skip


@gluon.jit(do_not_specialize=_PER_CALL)
def wide_keys_values(
    grad_k, grad_v, notes, q_tma, k_tma, v_tma, grad_tma, rows_tma,
    pairs, kv_heads, groups, queries, keys, tiles, section, row, plane, scale, left, right,
    HEAD_DIM: gl.constexpr, VALUE_DIM: gl.constexpr, HEAD: gl.constexpr, HEAD_REST: gl.constexpr,
    VALUE: gl.constexpr, VALUE_REST: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr,
    STAGES: gl.constexpr, REGISTERS: gl.constexpr, DEPENDENT: gl.constexpr,
):  # fmt: skip
    """Gradients of keys and values.

    A head comes as ``HEAD`` columns and ``HEAD_REST`` more, a value as ``VALUE`` and ``VALUE_REST``, which hold
    ``HEAD_DIM`` and ``VALUE_DIM``: 256; 128 and 64; or 128 alone. Copies, of 64 rows and 64 columns, write zeros into
    columns past the last one.

    ``rows_tma`` holds the lse to base 2 of each row of queries, then the shift of each, ``row`` to a head, ``plane`` of
    each. ``pairs`` are of batch entries and kv heads. ``notes`` has a zero for every 64 keys of each pair: 1 is written
    where a gradient is not finite.
    """
    WIDTHS: gl.constexpr = (HEAD, HEAD_REST, VALUE, VALUE_REST)
    dtype: gl.constexpr = q_tma.dtype
    k_tile = gl.allocate_shared_memory(dtype, [1, 64, HEAD], swizzled())
    v_tile = gl.allocate_shared_memory(dtype, [1, 64, VALUE], swizzled())
    q_ring = gl.allocate_shared_memory(dtype, [STAGES, 64, HEAD], swizzled())
    grad_ring = gl.allocate_shared_memory(dtype, [STAGES, 64, VALUE], swizzled())
    k_rest = k_tile
    v_rest = v_tile
    q_rests = q_ring
    grad_rests = grad_ring
    if HEAD_REST > 0:
        k_rest = gl.allocate_shared_memory(dtype, [1, 64, HEAD_REST], swizzled())
        q_rests = gl.allocate_shared_memory(dtype, [STAGES, 64, HEAD_REST], swizzled())
    if VALUE_REST > 0:
        v_rest = gl.allocate_shared_memory(dtype, [1, 64, VALUE_REST], swizzled())
        grad_rests = gl.allocate_shared_memory(dtype, [STAGES, 64, VALUE_REST], swizzled())
    p_tiles = gl.allocate_shared_memory(gl.float32, [2, 64, 64], swizzled(32))
    log_sums = gl.allocate_shared_memory(gl.float32, [STAGES, _SIDE], rows_tma.layout)
    shifts = gl.allocate_shared_memory(gl.float32, [STAGES, _SIDE], rows_tma.layout)
    kv_full = new_barriers(1, 1)
    q_full = new_barriers(STAGES, 1)
    q_empty = new_barriers(STAGES, 2)
    grad_full = new_barriers(STAGES, 1)
    grad_empty = new_barriers(STAGES, 2)
    p_full = new_barriers(2, 1)
    p_empty = new_barriers(2, 1)
    fence_async_shared()
    if DEPENDENT:  # what comes after this waits for the kernel before; the next one may begin to start
        gdc_wait()
        gdc_launch_dependents()

    buffers = (k_tile, k_rest, v_tile, v_rest, q_ring, q_rests, grad_ring, grad_rests, log_sums, shifts, p_tiles)
    barriers = (kv_full, q_full, q_empty, grad_full, grad_empty, p_full, p_empty)
    descriptors = (q_tma, k_tma, v_tma, grad_tma, rows_tma)
    sizes = (pairs, kv_heads, groups, queries, keys, tiles, section, row, plane, scale, left, right)
    # fmt: off
    gl.warp_specialize([
        (_compute, (grad_v, notes, buffers, barriers, sizes, False, VALUE_DIM, WIDTHS, LEFT, RIGHT, STAGES)),
        (_compute, (grad_k, notes, buffers, barriers, sizes, True, HEAD_DIM, WIDTHS, LEFT, RIGHT, STAGES)),
        (_load, (descriptors, buffers, barriers, sizes, WIDTHS, LEFT, RIGHT, STAGES)),
    ], [4, 1], [REGISTERS, 24])
    # fmt: on
