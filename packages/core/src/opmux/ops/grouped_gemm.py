"""Grouped matrix products, as of the experts of a mixture: each group of rows has a weight of its own.

The rows of a group are consecutive, or the first ones of an entry; where they lie is data on the device, which no
backend needs to read on the host. Sums are accumulated as in `opmux.ops.gemm`.
"""

from collections.abc import Callable

from torch import Tensor

from opmux.definition import define_op
from opmux.dtypes import Float32, Int32, Real, accumulation_dtype
from opmux.ops._groups import count_rows, read_counts, read_groups

_REQUIRED = (("n > 0 and k > 0", "a weight has at least one row and one column"),)


def check_groups(op: str, rows_of: str = "x") -> Callable[..., None]:
    """Make the check of an op's groups, of the rows of one of its tensors; it takes the op's arguments by name."""

    def check(*, group_offsets: Tensor, group_sizes: Tensor | None, **arguments: Tensor) -> None:
        read_groups(op, group_offsets, group_sizes, rows=arguments[rows_of].shape[0])

    return check


def check_counts(op: str) -> Callable[..., None]:
    """Make the check of an op's counts; it takes the op's arguments by name."""

    def check(*, x: Tensor, masked_m: Tensor, **_: object) -> None:
        read_counts(op, masked_m, capacity=x.shape[1])

    return check


def grouped_flops(*, x: Tensor, w: Tensor, group_offsets: Tensor, group_sizes: Tensor | None, **_: object) -> float:
    """The operations of a product of the rows that belong to a group."""
    return 2.0 * count_rows(group_offsets, group_sizes, x.shape[0]) * w.shape[1] * w.shape[2]


OF_GROUPS_WITH_ROWS = {"w": "n * k * (m if m < groups else groups)"}
"""The weights that a call reads: those of groups without rows are not."""


def masked_flops(*, x: Tensor, w: Tensor, masked_m: Tensor, expected_m: int, **_: object) -> float:
    """The operations of a product of the rows that count."""
    groups = w.shape[0]
    readable = type(masked_m) is Tensor and not masked_m.is_meta
    rows = int(masked_m.sum()) if readable else groups * min(expected_m, x.shape[1])
    return 2.0 * rows * w.shape[1] * w.shape[2]


@define_op(
    same_dtype=(("x", "w"),),
    require=_REQUIRED,
    gradient="grouped_linear_backward",
    check_data=check_groups("grouped_linear"),
    flops=grouped_flops,
    flops_bound="2 * m * n * k",
    touched=OF_GROUPS_WITH_ROWS,
    capturable=False,
)
def grouped_linear(
    x: Real[Tensor, "m k"],
    w: Real[Tensor, "groups n k"],
    group_offsets: Int32[Tensor, "groups+1"],
    group_sizes: Int32[Tensor, "groups"] | None = None,
) -> Real[Tensor, "m n"]:
    """Multiply each group of rows by the transposed weight of the group.

    ``out[t, j] = sum over i of x[t, i] * w[g, j, i]`` for the rows t of group g, which are those from
    ``group_offsets[g]`` up to ``group_offsets[g + 1]``, or the first ``group_sizes[g]`` of them; accumulated in float32
    (in float64 for float64) and rounded once. A group may be empty. The other rows (padding between groups, and what
    follows the last one) are not read, and not written either: what out holds there is unspecified.

    Args:
        x: The rows, ``(m, k)``, sorted by group.
        w: The weight of each group, ``(groups, n, k)``, in x's dtype.
        group_offsets: Where each group starts and where the last one ends, in rows, int32 ``(groups + 1,)``: starts
            with 0, does not decrease, ends at most at m.
        group_sizes: How many rows from its start on a group has, int32 ``(groups,)``, where groups are padded to
            multiples of a tile; None means that there is no padding between them.

    Returns:
        out: ``(m, n)`` in x's dtype.

    Raises:
        InvalidArgument: If a shape, dtype or device breaks the signature, or n or k is 0; where the data is checked: if
            offsets do not start with 0, decrease, or end past the rows, or if a size is negative or reaches past the
            start of the next group.

    Source:
        Zhao et al., "DeepGEMM: clean and efficient FP8 GEMM kernels", 2025, for the layouts.
    """
    acc = accumulation_dtype(x.dtype)
    out = x.new_empty((x.shape[0], w.shape[1]))
    for group, rows in enumerate(read_groups("grouped_linear", group_offsets, group_sizes, rows=x.shape[0])):
        out[rows] = (x[rows].to(acc) @ w[group].to(acc).T).to(x.dtype)
    return out


def _backward_flops(*, output_mask: tuple[bool, ...], **arguments: Tensor) -> float:
    return grouped_flops(**arguments) * sum(output_mask)


