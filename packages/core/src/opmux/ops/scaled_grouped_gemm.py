"""Grouped products of quantised matrices: each group of rows has a weight, and scales, of its own.

Layouts are those of `opmux.ops.grouped_gemm`, blocks of scales and sums those of `opmux.ops.scaled_gemm`. They are ops
of their own, not optional arguments of the others: scales are required, and what is quantised has no gradient. A
product that sums over rows has scales of blocks of 128 rows: only a scale that all terms of a sum share can leave it.
"""

import torch
from torch import Tensor

from opmux.definition import define_op
from opmux.dtypes import Float32, Int32, Quantized, Real, accumulation_dtype
from opmux.ops._groups import read_counts, read_groups
from opmux.ops._scale_pairs import scale_pairs
from opmux.ops.grouped_gemm import OF_GROUPS_WITH_ROWS, check_counts, check_groups, grouped_flops, masked_flops
from opmux.ops.scaled_gemm import scaled_linear

_WEIGHT = ("n > 0 and k > 0", "a weight has at least one row and one column")
_OF_GROUPS = "({{groups}}, {}, {})"


@define_op(
    out_dtype={"out": "out_dtype"},
    option_dtypes={"out_dtype": Real},
    same_dtype=(("x", "w"),),
    require=(_WEIGHT, scale_pairs("m", "({}, {})", _OF_GROUPS)),
    check_data=check_groups("scaled_grouped_linear"),
    flops=grouped_flops,
    flops_bound="2 * m * n * k",
    touched=OF_GROUPS_WITH_ROWS,
    capturable=False,
)
def scaled_grouped_linear(
    x: Quantized[Tensor, "m k"],
    w: Quantized[Tensor, "groups n k"],
    group_offsets: Int32[Tensor, "groups+1"],
    x_scale: Float32[Tensor, "m_blocks k_blocks"],
    w_scale: Float32[Tensor, "groups w_rows w_blocks"],
    group_sizes: Int32[Tensor, "groups"] | None = None,
    *,
    out_dtype: torch.dtype,
) -> Real[Tensor, "m n"]:
    """Multiply each group of quantised rows by the quantised, transposed weight of the group.

    The rows of group g, as `grouped_linear` has them, give ``scaled_linear(x, w[g], x_scale, w_scale[g])``, accumulated
    and rounded as there. Rows that belong to no group are not read, nor are their scales, and not written
    either: what out holds there is unspecified.

    Args:
        x: The codes of the rows, ``(m, k)``, sorted by group.
        w: The codes of the weight of each group, ``(groups, n, k)``, in x's dtype.
        group_offsets: Where each group starts and where the last one ends, as in `grouped_linear`, int32
            ``(groups + 1,)``.
        x_scale: The scales of x, ``(1, 1)`` for all rows, ``(m, 1)`` for tokens or ``(m, ceil(k / 128))`` for blocks of
            1x128, float32, in any strides.
        w_scale: The scales of w, in the same order ``(groups, 1, 1)``, ``(groups, n, 1)`` for channels, and
            ``(groups, ceil(n / 128), ceil(k / 128))`` for blocks of 128x128 or ``(groups, n, ceil(k / 128))`` for
            1x128; float32.
        group_sizes: How many rows from its start on a group has, int32 ``(groups,)``; None means that there is no
            padding between groups.
        out_dtype: The dtype of out.

    Returns:
        out: ``(m, n)`` in out_dtype.

    Raises:
        InvalidArgument: If the scales are of no such pair of blocks, x and w differ in dtype, n or k is 0, or another
            argument breaks the signature; where the data is checked: as `grouped_linear`.

    Source:
        Zhao et al., "DeepGEMM: clean and efficient FP8 GEMM kernels", 2025, for the layouts.
    """
    out = x.new_empty((x.shape[0], w.shape[1]), dtype=out_dtype)
    for group, rows in enumerate(read_groups("scaled_grouped_linear", group_offsets, group_sizes, rows=x.shape[0])):
        of_rows = x_scale if x_scale.shape[0] == 1 else x_scale[rows]
        out[rows] = scaled_linear.reference(x[rows], w[group], of_rows, w_scale[group], None, out_dtype=out_dtype)
    return out


ROWS_OF_SCALE = 128
"""Rows that share a scale where a product sums over rows."""


