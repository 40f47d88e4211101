"""Gradients of attention in CUDA Tile, with the probabilities computed again from the lse.

Three kinds of kernels: `statistics` computes what each query needs; those of keys the gradients of a block of keys and
values, query after query of all heads that share them; those of queries the gradients of a block of queries, key after
key. No sum is divided between blocks, so results do not depend on their order. Blocks of which no query sees a key are
not read. Tensors have four dims; in a ragged batch, whose first dim
is 1, the second is cut to the block's sequence. Logarithms are to the base 2.
"""

import cuda.tile as ct

LOG2E = 1.4426950408889634


@ct.kernel
def statistics(
    grad, out, lse, grad_lse, sinks, starts, base, shift, of_sinks, sequences: int,
    BLOCK_M: ct.Constant[int], WIDTH: ct.Constant[int], GRAD_LSE: ct.Constant[bool], SINKS: ct.Constant[bool],
    RAGGED: ct.Constant[bool],
):  # fmt: skip
    """For each query the lse, or 0 where it is -inf, and grad_lse - grad . out; for each block its part of the sinks.

    Tokens past the last sequence of a ragged batch add nothing to the gradient of the sinks.
    """
    m, head, batch = ct.bid(0), ct.bid(1), ct.bid(2)
    rows = m * BLOCK_M + ct.arange(BLOCK_M, dtype=ct.int32)
    a = ct.load(grad, (batch, m, head, 0), (1, BLOCK_M, 1, WIDTH), padding_mode=ct.PaddingMode.ZERO)
    b = ct.load(out, (batch, m, head, 0), (1, BLOCK_M, 1, WIDTH), padding_mode=ct.PaddingMode.ZERO)
    product = ct.reshape(a.astype(ct.float32) * b.astype(ct.float32), (BLOCK_M, WIDTH))
    moved = -ct.sum(product, axis=1)
    if GRAD_LSE:
        moved = moved + ct.gather(grad_lse, (batch, head, rows))
    low = ct.gather(lse, (batch, head, rows))
    low = ct.where(low == -float("inf"), 0.0, low) * LOG2E
    ct.scatter(base, (batch, head, rows), low)
    ct.scatter(shift, (batch, head, rows), moved)
    if SINKS:
        last = grad.shape[1]
        if RAGGED:
            last = ct.gather(starts, sequences).item()
        sink = ct.gather(sinks, head).astype(ct.float32) * LOG2E
        ct.scatter(of_sinks, (head, batch, m), ct.sum(ct.where(rows < last, ct.exp2(sink - low) * moved, 0.0), axis=0))


def slopes(found, other, low, moved, scale, cap, CAPPED: ct.Constant[bool]):
    """Probabilities, and gradients of scores before the cap: of products q . k, and of products grad . v.

    A subnormal probability is 0.
    """
    if CAPPED:
        bent = ct.tanh(found * (scale / cap))
        share = ct.exp2(bent * (cap * LOG2E) - low, flush_to_zero=True)
        return share, share * (other + moved) * (1.0 - bent * bent)
    share = ct.exp2(found * (scale * LOG2E) - low, flush_to_zero=True)
    return share, share * (other + moved)


def key_step(
    keys, values, q, grad, base, shift, start, batch, head, m, offset, seq_q, positions, scale, cap, left, right,
    of_k, of_v,
    BLOCK_M: ct.Constant[int], DIM: ct.Constant[int], WIDTH: ct.Constant[int], CAPPED: ct.Constant[bool],
    MASKED: ct.Constant[bool], KEYS: ct.Constant[bool], VALUES: ct.Constant[bool],
):  # fmt: skip
    """Add what a block of queries gives a block of keys and values."""
    a = ct.reshape(ct.load(q, (batch, m, head, 0), (1, BLOCK_M, 1, DIM), padding_mode=ct.PaddingMode.ZERO),
                   (BLOCK_M, DIM))  # fmt: skip
    b = ct.reshape(ct.load(grad, (batch, m, head, 0), (1, BLOCK_M, 1, WIDTH), padding_mode=ct.PaddingMode.ZERO),
                   (BLOCK_M, WIDTH))  # fmt: skip
    rows = m * BLOCK_M + ct.arange(BLOCK_M, dtype=ct.int32)
    low = ct.gather(base, (batch, head, start + rows), mask=rows < seq_q)[None, :]
    moved = ct.gather(shift, (batch, head, start + rows), mask=rows < seq_q)[None, :]
    nothing = ct.zeros((keys.shape[0], BLOCK_M), dtype=ct.float32)
    found = ct.mma(keys, ct.transpose(a), nothing)
    other = ct.mma(values, ct.transpose(b), nothing)
    share, slope = slopes(found, other, low, moved, scale, cap, CAPPED)
    if MASKED:
        queries = rows[None, :] + offset
        seen = (positions <= queries + right) & (positions >= queries - left)
        share, slope = ct.where(seen, share, 0.0), ct.where(seen, slope, 0.0)
    if VALUES:
        of_v = ct.mma(share.astype(grad.dtype), b, of_v)
    if KEYS:
        of_k = ct.mma(slope.astype(q.dtype), a, of_k)
    return of_k, of_v


