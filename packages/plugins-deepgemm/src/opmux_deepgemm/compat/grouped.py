"""DeepGEMM's products of groups of rows, each with a b of its own."""

from torch import Tensor

import opmux
from opmux.plugin import InvalidArgument
from opmux_deepgemm.compat.arguments import check_codes, check_layout, check_tensor
from opmux_deepgemm.compat.checking import Block, Recipe, Scaled, check, need_squares, of_views, published
from opmux_deepgemm.compat.layouts import groups_of, groups_of_ends
from opmux_deepgemm.implementations import BACKEND
from opmux_deepgemm.operand_maps import lies_across


def _fp8_contiguous(
    name: str, a: Scaled, b: Scaled, d: Tensor, grouped_layout: Tensor, recipe: Recipe = None, recipe_a: Block = None,
    recipe_b: Block = None, compiled_dims: str = "nk", disable_ue8m0_cast: bool = False,
    use_psum_layout: bool = False, ensure_zero_padding: bool = True, expected_m_for_psum_layout: int | None = None,
) -> None:  # fmt: skip
    """Each row of d is the row of a times the b of its group.

    Args:
        a: ``(m, k)`` and scales, as `fp8_gemm_nt` takes them; the rows of a group are next to each other.
        b: ``(groups, n, k)`` and scales ``(groups, ceil(n / 128), ceil(k / 128))``.
        d: ``(m, n)`` bfloat16; what it holds in rows of no group afterwards is unspecified.
        grouped_layout: int32 ``(m,)`` on the device: the group of each row, -1 where it has none. Groups come in order;
            rows of no group may come before, between and after them. Where `opmux.policy.check` is on, those before
            the first row of group 0 are refused: the op's offsets begin at 0. With ``use_psum_layout`` int32
            ``(groups,)``: where the rows of each group end, which begins at the next multiple of the alignment.
        recipe: None or (1, 128, 128).
        recipe_a, recipe_b: (1, 128) and (128, 128) where ``recipe`` is None, or none.
        compiled_dims, disable_ue8m0_cast: see the module.
        use_psum_layout: how groups are given.
        ensure_zero_padding: taken for DeepGEMM's sake, which heeds it on other GPUs only.
        expected_m_for_psum_layout: taken for DeepGEMM's sake, with ``use_psum_layout`` only.

    Raises:
        UnsupportedCall, InvalidArgument: as `fp8_gemm_nt`.
    """
    need_squares(name, recipe, recipe_a, recipe_b)
    check(name, compiled_dims, d, 2)
    check_codes(name, a, b, 2, 3)
    offsets, sizes = _groups(
        name, grouped_layout, a[0].shape[0], b[0].shape[0], use_psum_layout, expected_m_for_psum_layout
    )
    opmux.scaled_grouped_linear(
        a[0], b[0], offsets, a[1], b[1], sizes, out_dtype=d.dtype, backend=BACKEND, out=d
    )  # fmt: skip


def _bf16_contiguous(
    name: str, a: Tensor, b: Tensor, d: Tensor, grouped_layout: Tensor, compiled_dims: str = "nk",
    use_psum_layout: bool = False, ensure_zero_padding: bool = True, expected_m_for_psum_layout: int | None = None,
) -> None:  # fmt: skip
    """`m_grouped_fp8_gemm_nt_contiguous` in bfloat16; b may lie across k."""
    check(name, compiled_dims, d, 2)
    check_tensor(name, "a", a, 2)
    check_tensor(name, "b", b, 3)
    groups = _groups(name, grouped_layout, a.shape[0], b.shape[0], use_psum_layout, expected_m_for_psum_layout)
    opmux.grouped_linear(a, _as_read(b), *groups, backend=BACKEND, out=d)


def _as_read(b: Tensor) -> Tensor:
    """The b of all groups as the kernels read it: along k or across it, and copied where it lies otherwise."""
    across = lies_across(b) and b.data_ptr() % 16 == 0 and all(stride % 8 == 0 for stride in b.stride()[::2])
    return b if across else b.contiguous()


