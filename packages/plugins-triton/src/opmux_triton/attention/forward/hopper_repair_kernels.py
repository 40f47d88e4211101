"""Where a value that is not finite meets a mask, the Gluon kernel computes these tiles again, slowly and with care.

A masked weight is 0, but 0 times a NaN or an infinity is NaN. So products see finite values only; what the others add
to the queries that attend to them is counted separately. This runs after the fast part, in its default warps, and only
where a result was not finite and a value in the tile's masked blocks is not.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from opmux_triton.attention.forward.hopper_tile_kernels import visited_tile
from opmux_triton.hopper.order import visits
from opmux_triton.scoring import masks
from opmux_triton.scoring.base2 import LOG2_E

_key_limits = gluon.jit(masks.key_limits.fn)
_attends = gluon.jit(masks.attends.fn)
_KEYS: gl.constexpr = gl.constexpr(16)
_VALUES: gl.constexpr = gl.constexpr(64)
"""How many columns of the values are in registers at a time."""


@gluon.jit
def _load_rows(base, row, stride, rows, columns, WIDTH: gl.constexpr, layout: gl.constexpr):
    """Rows of a matrix whose last stride is 1; 0 past the last row and the last column."""
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, layout))
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    return gl.load(base + row.to(gl.int64)[:, None] * stride + column[None, :], mask=inside, other=0.0)


@gluon.jit
def _any_strange(v, stride, low, high, keys, columns, WIDTH: gl.constexpr, layout: gl.constexpr):
    """Whether any value of the keys from low to high is not finite."""
    found = gl.zeros([_KEYS], gl.float32, gl.SliceLayout(1, layout))
    for start in range(low, high, _KEYS):
        key = start + gl.arange(0, _KEYS, layout=gl.SliceLayout(1, layout))
        found += gl.sum(_load_rows(v, key, stride, keys, columns, WIDTH, layout).to(gl.float32) * 0.0, 1)
    return gl.max(gl.where(found == 0, 0, 1), 0) > 0


@gluon.jit
def _repair_tile(
    out, q, k, v, sinks, head, q_stride, k_stride, v_stride, out_stride,
    columns, value_columns, first, begin, end, queries, keys, scale, left, right,
    WIDTH: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """64 rows of queries from ``first`` on; ``v`` and ``out`` begin at the first of ``value_columns`` columns."""
    value_layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    product: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8])
    left_layout: gl.constexpr = gl.DotOperandLayout(0, product, 2)
    right_layout: gl.constexpr = gl.DotOperandLayout(1, product, 2)
    row_layout: gl.constexpr = gl.SliceLayout(1, product)
    query = first + gl.arange(0, 64, layout=row_layout)
    q_rows = first + gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
    q_tile = _load_rows(q, q_rows, q_stride, queries, columns, WIDTH, layout)
    q_tile = gl.convert_layout(q_tile, left_layout)
    if sinks is not None:
        top = gl.full([64], 0.0, gl.float32, row_layout) + gl.load(sinks + head).to(gl.float32) * LOG2_E
        total = gl.exp2(top - gl.where(top == float("-inf"), 0.0, top))
    else:
        top = gl.full([64], float("-inf"), gl.float32, row_layout)
        total = gl.zeros([64], gl.float32, row_layout)
    mean = gl.zeros([64, _VALUES], gl.float32, product)
    count = gl.zeros([64, _VALUES], gl.float32, product)
    for start in range(begin, end, _KEYS):
        rows = start + gl.arange(0, _KEYS, layout=gl.SliceLayout(1, layout))
        k_tile = _load_rows(k, rows, k_stride, keys, columns, WIDTH, layout)
        k_tile = gl.convert_layout(k_tile.permute([1, 0]), right_layout)
        scores = mma_v2(q_tile, k_tile, gl.zeros([64, _KEYS], gl.float32, product))
        key = start + gl.arange(0, _KEYS, layout=gl.SliceLayout(0, product))
        seen = _attends(query[:, None], key[None, :], queries, keys, left, right, LEFT, RIGHT)
        scores = gl.where(seen, scores, float("-inf"))
        new_top = gl.maximum(top, gl.max(scores, 1) * scale)
        anchor = gl.where(new_top == float("-inf"), 0.0, new_top)
        weights = gl.exp2(scores * scale - anchor[:, None])
        decay = gl.exp2(top - anchor)
        total = total * decay + gl.sum(weights, 1)
        top = new_top
        values_at = start + gl.arange(0, _KEYS, layout=gl.SliceLayout(1, value_layout))
        v_tile = _load_rows(v, values_at, v_stride, keys, value_columns, _VALUES, value_layout)
        values = v_tile.to(gl.float32)
        finite = gl.where(gl.abs(values) < float("inf"), values, 0.0).to(v_tile.dtype)
        weights = gl.convert_layout(weights.to(v_tile.dtype), left_layout)
        mean = mma_v2(weights, gl.convert_layout(finite, right_layout), mean * decay[:, None])
        # +inf counts 1, -inf 1024, NaN both; then back to 0 or 1 of each.
        code = gl.where(values < float("inf"), 0.0, 1.0) + gl.where(values > float("-inf"), 0.0, 1024.0)
        code = gl.convert_layout(code.to(gl.float16), right_layout)
        ones = gl.convert_layout(gl.where(seen, 1.0, 0.0).to(gl.float16), left_layout)
        count = mma_v2(ones, code, count)
        thousands = gl.floor(count * (1 / 1024))
        count = gl.where(count > thousands * 1024.0, 1.0, 0.0) + gl.where(thousands > 0, 1024.0, 0.0)
    mean = mean / gl.where(total == 0, 1.0, total)[:, None]
    mean += gl.where((count == 1) | (count == 1025), float("inf"), 0.0)
    mean -= gl.where(count >= 1024, float("inf"), 0.0)
    column = gl.arange(0, _VALUES, layout=gl.SliceLayout(0, product))
    places = out + query.to(gl.int64)[:, None] * out_stride + column[None, :]
    inside = (query < queries)[:, None] & (column < value_columns)[None, :]
    gl.store(places, mean.to(out.dtype.element_ty), mask=inside)


@gluon.jit
def repair(
    out, q, k, v, sinks, strides, sizes,
    BLOCK: gl.constexpr, HEAD_DIM: gl.constexpr, VALUE_DIM: gl.constexpr, HEAD_WIDTH: gl.constexpr,
    VALUE_WIDTH: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, GROUPS: gl.constexpr,
):  # fmt: skip
    """Recompute this program's tiles whose masked blocks hold values that are not finite.

    ``HEAD_WIDTH`` and ``VALUE_WIDTH`` are powers of two that hold the columns.
    """
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // HEAD_WIDTH, HEAD_WIDTH // 8], [4, 1], [1, 0])
    of_values: gl.constexpr = gl.BlockedLayout([1, 8], [256 // VALUE_WIDTH, VALUE_WIDTH // 8], [4, 1], [1, 0])
    PARTS: gl.constexpr = (VALUE_DIM + _VALUES - 1) // _VALUES
    pairs, heads, groups, queries, keys, tiles, section, scale, left, right = sizes
    q_batch, q_stride, q_head, k_batch, k_stride, k_head, v_batch, v_stride, v_head = strides
    for visit in range(visits(tiles * pairs)):
        tile, pair = visited_tile(visit, tiles, pairs, section, RIGHT)
        entry = (pair // heads).to(gl.int64)
        head = (pair % heads).to(gl.int64)
        kv_head = head // groups
        k_rows = k + entry * k_batch + kv_head * k_head
        v_rows = v + entry * v_batch + kv_head * v_head
        first = tile * 64 * GROUPS
        begin, full_begin, full_end, end = _key_limits(
            first, queries, keys, left, right, 64 * GROUPS, BLOCK, LEFT, RIGHT
        )
        most = (end + BLOCK - 1) // BLOCK * BLOCK  # blocks are loaded whole
        strange = _any_strange(
            v_rows, v_stride, begin, gl.minimum(full_begin, most), keys, VALUE_DIM, VALUE_WIDTH, of_values
        )
        strange = strange | _any_strange(v_rows, v_stride, full_end, most, keys, VALUE_DIM, VALUE_WIDTH, of_values)
        if strange:
            for part in range(GROUPS * PARTS):
                group = part // PARTS
                column = part % PARTS * _VALUES
                _repair_tile(
                    out + (entry * queries * heads + head) * VALUE_DIM + column, q + entry * q_batch + head * q_head,
                    k_rows, v_rows + column, sinks, head, q_stride, k_stride, v_stride, heads * VALUE_DIM,
                    HEAD_DIM, VALUE_DIM - column, first + group * 64, begin, end, queries, keys, scale, left, right,
                    HEAD_WIDTH, LEFT, RIGHT, layout,
                )  # fmt: skip