@define_op(
    outputs=("grad_x", "grad_w"),
    same_dtype=(("grad_out", "x", "w"),),
    require=_REQUIRED,
    check_data=check_groups("grouped_linear_backward"),
    flops=_backward_flops,
    flops_bound="2 * m * n * k * (output_mask[0] + output_mask[1])",
    touched=OF_GROUPS_WITH_ROWS,
    capturable=False,
)
def grouped_linear_backward(
    grad_out: Real[Tensor, "m n"],
    x: Real[Tensor, "m k"],
    w: Real[Tensor, "groups n k"],
    group_offsets: Int32[Tensor, "groups+1"],
    group_sizes: Int32[Tensor, "groups"] | None = None,
    *,
    output_mask: tuple[bool, ...] = (True, True),
) -> tuple[Real[Tensor, "m k"], Real[Tensor, "groups n k"]]:
    """Compute the gradients of `grouped_linear`.

    For the rows of group g, ``grad_x = grad_out @ w[g]`` and ``grad_w[g] = grad_out.T @ x``, accumulated in float32 (in
    float64 for float64) and rounded once. Rows of grad_out and x that belong to no group are not read; grad_x is 0
    there, and grad_w is 0 for a group without rows.

    Args:
        grad_out: The gradient of out, ``(m, n)``, in x's dtype.
        x: The rows given to `grouped_linear`, ``(m, k)``.
        w: The weights given to `grouped_linear`, ``(groups, n, k)``, in x's dtype.
        group_offsets: As given to `grouped_linear`, int32 ``(groups + 1,)``.
        group_sizes: As given to `grouped_linear`, int32 ``(groups,)`` or None.
        output_mask: Which of (grad_x, grad_w) are wanted.

    Returns:
        grad_x: ``(m, k)`` in x's dtype; ``(0,)`` where masked out.
        grad_w: ``(groups, n, k)`` in x's dtype; ``(0,)`` where masked out.

    Raises:
        InvalidArgument: As `grouped_linear`.

    Source:
        The chain rule on `grouped_linear`.
    """
    acc = accumulation_dtype(x.dtype)
    grad_x = x.new_zeros(x.shape if output_mask[0] else 0)
    grad_w = w.new_zeros(w.shape if output_mask[1] else 0)
    for group, rows in enumerate(read_groups("grouped_linear_backward", group_offsets, group_sizes, rows=x.shape[0])):
        grad = grad_out[rows].to(acc)
        if output_mask[0]:
            grad_x[rows] = (grad @ w[group].to(acc)).to(x.dtype)
        if output_mask[1]:
            grad_w[group] = (grad.T @ x[rows].to(acc)).to(w.dtype)
    return grad_x, grad_w


@define_op(
    mutates=("out",),
    same_dtype=(("dy", "x"),),
    require=_REQUIRED,
    check_data=check_groups("grouped_weight_grad"),
    flops=lambda *, out, x, group_offsets, group_sizes, **_: grouped_flops(
        x=x, w=out, group_offsets=group_offsets, group_sizes=group_sizes
    ),
    flops_bound="2 * m * n * k",
    touched={"out": OF_GROUPS_WITH_ROWS["w"]},
    capturable=False,
)
def grouped_weight_grad(
    out: Float32[Tensor, "groups n k"],
    dy: Real[Tensor, "m n"],
    x: Real[Tensor, "m k"],
    group_offsets: Int32[Tensor, "groups+1"],
    group_sizes: Int32[Tensor, "groups"] | None = None,
) -> None:
    """Add the gradients of grouped weights to a float32 tensor, as they are gathered over several batches.

    ``out[g] += dy.T @ x`` over the rows of group g, as `grouped_linear` has them: a product that sums over a ragged
    dim. It is accumulated in float32 (in float64 for float64) and not rounded before it is added. A group without rows
    adds nothing.

    Args:
        out: What is added to, ``(groups, n, k)`` float32; written to.
        dy: The gradient of `grouped_linear`'s result, ``(m, n)``.
        x: The rows given to `grouped_linear`, ``(m, k)``, in dy's dtype.
        group_offsets: As given to `grouped_linear`, int32 ``(groups + 1,)``.
        group_sizes: As given to `grouped_linear`, int32 ``(groups,)`` or None.

    Raises:
        InvalidArgument: As `grouped_linear`, or if out requires grad.

    Source:
        The chain rule on `grouped_linear`.
    """
    acc = accumulation_dtype(dy.dtype)
    for group, rows in enumerate(read_groups("grouped_weight_grad", group_offsets, group_sizes, rows=x.shape[0])):
        if rows.stop > rows.start:
            product = dy[rows].to(acc).T @ x[rows].to(acc)
            out[group] = (out[group].to(acc) + product).to(out.dtype)


@define_op(
    same_dtype=(("x", "w"),),
    require=_REQUIRED,
    check_data=check_counts("masked_grouped_linear"),
    flops=masked_flops,
    flops_bound="2 * groups * expected_m * n * k",
    touched={"x": "groups * expected_m * k"},
    capturable=False,
)
def masked_grouped_linear(
    x: Real[Tensor, "groups max_m k"],
    w: Real[Tensor, "groups n k"],
    masked_m: Int32[Tensor, "groups"],
    *,
    expected_m: int,
) -> Real[Tensor, "groups max_m n"]:
    """Multiply the first rows of each group by the transposed weight of the group.

    ``out[g, t, j] = sum over i of x[g, t, i] * w[g, j, i]`` for t below ``masked_m[g]``, accumulated in float32 (in
    float64 for float64) and rounded once. The rows from there on are not read, and not written either: what out holds
    there is unspecified. The counts are data on the device, so one captured graph serves all of them.

    Args:
        x: Room for the rows of each group, ``(groups, max_m, k)``.
        w: The weight of each group, ``(groups, n, k)``, in x's dtype.
        masked_m: How many of its rows each group uses, int32 ``(groups,)``, from 0 to max_m.
        expected_m: How many that are on average, for the choice of a kernel; any number gives the same result.

    Returns:
        out: ``(groups, max_m, n)`` in x's dtype.

    Raises:
        InvalidArgument: If a shape, dtype or device breaks the signature, or n or k is 0; where the data is checked: if
            a count is negative or above max_m.

    Source:
        Zhao et al., "DeepGEMM: clean and efficient FP8 GEMM kernels", 2025, for the layout.
    """
    acc = accumulation_dtype(x.dtype)
    out = x.new_empty((*x.shape[:2], w.shape[1]))
    for group, rows in enumerate(read_counts("masked_grouped_linear", masked_m, capacity=x.shape[1])):
        out[group, :rows] = (x[group, :rows].to(acc) @ w[group].to(acc).T).to(x.dtype)
    return out
