"""Kernels of attention's backward: statistics of the rows, then gradients of keys and values, and of queries.

The scores are computed twice, once by the kernel that owns a tile of keys and sums over the queries, once by the one
that owns a tile of queries and sums over the keys: seven matrix products where five would do, but no sum is shared
between programs, so the result is the same in every run. A program of the first kind goes through all query heads of
its kv head, so their gradients need no second sum either. With ``S`` the scores and ``P`` the probabilities:

    keys and values: S' = K Q',  dP' = V dO',  dV += P' dO,  dK += dS' Q  (rows are keys)
    queries:         S = Q K',   dP = dO V',   dQ += dS K                 (rows are queries)

What lies in a masked-out place must not reach a result, but in a product of tiles 0 * NaN is NaN. Cleaning operands
costs registers that the fast kernels need, and a leak shows in the result: so they note which of their tiles are not
finite, and the same kernels run again with REPAIR, for the noted tiles only, on operands that are cleaned at the edges
of the mask.

Source: Dao, FlashAttention-2 (2023), section 3.1.2.
"""

import triton
import triton.language as tl

from opmux_triton.dependent_launch import await_predecessor
from opmux_triton.rounding import rounded
from opmux_triton.scoring.base2 import LOG2_E
from opmux_triton.scoring.masks import attends, key_limits


@triton.jit
def capped(x):
    """``tanh(x)`` to about two ulp: a polynomial near zero (least squares over ``x**2``), else by the exponential."""
    size = tl.abs(x)
    square = x * x
    near = 0.020626291632652283 + square * -0.005691985599696636
    near = -0.05373531952500343 + square * near
    near = 0.13331381976604462 + square * near
    near = -0.3333328068256378 + square * near
    near = x + x * square * near
    far = 1.0 - 2.0 / (tl.exp2(size * (2.0 * LOG2_E)) + 1.0)
    return tl.where(size < 0.625, near, tl.where(x < 0, -far, far))


@triton.jit
def product(a, b, PRECISION: tl.constexpr, UPCAST: tl.constexpr):
    """``a @ b`` in float32; upcast where an interpreter cannot multiply 16-bit operands."""
    if UPCAST:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def finite(x):
    """x with 0 for NaN and Inf."""
    return tl.where(tl.abs(x.to(tl.float32)) < float("inf"), x, 0.0).to(x.dtype)


@triton.jit
def sequence(batch, cu_q, cu_k, queries, keys, VARLEN: tl.constexpr):
    """Where a sequence begins and how long it is: (batch index, first query, queries, first key, keys)."""
    entry = batch.to(tl.int64)
    first_query = batch * 0
    first_key = batch * 0
    if VARLEN:
        entry = entry * 0
        first_query = tl.load(cu_q + batch)
        queries = tl.load(cu_q + batch + 1) - first_query
        first_key = tl.load(cu_k + batch)
        keys = tl.load(cu_k + batch + 1) - first_key
    return entry, first_query, queries, first_key, keys


@triton.jit
def origin(base, entry, first, head, batch_stride, stride, head_stride):
    """Where the rows of a head of a sequence begin."""
    return base + entry * batch_stride + first.to(tl.int64) * stride + head.to(tl.int64) * head_stride


