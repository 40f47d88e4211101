"""Products for sm_90 in Gluon: one warp loads, one to three warpgroups multiply, ROWS rows of a tile each.

The loading warp keeps a ring of blocks of both operands in shared memory filled through TMA, across the tiles of its
program. The warpgroups either share a tile, one below the other, or (ALTERNATE) have whole tiles in turn, so that one
stores a tile while the other multiplies. Results go through shared memory too: they are stored while the next tile is
computed. Tiles that do not fill a round of all programs may be cut along k, see `segment`.
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

from opmux_triton.gemm import kernels
from opmux_triton.hopper.names import load_block, store_block

tile_of = gluon.jit(kernels.tile_of.fn)


@gluon.jit
def visits(work):
    """How many segments this program has."""
    _tiles_m, _tiles_n, _blocks, whole, rest, share, length, _spin = work
    programs = gl.num_programs(0)
    whole_ones = (whole - gl.program_id(0) + programs - 1) // programs
    start = gl.program_id(0) * share
    stop = gl.minimum(start + share, rest * length)
    return whole_ones + gl.maximum((stop + length - 1) // length - start // length, 0)


@gluon.jit
def segment(visit, work):
    """(tile, first, last, before, is_whole): the visit's tile and blocks of k, and how many blocks the ring had before.

    The first ``whole`` tiles are computed whole: program p has tiles p, p + programs, ... The blocks of the others lie
    behind one another on a line, where a tile takes ``length`` places, and program p has ``share`` of them from
    ``p * share`` on, as in `opmux_triton.gemm.kernels.shares`.
    """
    _tiles_m, _tiles_n, blocks, whole, rest, share, length, _spin = work
    programs = gl.num_programs(0)
    program = gl.program_id(0)
    whole_ones = (whole - program + programs - 1) // programs
    tile = program + visit * programs
    first = program * 0
    last = blocks
    before = visit * blocks
    is_whole = visit < whole_ones
    if visit >= whole_ones:
        start = program * share
        stop = gl.minimum(start + share, rest * length)
        cut = start // length + visit - whole_ones
        tile = whole + cut
        first = gl.maximum(start - cut * length, 0)
        last = gl.minimum(stop - cut * length, blocks)
        # A share of more than one tile has tiles without gaps on the line.
        before = whole_ones * blocks + gl.maximum(cut * length - start, 0)
    return tile, first, last, before, is_whole


@gluon.jit
def load_blocks(
    a, b, b_rest, buffers, barriers, work,
    A_ROWS_ARE_K: gl.constexpr, B_ROWS_ARE_K: gl.constexpr, SWAPPED: gl.constexpr, HEIGHT: gl.constexpr,
    ROWS: gl.constexpr, BLOCK_N: gl.constexpr, REST_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """The loading warp. HEIGHT: how many warpgroups' rows a tile has."""
    a_ring, b_ring, b_rest_ring, _c_slots, _c_rest_slots = buffers
    full, empty, _turns = barriers
    tiles_m, tiles_n, _blocks, _whole, _rest, _share, _length, spin = work
    for visit in range(visits(work)):
        tile, first, last, before, _is_whole = segment(visit, work)
        tile_m, tile_n = tile_of(tile, tiles_m, tiles_n, GROUP)
        # Programs with other parts of the large operand begin elsewhere in k: they do not all read the same part of
        # the small one at the same time.
        shift = (tile_m if SWAPPED else tile_n) * spin % (last - first)
        for index in range(last - first):
            at = index + shift
            at = gl.where(at >= last - first, at + first - last, at)
            at_k = (first + at) * BLOCK_K
            stage = (before + index) % STAGES
            mbarrier.wait(empty.index(stage), ((before + index) // STAGES & 1) ^ 1)
            if REST_N > 0:
                mbarrier.expect(
                    full.index(stage), HEIGHT * a.block_type.nbytes + b.block_type.nbytes + b_rest.block_type.nbytes
                )
            else:
                mbarrier.expect(full.index(stage), HEIGHT * a.block_type.nbytes + b.block_type.nbytes)
            for part in gl.static_range(HEIGHT):
                at_m = (tile_m * HEIGHT + part) * ROWS
                a_slot = a_ring.index(stage * HEIGHT + part)
                if A_ROWS_ARE_K:
                    load_block(a, [at_k, at_m], full.index(stage), a_slot)
                else:
                    load_block(a, [at_m, at_k], full.index(stage), a_slot)
            at_n = tile_n * (BLOCK_N + REST_N)
            if B_ROWS_ARE_K:
                load_block(b, [at_k, at_n], full.index(stage), b_ring.index(stage))
            else:
                load_block(b, [at_n, at_k], full.index(stage), b_ring.index(stage))
            if REST_N > 0:
                if B_ROWS_ARE_K:
                    load_block(b_rest, [at_k, at_n + BLOCK_N], full.index(stage), b_rest_ring.index(stage))
                else:
                    load_block(b_rest, [at_n + BLOCK_N, at_k], full.index(stage), b_rest_ring.index(stage))


@gluon.jit
def halves(x):
    """The left and the right half of the columns."""
    return x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute((0, 2, 1)).split()


@gluon.jit
def columns_in_parts(x, PARTS: gl.constexpr):
    """The columns in PARTS parts, from left to right."""
    if PARTS == 1:
        return (x,)
    elif PARTS == 2:
        return halves(x)
    else:
        left, right = halves(x)
        first, second = halves(left)
        third, fourth = halves(right)
        return first, second, third, fourth


@gluon.jit
def with_bias(x, bias, first_m, first_n, m, n, SWAPPED: gl.constexpr):
    """The bias lies along n; along m where the operands are swapped."""
    if SWAPPED:
        at = first_m + gl.arange(0, x.shape[0], layout=gl.SliceLayout(1, x.type.layout))
        return x + gl.load(bias + at, mask=at < m, other=0.0).to(gl.float32)[:, None]
    else:
        at = first_n + gl.arange(0, x.shape[1], layout=gl.SliceLayout(0, x.type.layout))
        return x + gl.load(bias + at, mask=at < n, other=0.0).to(gl.float32)[None, :]


@gluon.jit
def store_tile(
    c, bias, m, n, c_slots, total, strip, column,
    HAS_BIAS: gl.constexpr, SWAPPED: gl.constexpr, PARTS: gl.constexpr, SLOTS: gl.constexpr, WARPGROUP: gl.constexpr,
):  # fmt: skip
    """Begin to store a warpgroup's rows of a tile, the ``strip``-th such rows of C from ``column`` on."""
    ROWS: gl.constexpr = total.shape[0]
    WIDTH: gl.constexpr = total.shape[1] // PARTS
    parts = columns_in_parts(total, PARTS)
    first_m = strip * ROWS
    for index in gl.static_range(PARTS):
        first_n = column + index * WIDTH
        part = gl.convert_layout(parts[index], gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16]))
        if HAS_BIAS:
            part = with_bias(part, bias, first_m, first_n, m, n, SWAPPED)
        slot = c_slots.index(WARPGROUP * SLOTS + index % SLOTS)
        tma.store_wait(SLOTS - 1)
        if SWAPPED:
            slot.permute((1, 0)).store(part.to(c.dtype))
        else:
            slot.store(part.to(c.dtype))
        fence_async_shared()
        if SWAPPED:
            store_block(c, [first_n, first_m], slot)
        else:
            store_block(c, [first_m, first_n], slot)