@define_op(
    mutates=("out",),
    same_dtype=(("dy", "x"),),
    require=(("n > 0 and k > 0", "a weight has at least one row and one column"),),
    check_data=check_groups("scaled_grouped_weight_grad"),
    flops=lambda *, out, x, group_offsets, group_sizes, **_: grouped_flops(
        x=x, w=out, group_offsets=group_offsets, group_sizes=group_sizes
    ),
    flops_bound="2 * m * n * k",
    touched={"out": OF_GROUPS_WITH_ROWS["w"]},
    capturable=False,
)
def scaled_grouped_weight_grad(
    out: Float32[Tensor, "groups n k"],
    dy: Quantized[Tensor, "m n"],
    x: Quantized[Tensor, "m k"],
    group_offsets: Int32[Tensor, "groups+1"],
    dy_scale: Float32[Tensor, "m/128 n"],
    x_scale: Float32[Tensor, "m/128 k"],
    group_sizes: Int32[Tensor, "groups"] | None = None,
) -> None:
    """Add the gradients of grouped weights to a float32 tensor, from quantised gradients and rows.

    ``out[g, j, i] += sum over the rows t of group g of dy[t, j] * dy_scale[t // 128, j] * x[t, i] * x_scale[t // 128,
    i]``, with the groups of `grouped_linear`: `grouped_weight_grad` of the values that the codes stand for. The
    products of the codes of a group in one block of 128 rows are summed in float32 (those of int8 may be in int32),
    multiplied by the two scales, and added up in float32; the sum is not rounded before it is added to out. Blocks are
    counted from row 0, not from the group's first row: where each group begins at a multiple of 128, every block
    belongs to one group. A group without rows adds nothing. Rows that belong to no group are not read, nor are the
    scales of blocks without other rows.

    Matrix units for 8-bit floats may ask that the codes which are summed are next to each other: ``dy`` and ``x`` may
    be transposed views of ``(n, m)`` and ``(k, m)``, as `quantize` with blocks of 1x128 makes them of transposed
    tensors, whose scales are then views of ``(n, ceil(m / 128))`` and ``(k, ceil(m / 128))``.

    Args:
        out: What is added to, ``(groups, n, k)`` float32; written to.
        dy: The codes of the gradient of `grouped_linear`'s result, ``(m, n)``, in any strides.
        x: The codes of the rows given to `grouped_linear`, ``(m, k)``, in dy's dtype and any strides.
        group_offsets: As given to `grouped_linear`, int32 ``(groups + 1,)``.
        dy_scale: The scale of 128 rows of each column of dy, ``(ceil(m / 128), n)`` float32, in any strides.
        x_scale: The scale of 128 rows of each column of x, ``(ceil(m / 128), k)`` float32, in any strides.
        group_sizes: As given to `grouped_linear`, int32 ``(groups,)`` or None.

    Raises:
        InvalidArgument: If the scales are of other blocks, dy and x differ in dtype, n or k is 0, out requires grad, or
            another argument breaks the signature; where the data is checked: as `grouped_linear`.

    Source:
        Zhao et al., "DeepGEMM: clean and efficient FP8 GEMM kernels", 2025, whose product of ragged k this is.
    """
    acc = accumulation_dtype(out.dtype)
    found = read_groups("scaled_grouped_weight_grad", group_offsets, group_sizes, rows=x.shape[0])
    for group, rows in enumerate(found):
        total = torch.zeros_like(out[group], dtype=acc)
        for block in range(rows.start // ROWS_OF_SCALE, -(-rows.stop // ROWS_OF_SCALE)):
            begin = block * ROWS_OF_SCALE
            part = slice(max(rows.start, begin), min(rows.stop, begin + ROWS_OF_SCALE))
            product = dy[part].to(acc).T @ x[part].to(acc)
            total += product * dy_scale[block].to(acc)[:, None] * x_scale[block].to(acc)
        if rows.stop > rows.start:
            out[group] += total


@define_op(
    out_dtype={"out": "out_dtype"},
    option_dtypes={"out_dtype": Real},
    same_dtype=(("x", "w"),),
    require=(_WEIGHT, scale_pairs("max_m", _OF_GROUPS, _OF_GROUPS)),
    check_data=check_counts("scaled_masked_grouped_linear"),
    flops=masked_flops,
    flops_bound="2 * groups * expected_m * n * k",
    touched={"x": "groups * expected_m * k"},
    capturable=False,
)
def scaled_masked_grouped_linear(
    x: Quantized[Tensor, "groups max_m k"],
    w: Quantized[Tensor, "groups n k"],
    masked_m: Int32[Tensor, "groups"],
    x_scale: Float32[Tensor, "groups m_blocks k_blocks"],
    w_scale: Float32[Tensor, "groups w_rows w_blocks"],
    *,
    expected_m: int,
    out_dtype: torch.dtype,
) -> Real[Tensor, "groups max_m n"]:
    """Multiply the first quantised rows of each group by the quantised, transposed weight of the group.

    The first ``masked_m[g]`` rows of group g are ``scaled_linear(x[g], w[g], x_scale[g], w_scale[g])``, accumulated and
    rounded as there. The rows from there on are not read, nor are their scales, and not written either: what out holds
    there is unspecified. The counts are data on the device, so one captured graph serves all of them.

    Args:
        x: The codes of the rows, ``(groups, max_m, k)``.
        w: The codes of the weight of each group, ``(groups, n, k)``, in x's dtype.
        masked_m: How many of its rows each group uses, int32 ``(groups,)``, from 0 to max_m.
        x_scale: The scales of x, ``(groups, 1, 1)`` for the matrix of a group, ``(groups, max_m, 1)`` for tokens or
            ``(groups, max_m, ceil(k / 128))`` for blocks of 1x128, float32, in any strides.
        w_scale: The scales of w, in the same order ``(groups, 1, 1)``, ``(groups, n, 1)`` for channels, and
            ``(groups, ceil(n / 128), ceil(k / 128))`` for blocks of 128x128 or ``(groups, n, ceil(k / 128))`` for
            1x128; float32.
        expected_m: How many rows groups use on average, for the choice of a kernel; any number gives the same result.
        out_dtype: The dtype of out.

    Returns:
        out: ``(groups, max_m, n)`` in out_dtype.

    Raises:
        InvalidArgument: If the scales are of no such pair of blocks, x and w differ in dtype, n or k is 0, or another
            argument breaks the signature; where the data is checked: if a count is negative or above max_m.

    Source:
        Zhao et al., "DeepGEMM: clean and efficient FP8 GEMM kernels", 2025, for the layout.
    """
    out = x.new_empty((*x.shape[:2], w.shape[1]), dtype=out_dtype)
    for group, rows in enumerate(read_counts("scaled_masked_grouped_linear", masked_m, capacity=x.shape[1])):
        scales = x_scale[group] if x_scale.shape[1] == 1 else x_scale[group, :rows]
        codes, weight = x[group, :rows], w[group]
        out[group, :rows] = scaled_linear.reference(codes, weight, scales, w_scale[group], None, out_dtype=out_dtype)
    return out
