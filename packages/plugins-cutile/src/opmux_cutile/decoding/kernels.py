"""Decoding from a paged cache in CUDA Tile: one query of each sequence, and pages that are copied as slices.

A tile's rows are the heads that share keys; its keys are those of some pages, or of a part of one. Codes are read as
words of two, and become float16, in which all are exact; a row of queries is scaled to less than 2, so that it fits.
Keys past a sequence's end are not read, or replaced by zeros: they may hold anything.
"""

import cuda.tile as ct

from opmux_cutile.attention.kernels import LN2, LOG2E

EXPONENT = 0x7F800000


def weigh(found, top, total):
    """Take a block of scores into the softmax so far; the sum may be one for each key of a step, to be added up."""
    highest = ct.maximum(top, ct.max(found, axis=1, keepdims=True))
    anchor = ct.where(highest == -float("inf"), 0.0, highest)
    share = ct.exp2(found - anchor, flush_to_zero=True)
    shrunk = ct.exp2(top - anchor, flush_to_zero=True)
    if total.shape[1] > 1:
        total = total * shrunk + share
    else:
        total = total * shrunk + ct.sum(share, axis=1, keepdims=True)
    return highest, total, share, shrunk


def pages_of(table, sequence, n, length, BLOCK_N: ct.Constant[int], PAGE: ct.Constant[int]):
    """The pages of a block of keys; -1, which is no page, past the end."""
    if PAGE >= BLOCK_N:
        return ct.gather(table, (sequence, n * BLOCK_N // PAGE + ct.arange(1, dtype=ct.int32)))
    places = n * (BLOCK_N // PAGE) + ct.arange(BLOCK_N // PAGE, dtype=ct.int32)
    return ct.gather(table, (sequence, places), mask=places * PAGE < length, padding_value=-1)


def slices(cache, pages, first, kv_head, BLOCK_N: ct.Constant[int], PAGE: ct.Constant[int], DIM: ct.Constant[int]):
    """A block of keys or values."""
    rows = min(BLOCK_N, PAGE)
    place = (pages, ct.Slice(first, rows), ct.Slice(kv_head, 1), ct.Slice(0, DIM))
    return ct.reshape(ct.load_advanced_indexing(cache, place, padding_mode=ct.PaddingMode.ZERO), (BLOCK_N, DIM))


def halves(words, CODES: ct.Constant[int]):
    """The first and the second codes of words, in float16."""
    first, second = words.astype(ct.int8), (words >> 8).astype(ct.int8)
    if CODES == 2:
        first, second = ct.bitcast(first, ct.float8_e4m3fn), ct.bitcast(second, ct.float8_e4m3fn)
    if CODES == 3:
        first, second = ct.bitcast(first, ct.float8_e5m2), ct.bitcast(second, ct.float8_e5m2)
    return first.astype(ct.float16), second.astype(ct.float16)


def first_of(n, BLOCK_N: ct.Constant[int], PAGE: ct.Constant[int]):
    """Where in its page a block of keys begins."""
    return n * BLOCK_N % PAGE if PAGE > BLOCK_N else 0


def score(
    a, aa, k_cache, pages, kv_head, n, factor, cap,
    BLOCK_N: ct.Constant[int], DIM: ct.Constant[int], PAGE: ct.Constant[int], CODES: ct.Constant[int],
    CAPPED: ct.Constant[bool],
):  # fmt: skip
    """The scores of a block of keys, times log2(e)."""
    none, first = ct.zeros((a.shape[0], BLOCK_N), dtype=ct.float32), first_of(n, BLOCK_N, PAGE)
    if CODES:
        b, bb = halves(slices(k_cache, pages, first, kv_head, BLOCK_N, PAGE, DIM // 2), CODES)
        found = ct.mma(aa, ct.permute(bb, (1, 0)), ct.mma(a, ct.permute(b, (1, 0)), none))
    else:
        b = slices(k_cache, pages, first, kv_head, BLOCK_N, PAGE, DIM)
        found = ct.mma(a, ct.permute(b, (1, 0)), none)
    found = found * factor
    if CAPPED:
        found = ct.tanh(found) * (cap * LOG2E)
    return found


def absorb(
    found, v_cache, pages, length, kv_head, n, left, top, total, mean, other,
    BLOCK_N: ct.Constant[int], WIDTH: ct.Constant[int], PAGE: ct.Constant[int], CODES: ct.Constant[int],
    WINDOWED: ct.Constant[bool], MASKED: ct.Constant[bool],
):  # fmt: skip
    """Take a block of scores, with its values, into the softmax so far; MASKED where the query does not see all."""
    first = first_of(n, BLOCK_N, PAGE)
    if CODES:
        c, cc = halves(slices(v_cache, pages, first, kv_head, BLOCK_N, PAGE, WIDTH // 2), CODES)
    else:
        c = slices(v_cache, pages, first, kv_head, BLOCK_N, PAGE, WIDTH)
    if MASKED:
        keys = n * BLOCK_N + ct.arange(BLOCK_N, dtype=ct.int32)
        seen = keys < length
        if WINDOWED:
            seen = seen & (keys >= length - 1 - left)
        found = ct.where(seen[None, :], found, -float("inf"))
        c = ct.where(seen[:, None], c, ct.zeros(c.shape, dtype=c.dtype))
        if CODES:
            cc = ct.where(seen[:, None], cc, ct.zeros(cc.shape, dtype=cc.dtype))
    top, total, share, shrunk = weigh(found, top, total)
    share = share.astype(c.dtype)
    if CODES:
        other = ct.mma(share, cc, other * shrunk)
    return top, total, ct.mma(share, c, mean * shrunk), other


@ct.kernel
def decode(
    q, k_cache, v_cache, starts, lengths, table, sinks, k_scale, v_scale, out, lse, tops, totals,
    scale: float, cap: float, left: int, groups: int, splits: int,
    BLOCK_M: ct.Constant[int], BLOCK_N: ct.Constant[int], DIM: ct.Constant[int], WIDTH: ct.Constant[int],
    PAGE: ct.Constant[int], CODES: ct.Constant[int], LATE: ct.Constant[bool], AHEAD: ct.Constant[bool],
    CAPPED: ct.Constant[bool], WINDOWED: ct.Constant[bool], SINKS: ct.Constant[bool], LSE: ct.Constant[bool],
    K_SCALED: ct.Constant[bool], V_SCALED: ct.Constant[bool], SPLIT: ct.Constant[bool],
):  # fmt: skip
    """Compute the query of a sequence, if it has one. CODES: 0 none, 1 int8, 2 float8_e4m3fn, 3 float8_e5m2.

    With CODES, caches are int16. With SPLIT, `out` gets sums of each split, `tops` and `totals` what they are worth.
    """
    sequence, kv_head, split = ct.bid(2), ct.bid(1), ct.bid(0)
    token = ct.gather(starts, sequence).item()
    if ct.gather(starts, sequence + 1).item() > token:
        length = ct.gather(lengths, sequence).item()
        rows = ct.arange(BLOCK_M, dtype=ct.int32)
        there, heads = rows < groups, kv_head * groups + rows
        factor = scale
        if K_SCALED:
            factor = scale * ct.gather(k_scale, kv_head).item()
        if CAPPED:
            factor = factor / cap
        else:
            factor = factor * LOG2E
        if CODES:
            dims = 2 * ct.arange(DIM // 2, dtype=ct.int32)[None, :]
            a = ct.gather(q, (token, heads[:, None], dims), mask=there[:, None]).astype(ct.float32)
            aa = ct.gather(q, (token, heads[:, None], dims + 1), mask=there[:, None]).astype(ct.float32)
            most = ct.max(ct.maximum(ct.abs(a), ct.abs(aa)), axis=1, keepdims=True)
            # A power of two, so that the numbers of a row keep their digits.
            power = ct.bitcast(ct.bitcast(most, ct.int32) & EXPONENT, ct.float32)
            power = ct.where((power > 0.0) & (power < float("inf")), power, 1.0)
            a, aa = (a / power).astype(ct.float16), (aa / power).astype(ct.float16)
            factor = power * factor
        else:
            a = ct.gather(q, (token, heads[:, None], ct.arange(DIM, dtype=ct.int32)[None, :]), mask=there[:, None])
            aa = a
        sink = ct.full((BLOCK_M, 1), -float("inf"), dtype=ct.float32)
        if SINKS:
            if split == 0:
                sink = ct.gather(sinks, (heads[:, None],)).astype(ct.float32) * LOG2E
        top = sink
        total = ct.zeros((BLOCK_M, BLOCK_N if LATE else 1), dtype=ct.float32)
        mean = ct.zeros((BLOCK_M, WIDTH // 2 if CODES else WIDTH), dtype=ct.float32)
        other = ct.zeros((BLOCK_M, WIDTH // 2 if CODES else 1), dtype=ct.float32)

        begin, end, whole_end = 0, ct.cdiv(length, BLOCK_N), length // BLOCK_N
        if WINDOWED:
            begin = min(max(length - 1 - left, 0) // BLOCK_N, end)
        if SPLIT:
            share = ct.cdiv(end - begin, splits)
            begin = min(begin + split * share, end)
            end = min(begin + share, end)
        whole_end = max(min(whole_end, end), begin)
        if WINDOWED:
            whole_end = begin
        else:
            if AHEAD:
                # The scores of the next block are found before the softmax of this one, those of the last one twice.
                last = max(whole_end - 1, 0)
                m = min(begin, last)
                pages = pages_of(table, sequence, m, length, BLOCK_N, PAGE)
                following = score(a, aa, k_cache, pages, kv_head, m, factor, cap, BLOCK_N, DIM, PAGE, CODES, CAPPED)
            for n in range(begin, whole_end):
                if AHEAD:
                    found = following
                    m = min(n + 1, last)
                    pages = pages_of(table, sequence, m, length, BLOCK_N, PAGE)
                    following = score(a, aa, k_cache, pages, kv_head, m, factor, cap, BLOCK_N, DIM, PAGE, CODES, CAPPED)
                    pages = pages_of(table, sequence, n, length, BLOCK_N, PAGE)
                else:
                    pages = pages_of(table, sequence, n, length, BLOCK_N, PAGE)
                    found = score(a, aa, k_cache, pages, kv_head, n, factor, cap, BLOCK_N, DIM, PAGE, CODES, CAPPED)
                top, total, mean, other = absorb(
                    found, v_cache, pages, length, kv_head, n, left, top, total, mean, other,
                    BLOCK_N, WIDTH, PAGE, CODES, WINDOWED, False,
                )  # fmt: skip
        for n in range(whole_end, end):
            pages = pages_of(table, sequence, n, length, BLOCK_N, PAGE)
            found = score(a, aa, k_cache, pages, kv_head, n, factor, cap, BLOCK_N, DIM, PAGE, CODES, CAPPED)
            top, total, mean, other = absorb(
                found, v_cache, pages, length, kv_head, n, left, top, total, mean, other,
                BLOCK_N, WIDTH, PAGE, CODES, WINDOWED, True,
            )  # fmt: skip

        if LATE:
            total = ct.sum(total, axis=1, keepdims=True)
        if SINKS:
            total = total + ct.where(sink == -float("inf"), 0.0, ct.exp2(sink - top))
        if V_SCALED:
            of_values = ct.gather(v_scale, kv_head).item()
            mean, other = mean * of_values, other * of_values
        if SPLIT:
            place = split, token, heads[:, None]
            ct.scatter(tops, place, top, mask=there[:, None])
            ct.scatter(totals, place, total, mask=there[:, None])
        else:
            whole = ct.where(total == 0.0, 1.0, total)
            mean, other = mean / whole, other / whole
            place = token, heads[:, None]
            if LSE:
                found = ct.where(total == 0.0, -float("inf"), (top + ct.log2(total)) * LN2)
                ct.scatter(lse, (heads[:, None], token), found, mask=there[:, None])
        mean, other = mean.astype(out.dtype), other.astype(out.dtype)
        if CODES:
            columns = 2 * ct.arange(WIDTH // 2, dtype=ct.int32)[None, :]
            ct.scatter(out, (*place, columns), mean, mask=there[:, None])
            ct.scatter(out, (*place, columns + 1), other, mask=there[:, None])
        else:
            ct.scatter(out, (*place, ct.arange(WIDTH, dtype=ct.int32)[None, :]), mean, mask=there[:, None])