def _fp8_masked(
    name: str, a: Scaled, b: Scaled, d: Tensor, masked_m: Tensor, expected_m: int, recipe: Recipe = None,
    recipe_a: Block = None, recipe_b: Block = None, compiled_dims: str = "nk", disable_ue8m0_cast: bool = False,
) -> None:  # fmt: skip
    """The first rows of each group times the b of the group.

    Args:
        a: ``(groups, max_m, k)`` and scales ``(groups, max_m, ceil(k / 128))``.
        b: ``(groups, n, k)`` and scales ``(groups, ceil(n / 128), ceil(k / 128))``.
        d: ``(groups, max_m, n)`` bfloat16; rows past the counts are left as they are.
        masked_m: int32 ``(groups,)`` on the device: how many rows count.
        expected_m: how many that are on average; chooses the kernel.
        recipe, recipe_a, recipe_b: as in `m_grouped_fp8_gemm_nt_contiguous`.
        compiled_dims, disable_ue8m0_cast: see the module.

    Raises:
        UnsupportedCall, InvalidArgument: as `fp8_gemm_nt`.
    """
    need_squares(name, recipe, recipe_a, recipe_b)
    check(name, compiled_dims, d, 3)
    check_codes(name, a, b, 3, 3)
    check_tensor(name, "masked_m", masked_m, 1)
    opmux.scaled_masked_grouped_linear(
        a[0], b[0], masked_m, a[1], b[1], expected_m=expected_m, out_dtype=d.dtype, backend=BACKEND, out=d
    )


def _bf16_masked(
    name: str, a: Tensor, b: Tensor, d: Tensor, masked_m: Tensor, expected_m: int, compiled_dims: str = "nk"
) -> None:
    """`m_grouped_fp8_gemm_nt_masked` in bfloat16."""
    check(name, compiled_dims, d, 3)
    check_tensor(name, "a", a, 3)
    check_tensor(name, "b", b, 3)
    check_tensor(name, "masked_m", masked_m, 1)
    opmux.masked_grouped_linear(a, b, masked_m, expected_m=expected_m, backend=BACKEND, out=d)


_TURNED = "`{}` of a view of b that is transposed in each group."
_ALSO = "`{}` by its other name; codes of four bits are for other GPUs."
_fp8_nn = of_views(_fp8_contiguous, False, True, scaled=True, rank_b=3)
_bf16_nn = of_views(_bf16_contiguous, False, True, rank_b=3)

m_grouped_fp8_gemm_nt_contiguous = published(_fp8_contiguous, "m_grouped_fp8_gemm_nt_contiguous")
m_grouped_fp8_gemm_nn_contiguous = published(
    _fp8_nn, "m_grouped_fp8_gemm_nn_contiguous", _TURNED.format("m_grouped_fp8_gemm_nt_contiguous")
)
m_grouped_fp8_gemm_nt_masked = published(_fp8_masked, "m_grouped_fp8_gemm_nt_masked")
m_grouped_fp8_fp4_gemm_nt_contiguous = published(
    _fp8_contiguous, "m_grouped_fp8_fp4_gemm_nt_contiguous", _ALSO.format("m_grouped_fp8_gemm_nt_contiguous")
)
m_grouped_fp8_fp4_gemm_nn_contiguous = published(
    _fp8_nn, "m_grouped_fp8_fp4_gemm_nn_contiguous", _ALSO.format("m_grouped_fp8_gemm_nn_contiguous")
)
m_grouped_fp8_fp4_gemm_nt_masked = published(
    _fp8_masked, "m_grouped_fp8_fp4_gemm_nt_masked", _ALSO.format("m_grouped_fp8_gemm_nt_masked")
)
m_grouped_bf16_gemm_nt_contiguous = published(_bf16_contiguous, "m_grouped_bf16_gemm_nt_contiguous")
m_grouped_bf16_gemm_nn_contiguous = published(
    _bf16_nn, "m_grouped_bf16_gemm_nn_contiguous", _TURNED.format("m_grouped_bf16_gemm_nt_contiguous")
)
m_grouped_bf16_gemm_nt_masked = published(_bf16_masked, "m_grouped_bf16_gemm_nt_masked")


def _groups(
    name: str, layout: Tensor, rows: int, groups: int, ends: bool, expected_m: int | None
) -> tuple[Tensor, Tensor]:
    if ends:
        check_layout(name, layout, groups, "where the rows of each group of `b` end")
        return groups_of_ends(layout)
    if expected_m is not None:
        raise InvalidArgument(
            f"{name}: `expected_m_for_psum_layout` expected None without `use_psum_layout`, got {expected_m}; leave it "
            "out"
        )
    check_layout(name, layout, rows, "the group of each row of `a`")
    return groups_of(layout, groups)
