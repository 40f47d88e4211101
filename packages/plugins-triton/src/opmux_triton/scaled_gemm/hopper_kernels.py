"""Scaled products for sm_90 in Gluon: one warp loads, one to three warpgroups multiply, 64 rows of a tile each.

The ring of blocks, the order of tiles and how results are stored are those of `opmux_triton.gemm.hopper_kernels`. The
matrix units keep about 14 bits of a sum of 8-bit floats, so each block of 128 columns is summed alone and float32 takes
it over, multiplied by its scales where there are scales for blocks: while one warpgroup does so, the others multiply.
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

from opmux_triton.gemm.hopper_kernels import load_blocks, segment, store_partial, store_tile, tile_of, visits


@gluon.jit
def scale_offsets(first, size, row, SIDE: gl.constexpr, LENGTH: gl.constexpr, layout: gl.constexpr):
    """Where the scales of LENGTH rows of an operand from ``first`` on begin; SIDE rows share theirs.

    One offset where all rows share it. In 32 bits: they are held in registers while blocks are multiplied.
    """
    if SIDE >= LENGTH:
        return gl.minimum(first, size - 1) // SIDE * row
    else:
        return gl.minimum(first + gl.arange(0, LENGTH, layout=layout), size - 1) // SIDE * row


@gluon.jit
def times_scales(values, a, b, A_SHARED: gl.constexpr, B_SHARED: gl.constexpr):
    """A tile's sums by the scales of its rows and its columns; those that are shared are scalars."""
    if A_SHARED and B_SHARED:
        return values * (a * b)
    elif B_SHARED:
        return values * (a * b)[:, None]
    elif A_SHARED:
        return values * (a * b)[None, :]
    else:
        return values * a[:, None] * b[None, :]


