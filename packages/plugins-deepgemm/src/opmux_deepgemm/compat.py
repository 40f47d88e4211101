"""DeepGEMM 2.6's names and keywords for the products that this backend computes, on operands in DeepGEMM's layouts.

``import opmux_deepgemm.compat as deep_gemm`` runs code that was written for DeepGEMM on a Hopper GPU. A result is
written to ``d``. Codes must lie along k, as DeepGEMM asks on Hopper too: the fp8 forms ``nn``, ``tn`` and ``tt`` take
views of such memory. In bfloat16 they take operands across k as well. What is missing raises, and names itself.

Source:
    The interface of DeepGEMM 2.6, https://github.com/deepseek-ai/DeepGEMM.
"""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

import opmux
from opmux.plugin import InvalidArgument, UnsupportedCall
from opmux_deepgemm.implementations import BACKEND
from opmux_deepgemm.launching import limit_units, units_of

Scaled = tuple[Tensor, Tensor]
"""Codes in float8_e4m3fn, and their scales in float32."""
ALIGNMENT = 128
"""Rows to which DeepGEMM's callers pad groups; the kernels here need no padding."""
RECIPES = (None, (1, 128, 128))
"""Blocks of scales: rows of a, rows of b, columns of both."""
TMA_BYTES = 16

_sms: int | None = None


def fp8_gemm_nt(
    a: Scaled, b: Scaled, d: Tensor, c: Tensor | None = None, recipe: tuple[int, int, int] | None = None,
    compiled_dims: str = "nk", disable_ue8m0_cast: bool = False,
) -> None:  # fmt: skip
    """``d = a @ b.T``.

    Args:
        a: ``(m, k)`` and scales of 1x128 blocks, ``(m, ceil(k / 128))`` in any strides.
        b: ``(n, k)`` and scales of 128x128 blocks, ``(ceil(n / 128), ceil(k / 128))``.
        d: ``(m, n)`` bfloat16 or float32; written to.
        c: must be None: nothing is added.
        recipe: the blocks; None or (1, 128, 128).
        compiled_dims: taken for DeepGEMM's sake: n and k are constants of a kernel, m is not.
        disable_ue8m0_cast: taken likewise: scales stay float32 on Hopper.

    Raises:
        UnsupportedCall: where the kernels do not take the call; the message says why.
        InvalidArgument: where shapes or dtypes do not fit.
    """
    _check("fp8_gemm_nt", c, recipe, compiled_dims)
    opmux.scaled_linear(a[0], b[0], a[1], b[1], out_dtype=d.dtype, backend=BACKEND, out=d)


def bf16_gemm_nt(a: Tensor, b: Tensor, d: Tensor, c: Tensor | None = None, compiled_dims: str = "nk") -> None:
    """``d = a @ b.T`` in bfloat16: a ``(m, k)``, b ``(n, k)``, d ``(m, n)``; keywords as `fp8_gemm_nt` has them."""
    _check("bf16_gemm_nt", c, None, compiled_dims)
    opmux.linear(a, b, backend=BACKEND, out=d)


def _turned(nt: Callable[..., None], name: str, a_turned: bool, b_turned: bool) -> Callable[..., None]:
    """A form of a product whose operands are given transposed."""

    def turn(operand: Tensor | Scaled, turned: bool) -> Tensor | Scaled:
        if not turned:
            return operand
        return operand.mT if isinstance(operand, Tensor) else (operand[0].mT, operand[1].mT)

    def product(a: Any, b: Any, d: Tensor, *more: Any, **keywords: Any) -> None:
        nt(turn(a, a_turned), turn(b, b_turned), d, *more, **keywords)

    product.__name__ = product.__qualname__ = name
    left, right = "a.T" if a_turned else "a", "b" if b_turned else "b.T"
    product.__doc__ = f"``d = {left} @ {right}``: `{nt.__name__}` of transposed views, scales likewise."
    return product


fp8_gemm_nn = _turned(fp8_gemm_nt, "fp8_gemm_nn", False, True)
fp8_gemm_tn = _turned(fp8_gemm_nt, "fp8_gemm_tn", True, True)
fp8_gemm_tt = _turned(fp8_gemm_nt, "fp8_gemm_tt", True, False)
bf16_gemm_nn = _turned(bf16_gemm_nt, "bf16_gemm_nn", False, True)
bf16_gemm_tn = _turned(bf16_gemm_nt, "bf16_gemm_tn", True, True)
bf16_gemm_tt = _turned(bf16_gemm_nt, "bf16_gemm_tt", True, False)


