"""The loading warp of `hopper_kernels`."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from opmux_triton.attention.backward.hopper_tile_kernels import (
    masked_start,
    query_blocks,
    share_of,
    shared_place_of,
)
from opmux_triton.hopper.names import load_block

KEYS: gl.constexpr = gl.constexpr(128)
"""Keys of a program."""


@gluon.jit
def _load_step(
    used, entry, head, at, q_tma, grad_tma, rows_tma, buffers, barriers, heads, row, plane,
    ROWS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """One block of queries, of gradients, and of their numbers."""
    _k_tiles, _v_tiles, q_ring, grad_ring, log_sums, shifts, _moved = buffers
    _kv_full, q_full, q_empty, grad_full, grad_empty, _shared = barriers
    stage = used % STAGES
    phase = (used // STAGES & 1) ^ 1
    number = (entry * heads + head) * row + at
    mbarrier.wait(q_empty.index(stage), phase)
    mbarrier.expect(q_full.index(stage), q_tma.block_type.nbytes + 4 * ROWS)
    load_block(q_tma, [entry, at, head, 0], q_full.index(stage), q_ring.index(stage))
    load_block(rows_tma, [number], q_full.index(stage), log_sums.index(stage))
    mbarrier.wait(grad_empty.index(stage), phase)
    mbarrier.expect(grad_full.index(stage), grad_tma.block_type.nbytes + 4 * ROWS)
    load_block(grad_tma, [entry, at, head, 0], grad_full.index(stage), grad_ring.index(stage))
    load_block(rows_tma, [number + plane], grad_full.index(stage), shifts.index(stage))


@gluon.jit
def load(
    q_tma, k_tma, v_tma, grad_tma, rows_tma, buffers, barriers, sizes,
    ROWS: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The loading warp."""
    k_tiles, v_tiles, _q_ring, _grad_ring, _log_sums, _shifts, _moved = buffers
    kv_full, _q_full, _q_empty, _grad_full, _grad_empty, _shared = barriers
    (
        pairs, kv_heads, groups, shares, queries, keys, tiles, section, row, plane, _panels, _scale, _inverse, left,
        right,
    ) = sizes  # fmt: skip
    tile, pair, share = shared_place_of(gl.program_id(0), tiles, pairs, shares, section)
    entry = pair // kv_heads
    kv_head = pair % kv_heads
    begin, before, masked, full_begin, full_end, count = query_blocks(
        tile, queries, keys, left, right, KEYS, ROWS, LEFT, RIGHT
    )
    mbarrier.expect(kv_full.index(0), 4 * k_tma.block_type.nbytes)
    for half in gl.static_range(2):
        start = tile * KEYS + half * 64
        load_block(k_tma, [entry, start, kv_head, 0], kv_full.index(0), k_tiles.index(half))
        load_block(v_tma, [entry, start, kv_head, 0], kv_full.index(0), v_tiles.index(half))
    first, steps = share_of(groups * masked, share, shares)
    for used in range(steps):
        step = first + used
        at = masked_start(step % masked, begin, before, full_end, ROWS)
        head = kv_head * groups + step // masked
        _load_step(
            used, entry, head, at, q_tma, grad_tma, rows_tma, buffers, barriers, kv_heads * groups, row, plane,
            ROWS, STAGES,
        )  # fmt: skip
    first, full_steps = share_of(groups * count, share, shares)
    for used in range(full_steps):
        step = first + used
        at = full_begin + step % count * ROWS
        head = kv_head * groups + step // count
        _load_step(
            steps + used, entry, head, at, q_tma, grad_tma, rows_tma, buffers, barriers, kv_heads * groups,
            row, plane, ROWS, STAGES,
        )  # fmt: skip
