"""Grouped products of codes for sm_90 in Gluon: one warp loads, warpgroups multiply, 64 rows of a tile each.

The ring of blocks and the sums are those of `opmux_triton.scaled_gemm.hopper_kernels`. Each role finds the group of a
tile itself: a program's tiles come in order, so that it goes through the groups once. The grid depends on shapes and
the device alone, and a captured launch serves any counts.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from opmux_triton.gemm.hopper_kernels import tile_of
from opmux_triton.hopper.names import load_block
from opmux_triton.scaled_gemm.hopper_kernels import scale_offsets, times_scales


@gluon.jit
def rows_of_group(offsets, sizes, group, max_m, MASKED: gl.constexpr, PADDED: gl.constexpr):
    """(first, count): the first row of a group among all rows, and how many it has."""
    here = gl.load(offsets + group)
    if MASKED:
        first = group * max_m
        count = gl.minimum(here, max_m)
    elif PADDED:
        first = here
        count = gl.load(sizes + group)
    else:
        first = here
        count = gl.load(offsets + group + 1) - here
    return first, gl.maximum(count, 0)


@gluon.jit
def _load(
    a, b, a_ring, b_ring, full, empty, offsets, sizes, groups, n, max_m, most, blocks,
    MASKED: gl.constexpr, PADDED: gl.constexpr, WARPGROUPS: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The loading warp. Rows past the end of a group are loaded too: what they give is not stored."""
    BLOCK_M: gl.constexpr = WARPGROUPS * ROWS
    program = gl.program_id(0)
    programs = gl.num_programs(0)
    tiles_n = (n + BLOCK_N - 1) // BLOCK_N
    group = program - program - 1
    begin = program - program
    end = program - program
    first = program - program
    count = program - program
    for visit in range((most - program + programs - 1) // programs):
        tile = program + visit * programs
        while (tile >= end) & (group < groups - 1):
            group = group + 1
            first, count = rows_of_group(offsets, sizes, group, max_m, MASKED, PADDED)
            begin = end
            end = end + (count + BLOCK_M - 1) // BLOCK_M * tiles_n
        if tile < end:
            tile_m, tile_n = tile_of(tile - begin, (count + BLOCK_M - 1) // BLOCK_M, tiles_n, GROUP)
            for index in range(blocks):
                used = visit * blocks + index
                stage = used % STAGES
                mbarrier.wait(empty.index(stage), (used // STAGES & 1) ^ 1)
                mbarrier.expect(full.index(stage), WARPGROUPS * a.block_type.nbytes + b.block_type.nbytes)
                for part in gl.static_range(WARPGROUPS):
                    at_m = first + (tile_m * WARPGROUPS + part) * ROWS
                    load_block(a, [at_m, index * BLOCK_K], full.index(stage), a_ring.index(stage * WARPGROUPS + part))
                load_block(b, [group * n + tile_n * BLOCK_N, index * BLOCK_K], full.index(stage), b_ring.index(stage))


@gluon.jit
def _multiply(
    out, a_ring, b_ring, full, empty, offsets, sizes, groups, n, max_m, most, blocks, scales, strides,
    MASKED: gl.constexpr, PADDED: gl.constexpr, BLOCKWISE: gl.constexpr, SIDE: gl.constexpr,
    WARPGROUPS: gl.constexpr, WARPGROUP: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr,
    GROUP: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """A multiplying warpgroup: its rows of every tile. SIDE: how many rows of a weight share a scale."""
    BLOCK_M: gl.constexpr = WARPGROUPS * ROWS
    SHARED: gl.constexpr = SIDE >= BLOCK_N
    a_scale, a_group, a_row, a_col, b_scale, b_group, b_row, b_col = scales
    out_group, out_row, out_col = strides
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 32])
    by_row: gl.constexpr = gl.SliceLayout(1, layout)
    by_column: gl.constexpr = gl.SliceLayout(0, layout)
    program = gl.program_id(0)
    programs = gl.num_programs(0)
    tiles_n = (n + BLOCK_N - 1) // BLOCK_N
    group = program - program - 1
    begin = program - program
    end = program - program
    first = program - program
    count = program - program
    for visit in range((most - program + programs - 1) // programs):
        tile = program + visit * programs
        while (tile >= end) & (group < groups - 1):
            group = group + 1
            first, count = rows_of_group(offsets, sizes, group, max_m, MASKED, PADDED)
            begin = end
            end = end + (count + BLOCK_M - 1) // BLOCK_M * tiles_n
        if tile < end:
            tile_m, tile_n = tile_of(tile - begin, (count + BLOCK_M - 1) // BLOCK_M, tiles_n, GROUP)
            row = (tile_m * WARPGROUPS + WARPGROUP) * ROWS
            column = tile_n * BLOCK_N
            wide_group = group.to(gl.int64)
            a_here = a_scale + wide_group * a_group
            b_here = b_scale + wide_group * b_group
            total = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
            part = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
            start = row if MASKED else first + row
            if BLOCKWISE:
                a_at = scale_offsets(start, start - row + count, a_row, 1, ROWS, by_row)
                b_at = scale_offsets(column, n, b_row, SIDE, BLOCK_N, by_column)
                a_now = gl.load(a_here + a_at)
                b_now = gl.load(b_here + b_at)
            for index in range(blocks):
                used = visit * blocks + index
                stage = used % STAGES
                mbarrier.wait(full.index(stage), used // STAGES & 1)
                a_tile = a_ring.index(stage * WARPGROUPS + WARPGROUP)
                b_tile = b_ring.index(stage).permute((1, 0))
                part = warpgroup_mma(a_tile, b_tile, part, use_acc=False, is_async=True)
                if BLOCKWISE:  # the next block's scales are on their way while this one is multiplied
                    following = gl.minimum(index + 1, blocks - 1)
                    a_next = gl.load(a_here + following * a_col + a_at)
                    b_next = gl.load(b_here + following * b_col + b_at)
                part = warpgroup_mma_wait(0, [part])
                mbarrier.arrive(empty.index(stage), count=1)
                if BLOCKWISE:
                    total += times_scales(part, a_now, b_now, False, SHARED)
                    a_now = a_next
                    b_now = b_next
                else:
                    total += part
            if not BLOCKWISE:  # found here: the scales of all columns would take registers throughout the loop
                a_at = scale_offsets(start, start - row + count, a_row, 1, ROWS, by_row)
                b_at = scale_offsets(column, n, b_row, SIDE, BLOCK_N, by_column)
                total = times_scales(total, gl.load(a_here + a_at), gl.load(b_here + b_at), False, SHARED)
            in_group = row + gl.arange(0, ROWS, layout=by_row)
            at_n = column + gl.arange(0, BLOCK_N, layout=by_column)
            if MASKED:
                at_m = in_group.to(gl.int64)
            else:
                at_m = in_group.to(gl.int64) + first
            where = out + wide_group * out_group + (at_m * out_row)[:, None] + (at_n * out_col)[None, :]
            inside = (in_group < count)[:, None] & (at_n < n)[None, :]
            gl.store(where, total.to(out.dtype.element_ty), mask=inside)


@gluon.jit(do_not_specialize=("groups", "max_m", "most"))
def grouped_products(
    a, b, out, a_scale, b_scale, offsets, sizes, groups, n, max_m, most, blocks,
    a_group, a_row, a_col, b_group, b_row, b_col, out_group, out_row, out_col,
    MASKED: gl.constexpr, PADDED: gl.constexpr, BLOCKWISE: gl.constexpr, SIDE: gl.constexpr, BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr,
    WARPGROUPS: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """``out[rows of g] = a[rows of g] @ b[g].T`` by scales, for every group; ``most`` tiles at the most.

    a and b are descriptors of all rows one below the other. With MASKED, ``offsets`` are the counts of groups that each
    have room for ``max_m`` rows.
    """
    ROWS: gl.constexpr = BLOCK_M // WARPGROUPS
    a_ring = gl.allocate_shared_memory(a.dtype, [STAGES * WARPGROUPS, ROWS, BLOCK_K], a.layout)
    b_ring = gl.allocate_shared_memory(b.dtype, [STAGES, BLOCK_N, BLOCK_K], b.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=WARPGROUPS)
    fence_async_shared()
    scales = (a_scale, a_group, a_row, a_col, b_scale, b_group, b_row, b_col)
    strides = (out_group, out_row, out_col)
    # fmt: off
    if WARPGROUPS == 1:
        gl.warp_specialize([
            (_multiply, (out, a_ring, b_ring, full, empty, offsets, sizes, groups, n, max_m, most, blocks, scales,
                         strides, MASKED, PADDED, BLOCKWISE, SIDE, WARPGROUPS, 0, ROWS, BLOCK_N, GROUP, STAGES)),
            (_load, (a, b, a_ring, b_ring, full, empty, offsets, sizes, groups, n, max_m, most, blocks,
                     MASKED, PADDED, WARPGROUPS, ROWS, BLOCK_N, BLOCK_K, GROUP, STAGES)),
        ], [1], [40])
    elif WARPGROUPS == 2:
        gl.warp_specialize([
            (_multiply, (out, a_ring, b_ring, full, empty, offsets, sizes, groups, n, max_m, most, blocks, scales,
                         strides, MASKED, PADDED, BLOCKWISE, SIDE, WARPGROUPS, 0, ROWS, BLOCK_N, GROUP, STAGES)),
            (_multiply, (out, a_ring, b_ring, full, empty, offsets, sizes, groups, n, max_m, most, blocks, scales,
                         strides, MASKED, PADDED, BLOCKWISE, SIDE, WARPGROUPS, 1, ROWS, BLOCK_N, GROUP, STAGES)),
            (_load, (a, b, a_ring, b_ring, full, empty, offsets, sizes, groups, n, max_m, most, blocks,
                     MASKED, PADDED, WARPGROUPS, ROWS, BLOCK_N, BLOCK_K, GROUP, STAGES)),
        ], [4, 1], [REGISTERS, 40])
    else:
        gl.warp_specialize([
            (_multiply, (out, a_ring, b_ring, full, empty, offsets, sizes, groups, n, max_m, most, blocks, scales,
                         strides, MASKED, PADDED, BLOCKWISE, SIDE, WARPGROUPS, 0, ROWS, BLOCK_N, GROUP, STAGES)),
            (_multiply, (out, a_ring, b_ring, full, empty, offsets, sizes, groups, n, max_m, most, blocks, scales,
                         strides, MASKED, PADDED, BLOCKWISE, SIDE, WARPGROUPS, 1, ROWS, BLOCK_N, GROUP, STAGES)),
            (_multiply, (out, a_ring, b_ring, full, empty, offsets, sizes, groups, n, max_m, most, blocks, scales,
                         strides, MASKED, PADDED, BLOCKWISE, SIDE, WARPGROUPS, 2, ROWS, BLOCK_N, GROUP, STAGES)),
            (_load, (a, b, a_ring, b_ring, full, empty, offsets, sizes, groups, n, max_m, most, blocks,
                     MASKED, PADDED, WARPGROUPS, ROWS, BLOCK_N, BLOCK_K, GROUP, STAGES)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 40])
    # fmt: on
