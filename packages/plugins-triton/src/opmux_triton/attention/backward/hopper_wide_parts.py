"""What the Hopper kernels of wide heads share: tiles of 64 rows whose columns come in one part or two.

``FIRST`` and ``REST`` are the columns of the two parts, powers of two: 256 and 0, 128 and 64, or 128 and 0. What stands
in the place of a rest that does not exist is not read.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from opmux_triton.hopper.names import load_block
from opmux_triton.hopper.views import view


@gluon.constexpr_function
def sum_layout(columns):
    """The layout of a warpgroup's product of 64 rows."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16])


@gluon.constexpr_function
def score_layout():
    """The layout of the scores of 64 queries and 64 keys."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])


@gluon.constexpr_function
def rest_or_least(rest):
    """Columns of the sums of a rest, also where it does not exist."""
    return max(rest, 16)


@gluon.constexpr_function
def swizzled(bits=16):
    """The layout of a tile in shared memory: one panel of 128 bytes of each row after the other."""
    return gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=bits, rank=2)


@gluon.jit
def load_rows(rows_tma, entry, row, head, barrier, tile, rest, FIRST: gl.constexpr, REST: gl.constexpr):
    """Start to load 64 rows of a head, 64 columns at a time."""
    panels = view(tile, rows_tma.dtype, [FIRST // 64, 1, 64, 1, 64], rows_tma.layout)
    for panel in gl.static_range(FIRST // 64):
        load_block(rows_tma, [entry, row, head, panel * 64], barrier, panels.index(panel))
    if REST > 0:
        panels = view(rest, rows_tma.dtype, [1, 1, 64, 1, 64], rows_tma.layout)
        load_block(rows_tma, [entry, row, head, FIRST], barrier, panels.index(0))


@gluon.jit
def across(left, left_rest, right, right_rest, sums, ADD: gl.constexpr, REST: gl.constexpr):
    """Start to compute the products of rows and rows, which are added to ``sums`` with ``ADD``."""
    sums = warpgroup_mma(left, right.permute((1, 0)), sums, use_acc=ADD, is_async=True)
    if REST > 0:
        sums = warpgroup_mma(left_rest, right_rest.permute((1, 0)), sums, is_async=True)
    return sums


@gluon.jit
def along(left, right, right_rest, sums, rest, FIRST: gl.constexpr, REST: gl.constexpr):
    """Start to add the products of columns and rows; ``left`` holds bfloat16 or float16 scores."""
    of_first = gl.convert_layout(left, gl.DotOperandLayout(0, sum_layout(FIRST), 2))
    sums = warpgroup_mma(of_first, right, sums, is_async=True)
    if REST > 0:
        of_rest = gl.convert_layout(left, gl.DotOperandLayout(0, sum_layout(REST), 2))
        rest = warpgroup_mma(of_rest, right_rest, rest, is_async=True)
    return sums, rest, of_first


@gluon.jit
def wait_for(sums, rest, operand, REST: gl.constexpr):
    """(sums, rest), once what `along` started is done."""
    if REST > 0:
        sums, rest, operand = warpgroup_mma_wait(0, [sums, rest, operand])
    else:
        sums, operand = warpgroup_mma_wait(0, [sums, operand])
    return sums, rest


@gluon.jit
def new_barriers(number: gl.constexpr, arrivals: gl.constexpr):
    """Barriers that each wait for some arrivals."""
    barriers = gl.allocate_shared_memory(gl.int64, [number, 1], mbarrier.MBarrierLayout())
    for place in gl.static_range(number):
        mbarrier.init(barriers.index(place), count=arrivals)
    return barriers


@gluon.jit
def store_rows(
    gradients, note, sums, rest, factor, start, first_row, stride, rows,
    COLUMNS: gl.constexpr, FIRST: gl.constexpr, REST: gl.constexpr,
):  # fmt: skip
    """Write the gradients of the rows ``start`` to ``start + 64`` of a head, those that exist.

    Where one is not finite, ``note`` becomes 1, unless it is None.
    """
    if note is not None:
        trouble = gl.sum(sums * 0.0, 1)
        if REST > 0:
            trouble += gl.convert_layout(gl.sum(rest * 0.0, 1), trouble.type.layout)
        present = (trouble != 0) & (start < rows)
        gl.store(note + gl.zeros_like(trouble).to(gl.int32), 1, mask=present)
    dtype: gl.constexpr = gradients.dtype.element_ty
    row = start + gl.arange(0, 64, layout=gl.SliceLayout(1, sum_layout(FIRST)))
    column = gl.arange(0, FIRST, layout=gl.SliceLayout(0, sum_layout(FIRST)))
    places = (first_row + row.to(gl.int64) * stride)[:, None] + column[None, :]
    gl.store(gradients + places, (sums * factor).to(dtype), mask=(row < rows)[:, None] & (column < COLUMNS)[None, :])
    if REST > 0:
        row = start + gl.arange(0, 64, layout=gl.SliceLayout(1, sum_layout(REST)))
        column = FIRST + gl.arange(0, REST, layout=gl.SliceLayout(0, sum_layout(REST)))
        places = (first_row + row.to(gl.int64) * stride)[:, None] + column[None, :]
        live = (row < rows)[:, None] & (column < COLUMNS)[None, :]
        gl.store(gradients + places, (rest * factor).to(dtype), mask=live)
