"""Which keys a tile of queries attends to: the band of the (query, key) plane that ``causal`` and ``window`` leave.

Query ``i`` attends to the keys from ``i + keys - queries - left`` to ``i + keys - queries + right``, both included
(bottom-right). ``LEFT`` and ``RIGHT`` say whether a side is bounded at all; the host passes ``causal`` as
``right = 0`` and drops a side that bounds nothing. With queries and keys, and left and right, exchanged, the
same functions give the queries that attend to a tile of keys.
"""

import triton
import triton.language as tl


@triton.jit
def key_limits(
    start, queries, keys, left, right,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
):  # fmt: skip
    """The keys of the queries ``start`` to ``start + ROWS``, in blocks of ``BLOCK`` keys aligned to key 0.

    Returns:
        (begin, full_begin, full_end, end): the blocks of [begin, full_begin) and of [full_end, end) need a mask, those
        of [full_begin, full_end) are attended to whole by each of the queries. All but ``end``, which is at most
        ``keys``, are multiples of ``BLOCK``. Where nothing is attended to, all ranges are empty.
    """
    offset = keys - queries
    last = tl.minimum(start + ROWS, queries) - 1
    low = 0
    full_low = 0
    high = keys
    full_high = keys
    if LEFT:
        low = tl.maximum(start + offset - left, 0)
        full_low = tl.maximum(last + offset - left, 0)
    if RIGHT:
        high = tl.maximum(tl.minimum(last + offset + right + 1, keys), 0)
        full_high = tl.maximum(tl.minimum(start + offset + right + 1, keys), 0)
    begin = low // BLOCK * BLOCK
    end = tl.maximum(high, begin)
    most = (end + BLOCK - 1) // BLOCK * BLOCK
    full_begin = tl.minimum((full_low + BLOCK - 1) // BLOCK * BLOCK, most)
    full_end = tl.maximum(tl.minimum(full_high // BLOCK * BLOCK, most), full_begin)
    return begin, full_begin, full_end, end


@triton.jit
def bounds(query, queries, keys, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """(low, high) of each query: it sees the keys from low on and before high; none where high is not above low."""
    low = query * 0
    high = low + keys
    if RIGHT:
        high = tl.minimum(query + (keys - queries) + right + 1, keys)
    if LEFT:
        low = tl.maximum(query + (keys - queries) - left, 0)
    return low, high


@triton.jit
def attends(query, key, queries, keys, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """Whether a query sees a key, for indexes of shapes that broadcast; never a key past the last one.

    One comparison per pair: taken as unsigned, a negative distance is a large one.
    """
    low, high = bounds(query, queries, keys, left, right, LEFT, RIGHT)
    if LEFT:
        return (key - low).to(tl.uint32) < tl.maximum(high - low, 0).to(tl.uint32)
    return key < high