@gluon.jit
def store_partial(to, total, PARTS: gl.constexpr):
    """Store a warpgroup's rows of a tile's sums over a part of k, rows behind one another."""
    ROWS: gl.constexpr = total.shape[0]
    WIDTH: gl.constexpr = total.shape[1] // PARTS
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    parts = columns_in_parts(total, PARTS)
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, layout))
    for index in gl.static_range(PARTS):
        part = gl.convert_layout(parts[index], layout)
        gl.store(to + row[:, None] * (WIDTH * PARTS) + (column + index * WIDTH)[None, :], part)


@gluon.jit
def _multiply(
    c, c_rest, bias, partial, m, n, buffers, barriers, work,
    A_ROWS_ARE_K: gl.constexpr, B_ROWS_ARE_K: gl.constexpr, HAS_BIAS: gl.constexpr, SWAPPED: gl.constexpr,
    ALTERNATE: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, REST_N: gl.constexpr, GROUP: gl.constexpr,
    STAGES: gl.constexpr, PARTS: gl.constexpr, SLOTS: gl.constexpr, HEIGHT: gl.constexpr,
    WARPGROUPS: gl.constexpr, WARPGROUP: gl.constexpr,
):  # fmt: skip
    """A multiplying warpgroup: its rows of every segment, or with ALTERNATE all rows of every WARPGROUPS-th one."""
    a_ring, b_ring, b_rest_ring, c_slots, c_rest_slots = buffers
    full, empty, turns = barriers
    tiles_m, tiles_n, _blocks, whole, _rest, _share, _length, _spin = work
    STEP: gl.constexpr = WARPGROUPS if ALTERNATE else 1
    FIRST: gl.constexpr = WARPGROUP if ALTERNATE else 0
    PART: gl.constexpr = 0 if ALTERNATE else WARPGROUP
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    rest_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, REST_N if REST_N > 0 else 16, 16])
    for visit in range(FIRST, visits(work), STEP):
        tile, first, last, before, is_whole = segment(visit, work)
        tile_m, tile_n = tile_of(tile, tiles_m, tiles_n, GROUP)
        total = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
        if REST_N > 0:
            total_rest = gl.zeros([ROWS, REST_N], gl.float32, rest_layout)
        if ALTERNATE:  # the blocks of the ring are taken in order: a wait knows a phase from the one before alone
            turn = visit // WARPGROUPS
            mbarrier.wait(turns.index(WARPGROUP), (turn & 1) ^ (1 if WARPGROUP == 0 else 0))
        for index in range(last - first):
            used = before + index
            stage = used % STAGES
            mbarrier.wait(full.index(stage), used // STAGES & 1)
            a_tile = a_ring.index(stage * HEIGHT + PART)
            if A_ROWS_ARE_K:
                a_tile = a_tile.permute((1, 0))
            b_tile = b_ring.index(stage)
            if not B_ROWS_ARE_K:
                b_tile = b_tile.permute((1, 0))
            total = warpgroup_mma(a_tile, b_tile, total, is_async=True)
            if REST_N > 0:
                b_tile = b_rest_ring.index(stage)
                if not B_ROWS_ARE_K:
                    b_tile = b_tile.permute((1, 0))
                total_rest = warpgroup_mma(a_tile, b_tile, total_rest, is_async=True)
                total, total_rest = warpgroup_mma_wait(2, [total, total_rest])
            else:
                total = warpgroup_mma_wait(1, [total])
            mbarrier.arrive(empty.index((used + STAGES - 1) % STAGES), count=1, pred=index > 0)
        if ALTERNATE:
            mbarrier.arrive(turns.index((WARPGROUP + 1) % WARPGROUPS), count=1)
        if REST_N > 0:
            total, total_rest = warpgroup_mma_wait(0, [total, total_rest])
        else:
            total = warpgroup_mma_wait(0, [total])
        mbarrier.arrive(empty.index((before + last - first - 1) % STAGES), count=1)
        strip = tile_m * HEIGHT + PART
        column = tile_n * (BLOCK_N + REST_N)
        if partial is None:
            store_tile(c, bias, m, n, c_slots, total, strip, column,
                        HAS_BIAS, SWAPPED, PARTS, SLOTS, WARPGROUP)  # fmt: skip
            if REST_N > 0:
                store_tile(c_rest, bias, m, n, c_rest_slots, total_rest, strip, column + BLOCK_N,
                            HAS_BIAS, SWAPPED, 1, 1, WARPGROUP)  # fmt: skip
        elif is_whole:
            store_tile(c, bias, m, n, c_slots, total, strip, column,
                        HAS_BIAS, SWAPPED, PARTS, SLOTS, WARPGROUP)  # fmt: skip
            if REST_N > 0:
                store_tile(c_rest, bias, m, n, c_rest_slots, total_rest, strip, column + BLOCK_N,
                            HAS_BIAS, SWAPPED, 1, 1, WARPGROUP)  # fmt: skip
        else:
            to = partial + (gl.program_id(0) + tile - whole).to(gl.int64) * (HEIGHT * ROWS * (BLOCK_N + REST_N))
            store_partial(to + PART * (ROWS * BLOCK_N), total, PARTS)
            if REST_N > 0:  # behind the rows of all warpgroups
                store_partial(to + HEIGHT * ROWS * BLOCK_N + PART * (ROWS * REST_N), total_rest, 1)
    tma.store_wait(0)


_PER_CALL = ("m", "n", "tiles_m", "tiles_n", "blocks", "whole", "rest", "share", "length", "spin")


@gluon.jit(do_not_specialize=_PER_CALL)
def products(
    a, b, b_rest, c, c_rest, bias, partial, m, n, tiles_m, tiles_n, blocks, whole, rest, share, length, spin,
    A_ROWS_ARE_K: gl.constexpr, B_ROWS_ARE_K: gl.constexpr, HAS_BIAS: gl.constexpr, SWAPPED: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, REST_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP: gl.constexpr,
    STAGES: gl.constexpr, PARTS: gl.constexpr, SLOTS: gl.constexpr, WARPGROUPS: gl.constexpr, ALTERNATE: gl.constexpr,
    REGISTERS: gl.constexpr, DEPENDENT: gl.constexpr,
):  # fmt: skip
    """The first ``whole`` tiles of C, and shares of the blocks of k of the other ``rest``, see `segment`.

    A tile is BLOCK_N columns wide and REST_N more, which have blocks, sums and slots of their own. ``partial`` is None
    where all tiles are whole. A warpgroup stores the first BLOCK_N columns in PARTS parts through SLOTS buffers. A
    thread of a multiplying warpgroup gets REGISTERS registers.
    """
    HEIGHT: gl.constexpr = 1 if ALTERNATE else WARPGROUPS
    ROWS: gl.constexpr = BLOCK_M // HEIGHT
    WIDTH: gl.constexpr = BLOCK_N // PARTS
    a_shape: gl.constexpr = [STAGES * HEIGHT, BLOCK_K, ROWS] if A_ROWS_ARE_K else [STAGES * HEIGHT, ROWS, BLOCK_K]
    b_shape: gl.constexpr = [STAGES, BLOCK_K, BLOCK_N] if B_ROWS_ARE_K else [STAGES, BLOCK_N, BLOCK_K]
    c_shape: gl.constexpr = [WARPGROUPS * SLOTS, WIDTH, ROWS] if SWAPPED else [WARPGROUPS * SLOTS, ROWS, WIDTH]
    a_ring = gl.allocate_shared_memory(a.dtype, a_shape, a.layout)
    b_ring = gl.allocate_shared_memory(b.dtype, b_shape, b.layout)
    c_slots = gl.allocate_shared_memory(c.dtype, c_shape, c.layout)
    if REST_N > 0:
        b_rest_shape: gl.constexpr = [STAGES, BLOCK_K, REST_N] if B_ROWS_ARE_K else [STAGES, REST_N, BLOCK_K]
        c_rest_shape: gl.constexpr = [WARPGROUPS, REST_N, ROWS] if SWAPPED else [WARPGROUPS, ROWS, REST_N]
        b_rest_ring = gl.allocate_shared_memory(b.dtype, b_rest_shape, b_rest.layout)
        c_rest_slots = gl.allocate_shared_memory(c.dtype, c_rest_shape, c_rest.layout)
    else:
        b_rest_ring = b_ring
        c_rest_slots = c_slots
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [WARPGROUPS, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=HEIGHT)
    for warpgroup in gl.static_range(WARPGROUPS):
        mbarrier.init(turns.index(warpgroup), count=1)
    fence_async_shared()
    if DEPENDENT:  # what comes after this waits for the kernel before; the next one may begin to start
        gdc_wait()
        gdc_launch_dependents()

    buffers = (a_ring, b_ring, b_rest_ring, c_slots, c_rest_slots)
    barriers = (full, empty, turns)
    work = (tiles_m, tiles_n, blocks, whole, rest, share, length, spin)
    # fmt: off
    if WARPGROUPS == 1:
        gl.warp_specialize([
            (_multiply, (c, c_rest, bias, partial, m, n, buffers, barriers, work,
                         A_ROWS_ARE_K, B_ROWS_ARE_K, HAS_BIAS, SWAPPED, ALTERNATE, ROWS, BLOCK_N, REST_N, GROUP,
                         STAGES, PARTS, SLOTS, HEIGHT, WARPGROUPS, 0)),
            (load_blocks, (a, b, b_rest, buffers, barriers, work,
                            A_ROWS_ARE_K, B_ROWS_ARE_K, SWAPPED, HEIGHT, ROWS, BLOCK_N, REST_N, BLOCK_K, GROUP,
                            STAGES)),
        ], [1], [24])
    elif WARPGROUPS == 2:
        gl.warp_specialize([
            (_multiply, (c, c_rest, bias, partial, m, n, buffers, barriers, work,
                         A_ROWS_ARE_K, B_ROWS_ARE_K, HAS_BIAS, SWAPPED, ALTERNATE, ROWS, BLOCK_N, REST_N, GROUP,
                         STAGES, PARTS, SLOTS, HEIGHT, WARPGROUPS, 0)),
            (_multiply, (c, c_rest, bias, partial, m, n, buffers, barriers, work,
                         A_ROWS_ARE_K, B_ROWS_ARE_K, HAS_BIAS, SWAPPED, ALTERNATE, ROWS, BLOCK_N, REST_N, GROUP,
                         STAGES, PARTS, SLOTS, HEIGHT, WARPGROUPS, 1)),
            (load_blocks, (a, b, b_rest, buffers, barriers, work,
                            A_ROWS_ARE_K, B_ROWS_ARE_K, SWAPPED, HEIGHT, ROWS, BLOCK_N, REST_N, BLOCK_K, GROUP,
                            STAGES)),
        ], [4, 1], [REGISTERS, 24])
    else:
        gl.warp_specialize([
            (_multiply, (c, c_rest, bias, partial, m, n, buffers, barriers, work,
                         A_ROWS_ARE_K, B_ROWS_ARE_K, HAS_BIAS, SWAPPED, ALTERNATE, ROWS, BLOCK_N, REST_N, GROUP,
                         STAGES, PARTS, SLOTS, HEIGHT, WARPGROUPS, 0)),
            (_multiply, (c, c_rest, bias, partial, m, n, buffers, barriers, work,
                         A_ROWS_ARE_K, B_ROWS_ARE_K, HAS_BIAS, SWAPPED, ALTERNATE, ROWS, BLOCK_N, REST_N, GROUP,
                         STAGES, PARTS, SLOTS, HEIGHT, WARPGROUPS, 1)),
            (_multiply, (c, c_rest, bias, partial, m, n, buffers, barriers, work,
                         A_ROWS_ARE_K, B_ROWS_ARE_K, HAS_BIAS, SWAPPED, ALTERNATE, ROWS, BLOCK_N, REST_N, GROUP,
                         STAGES, PARTS, SLOTS, HEIGHT, WARPGROUPS, 2)),
            (load_blocks, (a, b, b_rest, buffers, barriers, work,
                            A_ROWS_ARE_K, B_ROWS_ARE_K, SWAPPED, HEIGHT, ROWS, BLOCK_N, REST_N, BLOCK_K, GROUP,
                            STAGES)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 24])
    # fmt: on
