"""Attention over a paged cache in CUDA Tile: decoding, prefill and what is between, in one kernel.

A tile's rows are queries of all heads that share keys: row r is query r // groups of head r % groups of them. Where few
rows leave the GPU idle, the keys of a tile are split between blocks, and `combine` joins what these found. Where a page
holds whole blocks of keys, a block is copied at once; else the page of each key is looked up. Keys past a sequence's
end are not read, or replaced by zeros: they may hold anything.
"""

import cuda.tile as ct

from opmux_cutile.attention.kernels import LN2, LOG2E, soften


def rows_of_cache(cache, pages, offsets, there, kv_head, DIM: ct.Constant[int]):
    """A block of keys or values, zeros where there are none."""
    place = (pages[:, None], offsets[:, None], kv_head, ct.arange(DIM, dtype=ct.int32)[None, :])
    return ct.gather(cache, place, mask=there[:, None])


def step(
    a, k_cache, v_cache, table, sequence, length, kv_head, n, positions, factor, cap, left, right, top, total, mean,
    BLOCK_N: ct.Constant[int], DIM: ct.Constant[int], WIDTH: ct.Constant[int], CAPPED: ct.Constant[bool],
    BANDED: ct.Constant[bool], WINDOWED: ct.Constant[bool], LAST: ct.Constant[bool],
):  # fmt: skip
    """Take a block of keys into the softmax so far; LAST where some query does not see all of them."""
    keys = n * BLOCK_N + ct.arange(BLOCK_N, dtype=ct.int32)
    there, page_size = keys < length, k_cache.shape[1]
    pages, offsets = ct.gather(table, (sequence, keys // page_size), mask=there), keys % page_size
    b = rows_of_cache(k_cache, pages, offsets, there, kv_head, DIM).astype(a.dtype)
    found = ct.mma(a, ct.permute(b, (1, 0)), ct.zeros((a.shape[0], BLOCK_N), dtype=ct.float32))
    if CAPPED:
        found = ct.tanh(found * (factor / cap)) * (cap * LOG2E)
    else:
        found = found * (factor * LOG2E)
    c = rows_of_cache(v_cache, pages, offsets, there, kv_head, WIDTH).astype(a.dtype)
    if LAST:
        seen = there[None, :]
        if BANDED:
            seen = seen & (keys[None, :] <= positions + right)
        if WINDOWED:
            seen = seen & (keys[None, :] >= positions - left)
        found = ct.where(seen, found, -float("inf"))
    top, total, share, shrunk = soften(found, top, total)
    return top, total, ct.mma(share.astype(a.dtype), c, mean * shrunk)


@ct.kernel
def attend(
    q, k_cache, v_cache, starts, lengths, table, sinks, k_scale, v_scale, out, lse, tops, totals,
    scale: float, cap: float, left: int, right: int, groups: int, splits: int,
    BLOCK_M: ct.Constant[int], BLOCK_N: ct.Constant[int], DIM: ct.Constant[int], WIDTH: ct.Constant[int],
    CAPPED: ct.Constant[bool], BANDED: ct.Constant[bool], WINDOWED: ct.Constant[bool], SINKS: ct.Constant[bool],
    LSE: ct.Constant[bool], K_SCALED: ct.Constant[bool], V_SCALED: ct.Constant[bool],
    SPLIT: ct.Constant[bool],
):  # fmt: skip
    """Compute a tile of queries. With SPLIT, `out` gets sums of each split, `tops` and `totals` what they are worth."""
    sequence, kv_head, split = ct.bid(2), ct.bid(1), ct.bid(0) % splits
    m = ct.bid(0) // splits
    start = ct.gather(starts, sequence).item()
    queries = ct.gather(starts, sequence + 1).item() - start
    if m * BLOCK_M < queries * groups:
        length = ct.gather(lengths, sequence).item()
        rows = m * BLOCK_M + ct.arange(BLOCK_M, dtype=ct.int32)
        there = rows < queries * groups
        tokens, heads = start + rows // groups, kv_head * groups + rows % groups
        a = ct.gather(q, (tokens[:, None], heads[:, None], ct.arange(DIM, dtype=ct.int32)[None, :]),
                      mask=there[:, None])  # fmt: skip
        factor = scale
        if K_SCALED:
            factor = scale * ct.gather(k_scale, kv_head).item()
        top = ct.full((BLOCK_M, 1), -float("inf"), dtype=ct.float32)
        total = ct.zeros((BLOCK_M, 1), dtype=ct.float32)
        if SINKS:
            if split == 0:
                top = ct.gather(sinks, (heads[:, None],)).astype(ct.float32) * LOG2E
            total = ct.where(top == -float("inf"), 0.0, 1.0)
        mean = ct.zeros((BLOCK_M, WIDTH), dtype=ct.float32)

        before = length - queries
        positions = (before + rows // groups)[:, None]
        first = before + m * BLOCK_M // groups
        last = min(before + (m * BLOCK_M + BLOCK_M - 1) // groups, length - 1)
        begin, end, whole_end = 0, length, length // BLOCK_N
        if BANDED:
            end = min(length, max(last + right + 1, 0))
            whole_end = min(whole_end, max(first + right + 1, 0) // BLOCK_N)
        end = ct.cdiv(end, BLOCK_N)
        if WINDOWED:
            begin = min(max(first - left, 0) // BLOCK_N, end)
            whole_end = min(whole_end, begin)
        if SPLIT:
            share = ct.cdiv(end - begin, splits)
            begin = min(begin + split * share, end)
            end = min(begin + share, end)
        whole_end = max(min(whole_end, end), begin)
        for n in range(begin, whole_end):
            top, total, mean = step(
                a, k_cache, v_cache, table, sequence, length, kv_head, n, positions, factor, cap, left, right, top,
                total, mean, BLOCK_N, DIM, WIDTH, CAPPED, BANDED, WINDOWED, False,
            )  # fmt: skip
        for n in range(whole_end, end):
            top, total, mean = step(
                a, k_cache, v_cache, table, sequence, length, kv_head, n, positions, factor, cap, left, right, top,
                total, mean, BLOCK_N, DIM, WIDTH, CAPPED, BANDED, WINDOWED, True,
            )  # fmt: skip

        if V_SCALED:
            mean = mean * ct.gather(v_scale, kv_head).item()
        columns = ct.arange(WIDTH, dtype=ct.int32)[None, :]
        if SPLIT:
            place = split, tokens[:, None], heads[:, None]
            ct.scatter(out, (*place, columns), mean, mask=there[:, None])
            ct.scatter(tops, place, top, mask=there[:, None])
            ct.scatter(totals, place, total, mask=there[:, None])
        else:
            mean = mean / ct.where(total == 0.0, 1.0, total)
            ct.scatter(out, (tokens[:, None], heads[:, None], columns), mean.astype(out.dtype), mask=there[:, None])
            if LSE:
                found = ct.where(total == 0.0, -float("inf"), (top + ct.log2(total)) * LN2)
                ct.scatter(lse, (heads[:, None], tokens[:, None]), found, mask=there[:, None])


@ct.kernel
def combine(
    sums, tops, totals, starts, out, lse, splits: int, sequences: int,
    SPLITS: ct.Constant[int], HEADS: ct.Constant[int], WIDTH: ct.Constant[int], LSE: ct.Constant[bool],
):  # fmt: skip
    """Join what the splits found for HEADS heads of a token, always in the same order."""
    token = ct.bid(0)
    if token < ct.gather(starts, sequences).item():
        heads = ct.bid(1) * HEADS + ct.arange(HEADS, dtype=ct.int32)
        place = ct.arange(SPLITS, dtype=ct.int32)[:, None], token, heads[None, :]
        each = ct.gather(tops, place, padding_value=-float("inf"))
        top = ct.max(each, axis=0, keepdims=True)
        anchor = ct.where(top == -float("inf"), 0.0, top)
        total = ct.sum(ct.gather(totals, place) * ct.exp2(each - anchor), axis=0, keepdims=True)
        anchor = ct.reshape(anchor, (HEADS, 1))
        columns = ct.arange(WIDTH, dtype=ct.int32)[None, :]
        mean = ct.zeros((HEADS, WIDTH), dtype=ct.float32)
        for split in range(splits):
            weight = ct.exp2(ct.gather(tops, (split, token, heads[:, None]), padding_value=-float("inf")) - anchor)
            mean = mean + ct.gather(sums, (split, token, heads[:, None], columns)) * weight
        mean = mean / ct.reshape(ct.where(total == 0.0, 1.0, total), (HEADS, 1))
        ct.scatter(out, (token, heads[:, None], columns), mean.astype(out.dtype))
        if LSE:
            found = ct.where(total == 0.0, -float("inf"), (top + ct.log2(total)) * LN2)
            ct.scatter(lse, (heads[None, :], token), found)