def gather_keys(
    q, k, v, grad, base, shift, grad_k, grad_v, start, n, kv_head, batch, seq_q, seq_k, scale, cap, left, right, groups,
    BLOCK_M: ct.Constant[int], BLOCK_N: ct.Constant[int], DIM: ct.Constant[int], WIDTH: ct.Constant[int],
    CAPPED: ct.Constant[bool], BANDED: ct.Constant[bool], WHOLE: ct.Constant[bool], KEYS: ct.Constant[bool],
    VALUES: ct.Constant[bool],
):  # fmt: skip
    """Compute the gradients of a block of keys. A key at j is seen by the queries from j - right to j + left."""
    keys = ct.reshape(ct.load(k, (batch, n, kv_head, 0), (1, BLOCK_N, 1, DIM), padding_mode=ct.PaddingMode.ZERO),
                      (BLOCK_N, DIM))  # fmt: skip
    values = ct.reshape(ct.load(v, (batch, n, kv_head, 0), (1, BLOCK_N, 1, WIDTH), padding_mode=ct.PaddingMode.ZERO),
                        (BLOCK_N, WIDTH))  # fmt: skip
    of_k = ct.zeros((BLOCK_N, DIM), dtype=ct.float32)
    of_v = ct.zeros((BLOCK_N, WIDTH), dtype=ct.float32)
    positions = n * BLOCK_N + ct.arange(BLOCK_N, dtype=ct.int32)[:, None]
    offset = seq_k - seq_q
    begin, end = 0, ct.cdiv(seq_q, BLOCK_M)
    if BANDED:
        first = n * BLOCK_N - offset
        begin = min(max(first - right, 0) // BLOCK_M, end)
        end = max(min(ct.cdiv(max(first + BLOCK_N + left, 0), BLOCK_M), end), begin)
    # Blocks that every query sees have a loop of their own, without a mask, where that leaves registers enough.
    whole_begin, whole_end = begin, end
    if BANDED and WHOLE:
        first = n * BLOCK_N - offset
        whole_begin = min(max(ct.cdiv(max(first + BLOCK_N - 1 - right, 0), BLOCK_M), begin), end)
        whole_end = max(min(max(first + left + 1, 0) // BLOCK_M, end), whole_begin)
    for member in range(groups):
        head = kv_head * groups + member
        if BANDED and WHOLE:
            for m in range(begin, whole_begin):
                of_k, of_v = key_step(
                    keys, values, q, grad, base, shift, start, batch, head, m, offset, seq_q, positions, scale, cap,
                    left, right, of_k, of_v, BLOCK_M, DIM, WIDTH, CAPPED, True, KEYS, VALUES,
                )  # fmt: skip
        for m in range(whole_begin, whole_end):
            of_k, of_v = key_step(
                keys, values, q, grad, base, shift, start, batch, head, m, offset, seq_q, positions, scale, cap,
                left, right, of_k, of_v, BLOCK_M, DIM, WIDTH, CAPPED, BANDED and not WHOLE, KEYS, VALUES,
            )  # fmt: skip
        if BANDED and WHOLE:
            for m in range(whole_end, end):
                of_k, of_v = key_step(
                    keys, values, q, grad, base, shift, start, batch, head, m, offset, seq_q, positions, scale, cap,
                    left, right, of_k, of_v, BLOCK_M, DIM, WIDTH, CAPPED, True, KEYS, VALUES,
                )  # fmt: skip
    if KEYS:
        ct.store(grad_k, (batch, n, kv_head, 0), ct.reshape(of_k * scale, (1, BLOCK_N, 1, DIM)).astype(grad_k.dtype))
    if VALUES:
        ct.store(grad_v, (batch, n, kv_head, 0), ct.reshape(of_v, (1, BLOCK_N, 1, WIDTH)).astype(grad_v.dtype))


@ct.kernel
def keys_dense(
    q, k, v, grad, base, shift, grad_k, grad_v, scale: float, cap: float, left: int, right: int, groups: int,
    BLOCK_M: ct.Constant[int], BLOCK_N: ct.Constant[int], DIM: ct.Constant[int], WIDTH: ct.Constant[int],
    CAPPED: ct.Constant[bool], BANDED: ct.Constant[bool], WHOLE: ct.Constant[bool], KEYS: ct.Constant[bool],
    VALUES: ct.Constant[bool],
):  # fmt: skip
    """Keys and values of sequences of equal lengths. Under a causal mask the first ones are seen most."""
    gather_keys(q, k, v, grad, base, shift, grad_k, grad_v, 0, ct.bid(0), ct.bid(1), ct.bid(2), q.shape[1], k.shape[1],
                scale, cap, left, right, groups,
                BLOCK_M, BLOCK_N, DIM, WIDTH, CAPPED, BANDED, WHOLE, KEYS, VALUES)  # fmt: skip


@ct.kernel
def keys_ragged(
    q, k, v, grad, base, shift, grad_k, grad_v, starts_q, starts_k, scale: float, cap: float, left: int, right: int,
    groups: int,
    BLOCK_M: ct.Constant[int], BLOCK_N: ct.Constant[int], DIM: ct.Constant[int], WIDTH: ct.Constant[int],
    CAPPED: ct.Constant[bool], BANDED: ct.Constant[bool], WHOLE: ct.Constant[bool], KEYS: ct.Constant[bool],
    VALUES: ct.Constant[bool],
):  # fmt: skip
    """Keys and values of sequences that follow each other; the grid is made for the longest."""
    n, sequence = ct.bid(0), ct.bid(2)
    start_q, end_q = ct.gather(starts_q, sequence).item(), ct.gather(starts_q, sequence + 1).item()
    start_k, end_k = ct.gather(starts_k, sequence).item(), ct.gather(starts_k, sequence + 1).item()
    if n * BLOCK_N < end_k - start_k:
        gather_keys(q.slice(1, start_q, end_q), k.slice(1, start_k, end_k), v.slice(1, start_k, end_k),
                    grad.slice(1, start_q, end_q), base, shift, grad_k.slice(1, start_k, end_k),
                    grad_v.slice(1, start_k, end_k), start_q, n, ct.bid(1), 0, end_q - start_q, end_k - start_k,
                    scale, cap, left, right, groups,
                    BLOCK_M, BLOCK_N, DIM, WIDTH, CAPPED, BANDED, WHOLE, KEYS, VALUES)  # fmt: skip


def query_step(
    a, b, low, moved, k, v, batch, kv_head, n, first, seq_k, scale, cap, left, right, of_q,
    BLOCK_N: ct.Constant[int], DIM: ct.Constant[int], WIDTH: ct.Constant[int], CAPPED: ct.Constant[bool],
    MASKED: ct.Constant[bool],
):  # fmt: skip
    """Add what a block of keys gives a block of queries."""
    keys = ct.reshape(ct.load(k, (batch, n, kv_head, 0), (1, BLOCK_N, 1, DIM), padding_mode=ct.PaddingMode.ZERO),
                      (BLOCK_N, DIM))  # fmt: skip
    values = ct.reshape(ct.load(v, (batch, n, kv_head, 0), (1, BLOCK_N, 1, WIDTH), padding_mode=ct.PaddingMode.ZERO),
                        (BLOCK_N, WIDTH))  # fmt: skip
    nothing = ct.zeros((a.shape[0], BLOCK_N), dtype=ct.float32)
    found = ct.mma(a, ct.transpose(keys), nothing)
    other = ct.mma(b, ct.transpose(values), nothing)
    _, slope = slopes(found, other, low, moved, scale, cap, CAPPED)
    if MASKED:
        places = n * BLOCK_N + ct.arange(BLOCK_N, dtype=ct.int32)[None, :]
        queries = first + ct.arange(a.shape[0], dtype=ct.int32)[:, None]
        seen = (places < seq_k) & (places <= queries + right) & (places >= queries - left)
        slope = ct.where(seen, slope, 0.0)
    return ct.mma(slope.astype(k.dtype), keys, of_q)


def gather_queries(
    q, k, v, grad, base, shift, grad_q, start, m, head, batch, seq_q, seq_k, scale, cap, left, right, groups,
    BLOCK_M: ct.Constant[int], BLOCK_N: ct.Constant[int], DIM: ct.Constant[int], WIDTH: ct.Constant[int],
    CAPPED: ct.Constant[bool], BANDED: ct.Constant[bool], WHOLE: ct.Constant[bool],
):  # fmt: skip
    """Compute the gradients of a block of queries. A query at p sees the keys from p - left to p + right.

    Where WHOLE, blocks of keys that every query sees have a loop of their own, without a mask.
    """
    kv_head = head // groups
    a = ct.reshape(ct.load(q, (batch, m, head, 0), (1, BLOCK_M, 1, DIM), padding_mode=ct.PaddingMode.ZERO),
                   (BLOCK_M, DIM))  # fmt: skip
    b = ct.reshape(ct.load(grad, (batch, m, head, 0), (1, BLOCK_M, 1, WIDTH), padding_mode=ct.PaddingMode.ZERO),
                   (BLOCK_M, WIDTH))  # fmt: skip
    rows = m * BLOCK_M + ct.arange(BLOCK_M, dtype=ct.int32)
    low = ct.gather(base, (batch, head, start + rows), mask=rows < seq_q)[:, None]
    moved = ct.gather(shift, (batch, head, start + rows), mask=rows < seq_q)[:, None]
    of_q = ct.zeros((BLOCK_M, DIM), dtype=ct.float32)
    first = m * BLOCK_M + (seq_k - seq_q)
    begin, whole_begin = 0, 0
    end, whole_end = ct.cdiv(seq_k, BLOCK_N), seq_k // BLOCK_N
    if BANDED:
        begin = min(max(first - left, 0) // BLOCK_N, end)
        end = max(min(ct.cdiv(max(first + BLOCK_M + right, 0), BLOCK_N), end), begin)
        whole_begin = min(max(ct.cdiv(max(first + BLOCK_M - 1 - left, 0), BLOCK_N), begin), end)
        whole_end = min(max(first + right + 1, 0) // BLOCK_N, whole_end)
        whole_end = max(min(whole_end, end), whole_begin)
    if WHOLE:
        for n in range(begin, whole_begin):
            of_q = query_step(a, b, low, moved, k, v, batch, kv_head, n, first, seq_k, scale, cap, left, right, of_q,
                              BLOCK_N, DIM, WIDTH, CAPPED, True)  # fmt: skip
        for n in range(whole_begin, whole_end):
            of_q = query_step(a, b, low, moved, k, v, batch, kv_head, n, first, seq_k, scale, cap, left, right, of_q,
                              BLOCK_N, DIM, WIDTH, CAPPED, False)  # fmt: skip
        begin = whole_end
    for n in range(begin, end):
        of_q = query_step(a, b, low, moved, k, v, batch, kv_head, n, first, seq_k, scale, cap, left, right, of_q,
                          BLOCK_N, DIM, WIDTH, CAPPED, True)  # fmt: skip
    ct.store(grad_q, (batch, m, head, 0), ct.reshape(of_q * scale, (1, BLOCK_M, 1, DIM)).astype(grad_q.dtype))


@ct.kernel
def queries_dense(
    q, k, v, grad, base, shift, grad_q, scale: float, cap: float, left: int, right: int, groups: int,
    BLOCK_M: ct.Constant[int], BLOCK_N: ct.Constant[int], DIM: ct.Constant[int], WIDTH: ct.Constant[int],
    CAPPED: ct.Constant[bool], BANDED: ct.Constant[bool], WHOLE: ct.Constant[bool],
):  # fmt: skip
    """Queries of sequences of equal lengths. Blocks of later ones come first: under a causal mask they see the most."""
    gather_queries(q, k, v, grad, base, shift, grad_q, 0, ct.num_blocks(0) - 1 - ct.bid(0), ct.bid(1), ct.bid(2),
                   q.shape[1], k.shape[1], scale, cap, left, right, groups,
                   BLOCK_M, BLOCK_N, DIM, WIDTH, CAPPED, BANDED, WHOLE)  # fmt: skip


@ct.kernel
def queries_ragged(
    q, k, v, grad, base, shift, grad_q, starts_q, starts_k, scale: float, cap: float, left: int, right: int,
    groups: int,
    BLOCK_M: ct.Constant[int], BLOCK_N: ct.Constant[int], DIM: ct.Constant[int], WIDTH: ct.Constant[int],
    CAPPED: ct.Constant[bool], BANDED: ct.Constant[bool], WHOLE: ct.Constant[bool],
):  # fmt: skip
    """Queries of sequences that follow each other; the grid is made for the longest."""
    m, sequence = ct.num_blocks(0) - 1 - ct.bid(0), ct.bid(2)
    start_q, end_q = ct.gather(starts_q, sequence).item(), ct.gather(starts_q, sequence + 1).item()
    start_k, end_k = ct.gather(starts_k, sequence).item(), ct.gather(starts_k, sequence + 1).item()
    if m * BLOCK_M < end_q - start_q:
        gather_queries(q.slice(1, start_q, end_q), k.slice(1, start_k, end_k), v.slice(1, start_k, end_k),
                       grad.slice(1, start_q, end_q), base, shift, grad_q.slice(1, start_q, end_q), start_q, m,
                       ct.bid(1), 0, end_q - start_q, end_k - start_k, scale, cap, left, right, groups,
                       BLOCK_M, BLOCK_N, DIM, WIDTH, CAPPED, BANDED, WHOLE)  # fmt: skip