def m_grouped_fp8_gemm_nt_contiguous(
    a: Scaled, b: Scaled, d: Tensor, m_indices: Tensor, recipe: tuple[int, int, int] | None = None,
    compiled_dims: str = "nk", disable_ue8m0_cast: bool = False,
) -> None:  # fmt: skip
    """Each row of d is the row of a times the b of its group.

    Args:
        a: ``(m, k)`` and scales, as `fp8_gemm_nt` takes them; the rows of a group are next to each other.
        b: ``(groups, n, k)`` and scales ``(groups, ceil(n / 128), ceil(k / 128))``.
        d: ``(m, n)`` bfloat16; what it holds in rows of no group afterwards is unspecified.
        m_indices: int32 ``(m,)`` on the device: the group of each row, -1 where it has none. Groups come in order;
            rows of no group may come before, between and after them. Where `opmux.policy.check` is on, those before
            the first row of group 0 are refused: the op's offsets begin at 0.
        recipe, compiled_dims, disable_ue8m0_cast: as in `fp8_gemm_nt`.

    Raises:
        UnsupportedCall, InvalidArgument: as `fp8_gemm_nt`.
    """
    _check("m_grouped_fp8_gemm_nt_contiguous", None, recipe, compiled_dims)
    offsets, sizes = _groups(m_indices, b[0].shape[0])
    opmux.scaled_grouped_linear(
        a[0], b[0], offsets, a[1], b[1], sizes, out_dtype=d.dtype, backend=BACKEND, out=d
    )  # fmt: skip


def m_grouped_bf16_gemm_nt_contiguous(
    a: Tensor, b: Tensor, d: Tensor, m_indices: Tensor, compiled_dims: str = "nk"
) -> None:
    """`m_grouped_fp8_gemm_nt_contiguous` in bfloat16."""
    _check("m_grouped_bf16_gemm_nt_contiguous", None, None, compiled_dims)
    opmux.grouped_linear(a, b, *_groups(m_indices, b.shape[0]), backend=BACKEND, out=d)


def m_grouped_fp8_gemm_nt_masked(
    a: Scaled, b: Scaled, d: Tensor, masked_m: Tensor, expected_m: int, recipe: tuple[int, int, int] | None = None,
    compiled_dims: str = "nk", disable_ue8m0_cast: bool = False,
) -> None:  # fmt: skip
    """The first rows of each group times the b of the group.

    Args:
        a: ``(groups, max_m, k)`` and scales ``(groups, max_m, ceil(k / 128))``.
        b: ``(groups, n, k)`` and scales ``(groups, ceil(n / 128), ceil(k / 128))``.
        d: ``(groups, max_m, n)`` bfloat16; rows past the counts are left as they are.
        masked_m: int32 ``(groups,)`` on the device: how many rows count.
        expected_m: how many that are on average; chooses the kernel.
        recipe, compiled_dims, disable_ue8m0_cast: as in `fp8_gemm_nt`.

    Raises:
        UnsupportedCall, InvalidArgument: as `fp8_gemm_nt`.
    """
    _check("m_grouped_fp8_gemm_nt_masked", None, recipe, compiled_dims)
    opmux.scaled_masked_grouped_linear(
        a[0], b[0], masked_m, a[1], b[1], expected_m=expected_m, out_dtype=d.dtype, backend=BACKEND, out=d
    )


def m_grouped_bf16_gemm_nt_masked(
    a: Tensor, b: Tensor, d: Tensor, masked_m: Tensor, expected_m: int, compiled_dims: str = "nk"
) -> None:
    """`m_grouped_fp8_gemm_nt_masked` in bfloat16."""
    _check("m_grouped_bf16_gemm_nt_masked", None, None, compiled_dims)
    opmux.masked_grouped_linear(a, b, masked_m, expected_m=expected_m, backend=BACKEND, out=d)


def k_grouped_bf16_gemm_tn_contiguous(
    a: Tensor, b: Tensor, d: Tensor, ks: Sequence[int], ks_tensor: Tensor, c: Tensor | None = None,
    compiled_dims: str = "mn",
) -> None:  # fmt: skip
    """``d[g] = a[rows].T @ b[rows]`` for the rows of each group, added to c where it is given.

    Args:
        a: ``(sum of ks, m)`` bfloat16: the rows of all groups.
        b: ``(sum of ks, n)`` bfloat16, likewise.
        d: ``(groups, m, n)`` float32; written to.
        ks: how many rows each group has.
        ks_tensor: the same, int32 on the device.
        c: ``(groups, m, n)`` float32, which may be d itself; None stands for 0.
        compiled_dims: as in `fp8_gemm_nt`.

    Raises:
        UnsupportedCall, InvalidArgument: as `fp8_gemm_nt`.
    """
    name = "k_grouped_bf16_gemm_tn_contiguous"
    _check(name, None, None, compiled_dims)
    if len(ks) != len(ks_tensor) or sum(ks) != len(a):
        raise InvalidArgument(
            f"{name}: `ks` expected {len(ks_tensor)} numbers whose sum is {len(a)}, got {len(ks)} with the sum "
            f"{sum(ks)}; give each group's rows of `a`"
        )
    if c is None:
        d.zero_()
    elif c.data_ptr() != d.data_ptr():
        d.copy_(c)
    offsets = torch.nn.functional.pad(ks_tensor.cumsum(0, dtype=torch.int32), (1, 0))
    opmux.grouped_weight_grad(d, a, b, offsets, backend=BACKEND)


