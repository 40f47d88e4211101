"""DeepGEMM's products whose k is ragged: the gradients of the weights of groups."""

from collections.abc import Sequence

import torch
from torch import Tensor

import opmux
from opmux_deepgemm.compat.adding import Part, add, add_parts, readable
from opmux_deepgemm.compat.arguments import check_codes, check_pairs, check_tensor, sizes_of
from opmux_deepgemm.compat.checking import Recipe, Scaled, check, check_flat, check_rows, check_sums, published
from opmux_deepgemm.implementations import BACKEND


def _bf16_tn(
    name: str, a: Tensor, b: Tensor, d: Tensor, ks_cpu: Sequence[int] | None, grouped_layout: Tensor,
    c: Tensor | None = None, compiled_dims: str = "mn", use_psum_layout: bool = False,
) -> None:  # fmt: skip
    """``d[g] = a[rows].T @ b[rows]`` for the rows of each group, added to c where it is given.

    Args:
        a: ``(sum of ks_cpu, m)`` bfloat16: the rows of all groups.
        b: ``(sum of ks_cpu, n)`` bfloat16, likewise.
        d: ``(groups, m, n)`` float32; written to.
        ks_cpu: how many rows each group has.
        grouped_layout: the same, int32 on the device.
        c: ``(groups, m, n)`` float32, which may be d itself; None stands for 0.
        compiled_dims: see the module.
        use_psum_layout: False; groups by where they end are for other GPUs.

    Raises:
        UnsupportedCall, InvalidArgument: as `fp8_gemm_nt`.
    """
    ks = sizes_of(name, ks_cpu, use_psum_layout)
    check(name, compiled_dims, d, 3, c)
    check_tensor(name, "a", a, 2)
    check_tensor(name, "b", b, 2)
    check_rows(name, ks, grouped_layout, d, len(a))
    add(opmux.grouped_weight_grad, d, c, a, b, _offsets(grouped_layout), backend=BACKEND)


def _fp8_tn(
    name: str, a: Scaled, b: Scaled, d: Tensor, ks_cpu: Sequence[int] | None, grouped_layout: Tensor,
    c: Tensor | None = None, recipe: Recipe = (1, 1, 128), compiled_dims: str = "mn", use_psum_layout: bool = False,
) -> None:  # fmt: skip
    """`k_grouped_bf16_gemm_tn_contiguous` of codes, which are copied so that those of neighbouring rows are neighbours.

    Args:
        a: ``(sum of ks_cpu, m)``, and scales of 128 rows of each column, ``(sum of ks_cpu / 128, m)``.
        b: ``(sum of ks_cpu, n)``, and scales ``(sum of ks_cpu / 128, n)``.
        d: ``(groups, m, n)`` float32; written to.
        ks_cpu: how many rows each group has, multiples of 128.
        grouped_layout: the same, int32 on the device.
        c: ``(groups, m, n)`` float32, which may be d itself; None stands for 0.
        recipe: (1, 1, 128).
        compiled_dims: see the module.
        use_psum_layout: False; groups by where they end are for other GPUs.

    Raises:
        UnsupportedCall, InvalidArgument: as `fp8_gemm_nt`.
    """
    ks = sizes_of(name, ks_cpu, use_psum_layout)
    check_sums(name, recipe, compiled_dims, d, c, ks)
    check_codes(name, a, b, 2, 2)
    check_rows(name, ks, grouped_layout, d, len(a[0]))
    given = a[0], b[0], _offsets(grouped_layout), a[1], b[1]
    add(opmux.scaled_grouped_weight_grad, d, c, *given, backend=BACKEND)


def _fp8_nt(
    name: str, a: Scaled, b: Scaled, d: Tensor, ks_cpu: Sequence[int] | None, grouped_layout: Tensor,
    c: Tensor | None = None, recipe: Recipe = (1, 1, 128), compiled_dims: str = "mn", use_psum_layout: bool = False,
) -> None:  # fmt: skip
    """``d[g] = a[g] @ b[g].T``, added to c where it is given, for groups of any number of columns; a kernel for each.

    Args:
        a: ``(sum of ks_cpu * m,)``: the contiguous matrices ``(m, ks_cpu[g])`` one after the other, and the scales of
            1x128 blocks of them side by side, ``(m, sum of ks_cpu / 128)`` in any strides.
        b: ``(sum of ks_cpu * n,)``, likewise of matrices ``(n, ks_cpu[g])``, and scales ``(n, sum of ks_cpu / 128)``.
        d: ``(groups, m, n)`` float32; written to.
        ks_cpu: how many columns each group has, multiples of 128.
        grouped_layout: the same, int32 on the device.
        c: ``(groups, m, n)`` float32, which may be d itself; None stands for 0.
        recipe: (1, 1, 128).
        compiled_dims: see the module.
        use_psum_layout: False; groups by where they end are for other GPUs.

    Raises:
        UnsupportedCall, InvalidArgument: as `fp8_gemm_nt`.
    """
    ks = sizes_of(name, ks_cpu, use_psum_layout)
    check_sums(name, recipe, compiled_dims, d, c, ks)
    check_pairs(name, a, b)
    m, n = d.shape[1:]
    check_rows(name, ks, grouped_layout, d, sum(ks))
    check_flat(name, "a", a, m, sum(ks))
    check_flat(name, "b", b, n, sum(ks))
    pairs = torch.stack((torch.zeros_like(grouped_layout), grouped_layout), 1)
    a, b = ((readable(codes, d), readable(scales, d)) for codes, scales in (a, b))
    parts, first = list[Part](), 0
    for group, size in enumerate(ks):
        if size and d.numel():
            left, right = (
                codes.flatten()[first * rows : (first + size) * rows].view(rows, size).T
                for codes, rows in ((a[0], m), (b[0], n))
            )
            of_a, of_b = (scale.T[first // 128 : (first + size) // 128] for scale in (a[1], b[1]))
            parts.append((slice(group, group + 1), (left, right, pairs[group], of_a, of_b)))
        first += size
    add_parts(opmux.scaled_grouped_weight_grad, d, c, parts, BACKEND)


k_grouped_bf16_gemm_tn_contiguous = published(_bf16_tn, "k_grouped_bf16_gemm_tn_contiguous")
k_grouped_fp8_gemm_tn_contiguous = published(_fp8_tn, "k_grouped_fp8_gemm_tn_contiguous")
k_grouped_fp8_gemm_nt_contiguous = published(_fp8_nt, "k_grouped_fp8_gemm_nt_contiguous")


def _offsets(sizes: Tensor) -> Tensor:
    return torch.nn.functional.pad(sizes.cumsum(0, dtype=torch.int32), (1, 0))