@gluon.jit
def _block_product(
    a_ring, b_ring, full, empty, used, part, STAGES: gl.constexpr, WARPGROUPS: gl.constexpr, WARPGROUP: gl.constexpr
):  # fmt: skip
    """The product of the ``used``-th block of the ring, for one warpgroup; it takes the place of ``part``."""
    stage = used % STAGES
    mbarrier.wait(full.index(stage), used // STAGES & 1)
    a_tile = a_ring.index(stage * WARPGROUPS + WARPGROUP)
    b_tile = b_ring.index(stage).permute((1, 0))
    part = warpgroup_mma(a_tile, b_tile, part, use_acc=False, is_async=True)
    part = warpgroup_mma_wait(0, [part])
    mbarrier.arrive(empty.index(stage), count=1)
    return part


@gluon.jit
def _scaled_blocks(
    total, a_ring, b_ring, full, empty, before, first, last, row, column, m, n, scales,
    A_SIDE: gl.constexpr, B_SIDE: gl.constexpr, STAGES: gl.constexpr, WARPGROUPS: gl.constexpr,
    WARPGROUP: gl.constexpr,
):  # fmt: skip
    """The sums of the blocks from ``first`` up to ``last``, each by its scales.

    Scales are loaded two blocks ahead, in turns into variables of their own: moving one to the other would wait for
    its load. So would a scalar, which the compiler moves to a uniform register: a scale that all columns share is
    loaded for each row, at an offset that it cannot see to be 0.
    """
    a_scale, a_row, a_col, b_scale, b_row, b_col, _added, _added_row = scales
    ROWS: gl.constexpr = total.shape[0]
    COLUMNS: gl.constexpr = total.shape[1]
    A_SHARED: gl.constexpr = A_SIDE >= ROWS
    B_SHARED: gl.constexpr = B_SIDE >= COLUMNS
    layout: gl.constexpr = total.type.layout
    by_row: gl.constexpr = gl.SliceLayout(1, layout)
    by_column: gl.constexpr = gl.SliceLayout(0, layout)
    a_at = scale_offsets(row, m, a_row, A_SIDE, ROWS, by_row)
    b_at = scale_offsets(column, n, b_row, B_SIDE, COLUMNS, by_column)
    if B_SHARED and not A_SHARED:
        b_at = b_at + gl.arange(0, ROWS, layout=by_row) // (m + ROWS)
    part = gl.zeros([ROWS, COLUMNS], gl.float32, layout)
    following = gl.minimum(first + 1, last - 1)
    a_even = gl.load(a_scale + first * a_col + a_at)
    b_even = gl.load(b_scale + first * b_col + b_at)
    a_odd = gl.load(a_scale + following * a_col + a_at)
    b_odd = gl.load(b_scale + following * b_col + b_at)
    for pair in range((last - first) // 2):
        used = before + 2 * pair
        part = _block_product(a_ring, b_ring, full, empty, used, part, STAGES, WARPGROUPS, WARPGROUP)
        total += times_scales(part, a_even, b_even, A_SHARED, B_SHARED)
        following = gl.minimum(first + 2 * pair + 2, last - 1)
        a_even = gl.load(a_scale + following * a_col + a_at)
        b_even = gl.load(b_scale + following * b_col + b_at)
        part = _block_product(a_ring, b_ring, full, empty, used + 1, part, STAGES, WARPGROUPS, WARPGROUP)
        total += times_scales(part, a_odd, b_odd, A_SHARED, B_SHARED)
        following = gl.minimum(first + 2 * pair + 3, last - 1)
        a_odd = gl.load(a_scale + following * a_col + a_at)
        b_odd = gl.load(b_scale + following * b_col + b_at)
    if (last - first) % 2 != 0:
        used = before + last - first - 1
        part = _block_product(a_ring, b_ring, full, empty, used, part, STAGES, WARPGROUPS, WARPGROUP)
        total += times_scales(part, a_even, b_even, A_SHARED, B_SHARED)
    return total


@gluon.jit
def _multiply(
    c, bias, partial, m, n, buffers, barriers, work, scales,
    BLOCKWISE: gl.constexpr, PROMOTE: gl.constexpr, A_SIDE: gl.constexpr, B_SIDE: gl.constexpr,
    HAS_BIAS: gl.constexpr, SWAPPED: gl.constexpr, ADDED: gl.constexpr, AHEAD: gl.constexpr, ROWS: gl.constexpr,
    BLOCK_N: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr, PARTS: gl.constexpr, SLOTS: gl.constexpr,
    WARPGROUPS: gl.constexpr, WARPGROUP: gl.constexpr,
):  # fmt: skip
    """A multiplying warpgroup: its rows of every segment."""
    a_ring, b_ring, _b_rest_ring, c_slots, _c_rest_slots = buffers
    full, empty, _turns = barriers
    tiles_m, tiles_n, _blocks, whole, _rest, _share, _length, _spin = work
    a_scale, a_row, a_col, b_scale, b_row, b_col, added, added_row = scales
    A_SHARED: gl.constexpr = A_SIDE >= ROWS
    B_SHARED: gl.constexpr = B_SIDE >= BLOCK_N
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 32])
    for visit in range(visits(work)):
        tile, first, last, before, is_whole = segment(visit, work)
        tile_m, tile_n = tile_of(tile, tiles_m, tiles_n, GROUP)
        strip = tile_m * WARPGROUPS + WARPGROUP
        column = tile_n * BLOCK_N
        total = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
        if PROMOTE and BLOCKWISE and AHEAD:
            total = _scaled_blocks(
                total, a_ring, b_ring, full, empty, before, first, last, strip * ROWS, column, m, n, scales,
                A_SIDE, B_SIDE, STAGES, WARPGROUPS, WARPGROUP,
            )  # fmt: skip
        elif PROMOTE:
            part = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
            if BLOCKWISE:
                a_at = scale_offsets(strip * ROWS, m, a_row, A_SIDE, ROWS, gl.SliceLayout(1, layout))
                b_at = scale_offsets(column, n, b_row, B_SIDE, BLOCK_N, gl.SliceLayout(0, layout))
                a_now = gl.load(a_scale + first * a_col + a_at)
                b_now = gl.load(b_scale + first * b_col + b_at)
            for index in range(last - first):
                used = before + index
                stage = used % STAGES
                mbarrier.wait(full.index(stage), used // STAGES & 1)
                a_tile = a_ring.index(stage * WARPGROUPS + WARPGROUP)
                b_tile = b_ring.index(stage).permute((1, 0))
                part = warpgroup_mma(a_tile, b_tile, part, use_acc=False, is_async=True)
                if BLOCKWISE:  # the next block's scales are on their way while this one is multiplied
                    following = gl.minimum(first + index + 1, last - 1)
                    a_next = gl.load(a_scale + following * a_col + a_at)
                    b_next = gl.load(b_scale + following * b_col + b_at)
                part = warpgroup_mma_wait(0, [part])
                mbarrier.arrive(empty.index(stage), count=1)
                if BLOCKWISE:
                    total += times_scales(part, a_now, b_now, A_SHARED, B_SHARED)
                    a_now = a_next
                    b_now = b_next
                else:
                    total += part
        else:
            for index in range(last - first):
                used = before + index
                stage = used % STAGES
                mbarrier.wait(full.index(stage), used // STAGES & 1)
                a_tile = a_ring.index(stage * WARPGROUPS + WARPGROUP)
                b_tile = b_ring.index(stage).permute((1, 0))
                total = warpgroup_mma(a_tile, b_tile, total, is_async=True)
                total = warpgroup_mma_wait(1, [total])
                mbarrier.arrive(empty.index((used + STAGES - 1) % STAGES), count=1, pred=index > 0)
            total = warpgroup_mma_wait(0, [total])
            mbarrier.arrive(empty.index((before + last - first - 1) % STAGES), count=1)
        if not BLOCKWISE:
            a_at = scale_offsets(strip * ROWS, m, a_row, A_SIDE, ROWS, gl.SliceLayout(1, layout))
            b_at = scale_offsets(column, n, b_row, B_SIDE, BLOCK_N, gl.SliceLayout(0, layout))
            total = times_scales(total, gl.load(a_scale + a_at), gl.load(b_scale + b_at), A_SHARED, B_SHARED)
        if ADDED:
            total = _with_added(total, added, added_row, strip * ROWS, column, m, n, SWAPPED)
        if partial is None:
            store_tile(c, bias, m, n, c_slots, total, strip, column, HAS_BIAS, SWAPPED, PARTS, SLOTS, WARPGROUP)
        elif is_whole:
            store_tile(c, bias, m, n, c_slots, total, strip, column, HAS_BIAS, SWAPPED, PARTS, SLOTS, WARPGROUP)
        else:
            to = partial + (gl.program_id(0) + tile - whole).to(gl.int64) * (WARPGROUPS * ROWS * BLOCK_N)
            store_partial(to + WARPGROUP * (ROWS * BLOCK_N), total, PARTS)
    tma.store_wait(0)


@gluon.jit
def _with_added(total, added, added_row, first_m, first_n, m, n, SWAPPED: gl.constexpr):
    """Add what lies at the tile's place of a float32 matrix, whose columns are next to one another."""
    at_m = (first_m + gl.arange(0, total.shape[0], layout=gl.SliceLayout(1, total.type.layout)))[:, None]
    at_n = (first_n + gl.arange(0, total.shape[1], layout=gl.SliceLayout(0, total.type.layout)))[None, :]
    inside = (at_m < m) & (at_n < n)
    if SWAPPED:
        where = at_n.to(gl.int64) * added_row + at_m
    else:
        where = at_m.to(gl.int64) * added_row + at_n
    return total + gl.load(added + where, mask=inside, other=0.0)


_PER_CALL = ("m", "n", "tiles_m", "tiles_n", "blocks", "whole", "rest", "share", "length")


@gluon.jit(do_not_specialize=_PER_CALL)
def scaled_products(
    a, b, c, bias, partial, a_scale, b_scale, added, m, n, tiles_m, tiles_n, blocks, whole, rest, share, length,
    a_row, a_col, b_row, b_col, added_row,
    BLOCKWISE: gl.constexpr, PROMOTE: gl.constexpr, A_SIDE: gl.constexpr, B_SIDE: gl.constexpr,
    HAS_BIAS: gl.constexpr, SWAPPED: gl.constexpr, ADDED: gl.constexpr, AHEAD: gl.constexpr, BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr, PARTS: gl.constexpr,
    SLOTS: gl.constexpr, WARPGROUPS: gl.constexpr, REGISTERS: gl.constexpr, DEPENDENT: gl.constexpr,
):  # fmt: skip
    """The first ``whole`` tiles of C, and shares of the blocks of k of the other ``rest``, see `segment`.

    ``partial`` is None where all tiles are whole, ``added`` where nothing is added. A thread of a multiplying warpgroup
    gets REGISTERS registers.
    """
    ROWS: gl.constexpr = BLOCK_M // WARPGROUPS
    WIDTH: gl.constexpr = BLOCK_N // PARTS
    c_shape: gl.constexpr = [WARPGROUPS * SLOTS, WIDTH, ROWS] if SWAPPED else [WARPGROUPS * SLOTS, ROWS, WIDTH]
    a_ring = gl.allocate_shared_memory(a.dtype, [STAGES * WARPGROUPS, ROWS, BLOCK_K], a.layout)
    b_ring = gl.allocate_shared_memory(b.dtype, [STAGES, BLOCK_N, BLOCK_K], b.layout)
    c_slots = gl.allocate_shared_memory(c.dtype, c_shape, c.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=WARPGROUPS)
    fence_async_shared()
    if DEPENDENT:  # what comes after this waits for the kernel before; the next one may begin to start
        gdc_wait()
        gdc_launch_dependents()

    buffers = (a_ring, b_ring, b_ring, c_slots, c_slots)
    barriers = (full, empty, full)
    work = (tiles_m, tiles_n, blocks, whole, rest, share, length, 0)
    scales = (a_scale, a_row, a_col, b_scale, b_row, b_col, added, added_row)
    # fmt: off
    if WARPGROUPS == 1:
        gl.warp_specialize([
            (_multiply, (c, bias, partial, m, n, buffers, barriers, work, scales,
                         BLOCKWISE, PROMOTE, A_SIDE, B_SIDE, HAS_BIAS, SWAPPED, ADDED, AHEAD, ROWS, BLOCK_N, GROUP,
                         STAGES, PARTS, SLOTS, WARPGROUPS, 0)),
            (load_blocks, (a, b, b, buffers, barriers, work,
                           False, False, SWAPPED, WARPGROUPS, ROWS, BLOCK_N, 0, BLOCK_K, GROUP, STAGES)),
        ], [1], [24])
    elif WARPGROUPS == 2:
        gl.warp_specialize([
            (_multiply, (c, bias, partial, m, n, buffers, barriers, work, scales,
                         BLOCKWISE, PROMOTE, A_SIDE, B_SIDE, HAS_BIAS, SWAPPED, ADDED, AHEAD, ROWS, BLOCK_N, GROUP,
                         STAGES, PARTS, SLOTS, WARPGROUPS, 0)),
            (_multiply, (c, bias, partial, m, n, buffers, barriers, work, scales,
                         BLOCKWISE, PROMOTE, A_SIDE, B_SIDE, HAS_BIAS, SWAPPED, ADDED, AHEAD, ROWS, BLOCK_N, GROUP,
                         STAGES, PARTS, SLOTS, WARPGROUPS, 1)),
            (load_blocks, (a, b, b, buffers, barriers, work,
                           False, False, SWAPPED, WARPGROUPS, ROWS, BLOCK_N, 0, BLOCK_K, GROUP, STAGES)),
        ], [4, 1], [REGISTERS, 24])
    else:
        gl.warp_specialize([
            (_multiply, (c, bias, partial, m, n, buffers, barriers, work, scales,
                         BLOCKWISE, PROMOTE, A_SIDE, B_SIDE, HAS_BIAS, SWAPPED, ADDED, AHEAD, ROWS, BLOCK_N, GROUP,
                         STAGES, PARTS, SLOTS, WARPGROUPS, 0)),
            (_multiply, (c, bias, partial, m, n, buffers, barriers, work, scales,
                         BLOCKWISE, PROMOTE, A_SIDE, B_SIDE, HAS_BIAS, SWAPPED, ADDED, AHEAD, ROWS, BLOCK_N, GROUP,
                         STAGES, PARTS, SLOTS, WARPGROUPS, 1)),
            (_multiply, (c, bias, partial, m, n, buffers, barriers, work, scales,
                         BLOCKWISE, PROMOTE, A_SIDE, B_SIDE, HAS_BIAS, SWAPPED, ADDED, AHEAD, ROWS, BLOCK_N, GROUP,
                         STAGES, PARTS, SLOTS, WARPGROUPS, 2)),
            (load_blocks, (a, b, b, buffers, barriers, work,
                           False, False, SWAPPED, WARPGROUPS, ROWS, BLOCK_N, 0, BLOCK_K, GROUP, STAGES)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 24])
    # fmt: on