@triton.jit
def tile_places(base, start, stride, BLOCK_DIM: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """Pointers to ``(BLOCK, BLOCK_DIM)`` from row ``start``; offsets within a tile pass 32 bits only where WIDE."""
    row = tl.arange(0, BLOCK)
    if WIDE:
        row = row.to(tl.int64)
    return base + tl.cast(start, tl.int64) * stride + (row[:, None] * stride + tl.arange(0, BLOCK_DIM)[None, :])


@triton.jit
def inside_tile(start, length, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK: tl.constexpr):
    """Which elements of a tile there are."""
    live = (start + tl.arange(0, BLOCK) < length)[:, None]
    if DIM < BLOCK_DIM:
        live = live & (tl.arange(0, BLOCK_DIM) < DIM)[None, :]
    return live


@triton.jit
def tile(
    base, start, length, stride, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """Rows from ``start`` on; 0 past ``length`` and past ``DIM``."""
    places = tile_places(base, start, stride, BLOCK_DIM, BLOCK, WIDE)
    return tl.load(places, mask=inside_tile(start, length, DIM, BLOCK_DIM, BLOCK), other=0.0)


@triton.jit
def store_tile(
    base, value, start, length, stride, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The inverse of `tile`, rounded."""
    places = tile_places(base, start, stride, BLOCK_DIM, BLOCK, False)
    inside = inside_tile(start, length, DIM, BLOCK_DIM, BLOCK)
    tl.store(places, rounded(value, base.dtype.element_ty), mask=inside)


@triton.jit
def row_statistics(
    grad_out, out, lse, grad_lse, sinks, log_sum, shift, of_sinks, cu_q, queries, statistics_row, batches,
    grad_out_b, grad_out_s, grad_out_h, out_b, out_s, out_h, lse_b, lse_h, lse_s, grad_lse_b, grad_lse_h, grad_lse_s,
    cleared, cleared_count, notes, notes_count,
    HEADS: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK: tl.constexpr, VARLEN: tl.constexpr,
    GRAD_LSE: tl.constexpr, SINKS: tl.constexpr, CLEAR: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """``shift = grad_out . out - grad_lse``, and the lse to base 2 with 0 for -inf; both ``(batch, heads, queries)``.

    A head has ``statistics_row`` numbers of each, 0 from ``queries`` on. Each program also sets ``CLEAR`` of the
    ``cleared_count`` numbers at ``cleared`` to 0, and all of them together the ``notes``, where these are given: what
    the next kernels add to is ready without launches of its own.

    ``of_sinks (heads, programs per head)`` gets each program's part of the gradient of the sinks. A ragged batch comes
    as one sequence of all its tokens; those past the last sequence are left out.
    """
    await_predecessor(DEPENDENT)
    program = tl.program_id(0)
    if cleared is not None:
        of_program = program.to(tl.int64) * CLEAR + tl.arange(0, CLEAR)
        tl.store(cleared + of_program, tl.zeros([CLEAR], tl.float32), mask=of_program < cleared_count)
    if notes is not None:
        for at in range(program, notes_count, tl.num_programs(0)):
            tl.store(notes + at, 0)
    head = program % HEADS
    batch = (program // HEADS % batches).to(tl.int64)
    block = program // HEADS // batches
    length = queries
    if VARLEN:
        length = tl.load(cu_q)
    rows = block * BLOCK + tl.arange(0, BLOCK)
    live = rows < length
    stored = rows < statistics_row
    rows = rows.to(tl.int64)
    dims = tl.arange(0, BLOCK_V)
    inside = live[:, None] & (dims < VALUE_DIM)[None, :]
    grad_places = grad_out + batch * grad_out_b + head.to(tl.int64) * grad_out_h + rows[:, None] * grad_out_s
    out_places = out + batch * out_b + head.to(tl.int64) * out_h + rows[:, None] * out_s
    gradient = tl.load(grad_places + dims[None, :], mask=inside, other=0.0).to(tl.float32)
    result = tl.load(out_places + dims[None, :], mask=inside, other=0.0).to(tl.float32)
    moved = tl.sum(gradient * result, 1)
    if GRAD_LSE:
        places = grad_lse + batch * grad_lse_b + head.to(tl.int64) * grad_lse_h + rows * grad_lse_s
        moved -= tl.load(places, mask=live, other=0.0)
    base = tl.load(lse + batch * lse_b + head.to(tl.int64) * lse_h + rows * lse_s, mask=live, other=0.0)
    base = tl.where(base == float("-inf"), 0.0, base)
    places = (batch * HEADS + head) * statistics_row + rows
    tl.store(log_sum + places, base * LOG2_E, mask=stored)
    tl.store(shift + places, moved, mask=stored)
    if SINKS:
        sink = tl.load(sinks + head).to(tl.float32)
        part = tl.where(live, tl.exp2((sink - base) * LOG2_E) * -moved, 0.0)
        tl.store(of_sinks + head * (tl.num_programs(0) // HEADS) + program // HEADS, tl.sum(part, 0))


@triton.jit
def sum_of_sinks(of_sinks, grad_sinks, parts, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    """Sum the parts of each head's gradient, in one order."""
    await_predecessor(DEPENDENT)
    head = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, parts, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(of_sinks + head.to(tl.int64) * parts + at, mask=at < parts, other=0.0)
    tl.store(grad_sinks + head, rounded(tl.sum(total, 0), grad_sinks.dtype.element_ty))


@triton.jit
def scored(raw, log_sum, scale, softcap, SOFTCAP: tl.constexpr):
    """From products of queries and keys: the probabilities before masking, and the slope of the cap."""
    slope = 1.0
    if SOFTCAP:
        bounded = capped(raw * (scale / softcap))
        slope = 1.0 - bounded * bounded
        return tl.exp2(bounded * (softcap * LOG2_E) - log_sum), slope
    return tl.exp2(raw * (scale * LOG2_E) - log_sum), slope


@triton.jit
def strange(x):
    """1 if any element is NaN or Inf, else 0."""
    return tl.max(tl.max(tl.where(tl.abs(x) < float("inf"), 0, 1), 1), 0)


@triton.jit
def nonfinite_part(grad_values, seen, gradient, PRECISION: tl.constexpr, UPCAST: tl.constexpr):
    """What NaN and Inf in the gradients of attending queries add to the gradients of values."""
    wide = gradient.to(tl.float32)
    reached = tl.where(seen, 1.0, 0.0).to(gradient.dtype)
    unknown = product(reached, tl.where(wide != wide, 1.0, 0.0).to(gradient.dtype), PRECISION, UPCAST)
    grad_values += tl.where(unknown > 0, float("nan"), 0.0)
    above = product(reached, tl.where(wide == float("inf"), 1.0, 0.0).to(gradient.dtype), PRECISION, UPCAST)
    grad_values += tl.where(above > 0, float("inf"), 0.0)
    below = product(reached, tl.where(wide == float("-inf"), 1.0, 0.0).to(gradient.dtype), PRECISION, UPCAST)
    return grad_values + tl.where(below > 0, float("-inf"), 0.0)


@triton.jit
def keys_values_step(
    grad_keys, grad_values, k_tile, v_tile, q_head, grad_head, log_sum, shift, start, at, queries, keys,
    q_s, grad_out_s, scale, softcap, left, right,
    HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, SOFTCAP: tl.constexpr,
    WANTS_K: tl.constexpr, WANTS_V: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr,
    REPAIR: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add what the queries ``at`` to ``at + BLOCK_M`` of a head give; queries past the last have probability 0.

    A repair leaves NaN and Inf in masked tiles of ``grad_out`` out of ``grad_values``.
    """
    row = at + tl.arange(0, BLOCK_M)
    q_tile = tile(q_head, at, queries, q_s, HEAD_DIM, BLOCK_D, BLOCK_M, WIDE)
    base = tl.load(log_sum + row, mask=row < queries, other=float("inf"))
    raw = product(k_tile, tl.trans(q_tile), PRECISION, UPCAST)
    weights, slope = scored(raw, base[None, :], scale, softcap, SOFTCAP)
    if MASKED:
        key = start + tl.arange(0, BLOCK_N)
        seen = attends(row[None, :], key[:, None], queries, keys, left, right, LEFT, RIGHT) & (row < queries)[None, :]
        weights = tl.where(seen, weights, 0.0)
    gradient = tile(grad_head, at, queries, grad_out_s, VALUE_DIM, BLOCK_V, BLOCK_M, WIDE)
    if WANTS_V:
        factor = gradient
        if MASKED and REPAIR:
            factor = finite(gradient)
        grad_values += product(rounded(weights, gradient.dtype), factor, PRECISION, UPCAST)
    if WANTS_K:
        moved = tl.load(shift + row, mask=row < queries, other=0.0)
        grad_scores = weights * (product(v_tile, tl.trans(gradient), PRECISION, UPCAST) - moved[None, :]) * slope
        if MASKED:
            grad_scores = tl.where(seen, grad_scores, 0.0)
            if REPAIR:
                q_tile = finite(q_tile)
        grad_keys += product(rounded(grad_scores, q_tile.dtype), q_tile, PRECISION, UPCAST)
    return grad_keys, grad_values


@triton.jit
def keys_values(
    grad_out, q, k, v, log_sum, shift, grad_k, grad_v, notes, cu_q, cu_k, queries, keys, batches, shares,
    statistics_row,
    grad_out_b, grad_out_s, grad_out_h, q_b, q_s, q_h, k_b, k_s, k_h, v_b, v_s, v_h, scale, softcap, left, right,
    KV_HEADS: tl.constexpr, GROUPS: tl.constexpr, HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    VARLEN: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, SOFTCAP: tl.constexpr,
    WANTS_K: tl.constexpr, WANTS_V: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr,
    NOTED: tl.constexpr, REPAIR: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Gradients of ``BLOCK_N`` keys and values of a kv head, from ``BLOCK_M`` queries of a head at a time.

    The query blocks are divided between ``shares`` programs. Where there are several, ``grad_k`` and ``grad_v`` hold
    ``(..., KV_HEADS, shares, dim)`` float32 numbers.

    ``notes`` has a number for each share of ``NOTED`` keys of a kv head and batch entry: whether it must be repaired.

    The first keys come first: where a mask cuts the triangle, they have the most queries.
    """
    await_predecessor(DEPENDENT)
    program = tl.program_id(0)
    share = program % shares
    kv_head = program // shares % KV_HEADS
    across = KV_HEADS * shares
    batch = program // across % batches
    start = program // across // batches * BLOCK_N
    if REPAIR:
        if tl.load(notes + start // NOTED * (across * batches) + program % (across * batches)) == 0:
            return
    all_keys = keys
    entry, first_query, queries, first_key, keys = sequence(batch, cu_q, cu_k, queries, keys, VARLEN)
    if start >= keys:
        if NOTED > 0 and not REPAIR:
            tl.store(notes + program, 0)
        return
    k_base = origin(k, entry, first_key, kv_head, k_b, k_s, k_h)
    v_base = origin(v, entry, first_key, kv_head, v_b, v_s, v_h)
    k_tile = tile(k_base, start, keys, k_s, HEAD_DIM, BLOCK_D, BLOCK_N, WIDE)
    v_tile = tile(v_base, start, keys, v_s, VALUE_DIM, BLOCK_V, BLOCK_N, WIDE)
    head = kv_head * GROUPS
    q_base = origin(q, entry, first_query, head, q_b, q_s, q_h)
    grad_base = origin(grad_out, entry, first_query, head, grad_out_b, grad_out_s, grad_out_h)
    statistics = (entry * (KV_HEADS * GROUPS) + head) * statistics_row + first_query
    grad_keys = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    grad_values = tl.zeros([BLOCK_N, BLOCK_V], tl.float32)

    begin, full_begin, full_end, end = key_limits(start, keys, queries, right, left, BLOCK_N, BLOCK_M, RIGHT, LEFT)
    before = (full_begin - begin) // BLOCK_M
    masked = before + (end - full_end + BLOCK_M - 1) // BLOCK_M
    first_masked = GROUPS * masked * share // shares
    end_masked = GROUPS * masked * (share + 1) // shares
    for step in tl.range(first_masked, end_masked):
        group = step // masked
        place = step % masked
        at = tl.where(place < before, begin + place * BLOCK_M, full_end + (place - before) * BLOCK_M)
        of_row = statistics + group.to(tl.int64) * statistics_row
        grad_keys, grad_values = keys_values_step(
            grad_keys, grad_values, k_tile, v_tile, q_base + group.to(tl.int64) * q_h,
            grad_base + group.to(tl.int64) * grad_out_h, log_sum + of_row, shift + of_row, start, at, queries, keys,
            q_s, grad_out_s, scale, softcap, left, right, HEAD_DIM, VALUE_DIM, BLOCK_D, BLOCK_V, BLOCK_M, BLOCK_N, LEFT,
            RIGHT, SOFTCAP, WANTS_K, WANTS_V, WIDE, PRECISION, UPCAST, REPAIR, True,
        )  # fmt: skip
    count = (full_end - full_begin) // BLOCK_M
    for step in tl.range(GROUPS * count * share // shares, GROUPS * count * (share + 1) // shares):
        group = step // count
        at = full_begin + step % count * BLOCK_M
        of_row = statistics + group.to(tl.int64) * statistics_row
        grad_keys, grad_values = keys_values_step(
            grad_keys, grad_values, k_tile, v_tile, q_base + group.to(tl.int64) * q_h,
            grad_base + group.to(tl.int64) * grad_out_h, log_sum + of_row, shift + of_row, start, at, queries, keys,
            q_s, grad_out_s, scale, softcap, left, right, HEAD_DIM, VALUE_DIM, BLOCK_D, BLOCK_V, BLOCK_M, BLOCK_N, LEFT,
            RIGHT, SOFTCAP, WANTS_K, WANTS_V, WIDE, PRECISION, UPCAST, REPAIR, False,
        )  # fmt: skip

    first = ((entry * all_keys + first_key) * KV_HEADS + kv_head) * shares + share
    if WANTS_K:
        k_out = grad_k + first * HEAD_DIM
        store_tile(k_out, grad_keys * scale, start, keys, across * HEAD_DIM, HEAD_DIM, BLOCK_D, BLOCK_N)
    if NOTED > 0 and not REPAIR:
        tl.store(notes + program, tl.maximum(strange(grad_keys), strange(grad_values)))
    if WANTS_V:
        if REPAIR:
            for step in tl.range(first_masked, end_masked):
                group = step // masked
                place = step % masked
                at = tl.where(place < before, begin + place * BLOCK_M, full_end + (place - before) * BLOCK_M)
                row = at + tl.arange(0, BLOCK_M)
                key = start + tl.arange(0, BLOCK_N)
                seen = attends(row[None, :], key[:, None], queries, keys, left, right, LEFT, RIGHT)
                seen = seen & (row < queries)[None, :]
                grad_head = grad_base + group.to(tl.int64) * grad_out_h
                gradient = tile(grad_head, at, queries, grad_out_s, VALUE_DIM, BLOCK_V, BLOCK_M, WIDE)
                grad_values = nonfinite_part(grad_values, seen, gradient, PRECISION, UPCAST)
        v_out = grad_v + first * VALUE_DIM
        store_tile(v_out, grad_values, start, keys, across * VALUE_DIM, VALUE_DIM, BLOCK_V, BLOCK_N)


@triton.jit
def queries_step(
    grad_queries, q_tile, gradient, base, moved, k_base, v_base, start, at, queries, keys, k_s, v_s,
    scale, softcap, left, right,
    HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, SOFTCAP: tl.constexpr,
    WIDE: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr, REPAIR: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Add what the keys ``at`` to ``at + BLOCK_N`` give."""
    k_tile = tile(k_base, at, keys, k_s, HEAD_DIM, BLOCK_D, BLOCK_N, WIDE)
    v_tile = tile(v_base, at, keys, v_s, VALUE_DIM, BLOCK_V, BLOCK_N, WIDE)
    raw = product(q_tile, tl.trans(k_tile), PRECISION, UPCAST)
    weights, slope = scored(raw, base[:, None], scale, softcap, SOFTCAP)
    grad_scores = weights * (product(gradient, tl.trans(v_tile), PRECISION, UPCAST) - moved[:, None]) * slope
    if MASKED:
        row = start + tl.arange(0, BLOCK_M)
        key = at + tl.arange(0, BLOCK_N)
        seen = attends(row[:, None], key[None, :], queries, keys, left, right, LEFT, RIGHT)
        grad_scores = tl.where(seen, grad_scores, 0.0)
        if REPAIR:
            k_tile = finite(k_tile)
    return grad_queries + product(rounded(grad_scores, k_tile.dtype), k_tile, PRECISION, UPCAST)


@triton.jit
def queries_of(
    grad_out, q, k, v, log_sum, shift, grad_q, notes, cu_q, cu_k, queries, keys, batches, blocks, statistics_row,
    grad_out_b, grad_out_s, grad_out_h, q_b, q_s, q_h, k_b, k_s, k_h, v_b, v_s, v_h, scale, softcap, left, right,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    VARLEN: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, SOFTCAP: tl.constexpr,
    WIDE: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr,
    NOTED: tl.constexpr, REPAIR: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Gradients of ``BLOCK_M`` queries of a head, from ``BLOCK_N`` keys at a time; ``notes`` as in `keys_values`.

    The last queries come first: where a mask cuts the triangle, they have the most keys.
    """
    await_predecessor(DEPENDENT)
    program = tl.program_id(0)
    head = program % HEADS
    batch = program // HEADS % batches
    start = (blocks - 1 - program // HEADS // batches) * BLOCK_M
    if REPAIR:
        if tl.load(notes + start // NOTED * (HEADS * batches) + program % (HEADS * batches)) == 0:
            return
    all_queries = queries
    entry, first_query, queries, first_key, keys = sequence(batch, cu_q, cu_k, queries, keys, VARLEN)
    place_of_note = start // BLOCK_M * (HEADS * batches) + program % (HEADS * batches)
    if start >= queries:
        if NOTED > 0 and not REPAIR:
            tl.store(notes + place_of_note, 0)
        return
    q_base = origin(q, entry, first_query, head, q_b, q_s, q_h)
    grad_base = origin(grad_out, entry, first_query, head, grad_out_b, grad_out_s, grad_out_h)
    q_tile = tile(q_base, start, queries, q_s, HEAD_DIM, BLOCK_D, BLOCK_M, WIDE)
    gradient = tile(grad_base, start, queries, grad_out_s, VALUE_DIM, BLOCK_V, BLOCK_M, WIDE)
    row = start + tl.arange(0, BLOCK_M)
    statistics = (entry * HEADS + head) * statistics_row + first_query
    base = tl.load(log_sum + statistics + row, mask=row < queries, other=float("inf"))
    moved = tl.load(shift + statistics + row, mask=row < queries, other=0.0)
    k_base = origin(k, entry, first_key, head // GROUPS, k_b, k_s, k_h)
    v_base = origin(v, entry, first_key, head // GROUPS, v_b, v_s, v_h)
    grad_queries = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)

    begin, full_begin, full_end, end = key_limits(start, queries, keys, left, right, BLOCK_M, BLOCK_N, LEFT, RIGHT)
    before = (full_begin - begin) // BLOCK_N
    count = before + (end - full_end + BLOCK_N - 1) // BLOCK_N
    for place in tl.range(0, count):
        at = tl.where(place < before, begin + place * BLOCK_N, full_end + (place - before) * BLOCK_N)
        grad_queries = queries_step(
            grad_queries, q_tile, gradient, base, moved, k_base, v_base, start, at, queries, keys, k_s, v_s, scale,
            softcap, left, right, HEAD_DIM, VALUE_DIM, BLOCK_D, BLOCK_V, BLOCK_M, BLOCK_N, LEFT, RIGHT, SOFTCAP,
            WIDE, PRECISION, UPCAST, REPAIR, True,
        )  # fmt: skip
    for at in tl.range(full_begin, full_end, BLOCK_N):
        grad_queries = queries_step(
            grad_queries, q_tile, gradient, base, moved, k_base, v_base, start, at, queries, keys, k_s, v_s, scale,
            softcap, left, right, HEAD_DIM, VALUE_DIM, BLOCK_D, BLOCK_V, BLOCK_M, BLOCK_N, LEFT, RIGHT, SOFTCAP,
            WIDE, PRECISION, UPCAST, REPAIR, False,
        )  # fmt: skip

    if NOTED > 0 and not REPAIR:
        tl.store(notes + place_of_note, strange(grad_queries))
    q_out = grad_q + ((entry * all_queries + first_query) * HEADS + head) * HEAD_DIM
    store_tile(q_out, grad_queries * scale, start, queries, HEADS * HEAD_DIM, HEAD_DIM, BLOCK_D, BLOCK_M)