def get_mn_major_tma_aligned_tensor(sf: Tensor) -> Tensor:
    """Scales ``(*groups, rows, blocks)`` so that rows are next to each other, each column padded to 16 bytes."""
    rows, blocks = sf.shape[-2:]
    room = sf.new_empty((*sf.shape[:-2], blocks, get_tma_aligned_size(rows, sf.element_size())))
    aligned = room[..., :rows].mT
    return sf if sf.stride() == aligned.stride() else aligned.copy_(sf)


get_col_major_tma_aligned_tensor = get_mn_major_tma_aligned_tensor
"""The same under its older name."""


def get_tma_aligned_size(size: int, element_size: int) -> int:
    """A number of elements, rounded up to multiples of 16 bytes."""
    step = TMA_BYTES // element_size
    return -(-size // step) * step


def transform_sf_into_required_layout(
    sf: Tensor, mn: int, k: int, recipe: tuple[int, ...], num_groups: int | None = None, is_sfa: bool | None = None,
    disable_ue8m0_cast: bool = False,
) -> Tensor:  # fmt: skip
    """Scales as DeepGEMM wants them on Hopper; the kernels here take any strides, so this is never needed.

    Args:
        sf: float32 ``(rows, blocks)``, or ``(num_groups, rows, blocks)``.
        mn: rows of the operand.
        k: its columns.
        recipe: rows of blocks of a and of b and their columns, with ``is_sfa``; or the rows and columns of this one's.
        num_groups: None where there are no groups.
        is_sfa: whether the scales are a's.
        disable_ue8m0_cast: taken for DeepGEMM's sake.

    Returns:
        The scales of 1x128 blocks as `get_mn_major_tma_aligned_tensor` makes them; those of 128x128 blocks unchanged.
    """
    name = "transform_sf_into_required_layout"
    rows, columns = (recipe[0 if is_sfa else 1], recipe[2]) if len(recipe) == 3 else recipe
    if (rows, columns) not in ((1, 128), (128, 128)) or sf.dtype != torch.float32:
        raise UnsupportedCall(
            f"{name}: `recipe` expected blocks of (1, 128) or (128, 128) with float32 scales, got {(rows, columns)} "
            f"with {str(sf.dtype).removeprefix('torch.')}; other blocks are for other GPUs"
        )
    wanted = (*(() if num_groups is None else (num_groups,)), -(-mn // rows), -(-k // columns))
    if tuple(sf.shape) != wanted:
        raise InvalidArgument(f"{name}: `sf` expected the shape {wanted}, got {tuple(sf.shape)}; see `mn` and `k`")
    return get_mn_major_tma_aligned_tensor(sf) if rows == 1 else sf


def get_mk_alignment_for_contiguous_layout() -> int:
    """Rows to which callers of DeepGEMM pad the groups of the contiguous layout: 128."""
    return ALIGNMENT


def set_num_sms(new_num_sms: int) -> None:
    """Let kernels use so many multiprocessors at most; those for few rows use as many as they have blocks.

    Raises:
        InvalidArgument: if it is no number from 1 to the GPU's.
    """
    global _sms
    most = units_of(torch.cuda.current_device())
    if not 0 < new_num_sms <= most:
        raise InvalidArgument(f"set_num_sms: `new_num_sms` expected a number from 1 to {most}, got {new_num_sms}")
    _sms = new_num_sms
    limit_units(new_num_sms)


def get_num_sms() -> int:
    """How many multiprocessors kernels use."""
    return units_of(torch.cuda.current_device()) if _sms is None else _sms


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(
        f"opmux_deepgemm.compat has no {name}: it stands for DeepGEMM's dense products, and those of groups of rows, "
        "on Hopper GPUs; see docs/backends/deepgemm.md"
    )


def _check(name: str, c: Tensor | None, recipe: Sequence[int] | None, compiled_dims: str) -> None:
    if c is not None:
        raise UnsupportedCall(f"{name}: `c` expected None, got a tensor; add it to the result")
    if recipe is not None and tuple(recipe) not in RECIPES:
        raise UnsupportedCall(
            f"{name}: `recipe` expected None or (1, 128, 128), got {tuple(recipe)}; scale by such blocks"
        )
    if set(compiled_dims) - set("mnk"):
        raise InvalidArgument(f"{name}: `compiled_dims` expected letters of 'mnk', got {compiled_dims!r}")


def _groups(m_indices: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Where groups begin and how many rows they have, computed on the device."""
    m = m_indices.shape[0]
    group = torch.where(m_indices < 0, groups, m_indices).long()  # rows of no group are counted apart
    sizes = m_indices.new_zeros(groups + 1).scatter_add_(0, group, torch.ones_like(m_indices))[:groups]
    rows = torch.arange(m, dtype=m_indices.dtype, device=m_indices.device)
    begins = m_indices.new_full((groups + 1,), m).scatter_reduce_(0, group, rows, "amin")
    begins[groups] = m
    offsets = begins.flip(0).cummin(0).values.flip(0)  # an empty group begins where the next one does
    # Without rows, group 0 begins at 0, as the op asks. With rows it begins at its first one: the kernels multiply what
    # offsets and sizes name, so rows of no group in front of it are not counted as its own.
    offsets[:1] *= sizes[:1] > 0
    return offsets, sizes
