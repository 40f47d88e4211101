"""Operands in DeepGEMM's layouts: scales as its copies want them, and groups of rows by an index for each row."""

import torch
from torch import Tensor

from opmux.plugin import InvalidArgument, UnsupportedCall
from opmux_deepgemm.compat.arguments import check_number, check_scales, dtype

TMA_BYTES = 16
ALIGNMENT = 128
"""Rows to which DeepGEMM's callers pad groups, unless they set others; the kernels here need no padding."""

_alignment = ALIGNMENT


def get_mn_major_tma_aligned_tensor(sf: Tensor) -> Tensor:
    """Scales ``(*groups, rows, blocks)`` so that rows are next to each other, each column padded to 16 bytes.

    Raises:
        InvalidArgument: If they have no rows and blocks.
    """
    return _aligned("get_mn_major_tma_aligned_tensor", sf)


def get_col_major_tma_aligned_tensor(sf: Tensor) -> Tensor:
    """`get_mn_major_tma_aligned_tensor` by its older name."""
    return _aligned("get_col_major_tma_aligned_tensor", sf)


def _aligned(name: str, sf: Tensor) -> Tensor:
    check_scales(name, sf)
    rows, blocks = sf.shape[-2:]
    room = sf.new_empty((*sf.shape[:-2], blocks, get_tma_aligned_size(rows, sf.element_size())))
    aligned = room[..., :rows].mT
    return sf if sf.stride() == aligned.stride() else aligned.copy_(sf)


def get_tma_aligned_size(size: int, element_size: int) -> int:
    """A number of elements, rounded up to multiples of 16 bytes.

    Raises:
        InvalidArgument: If one is no number, or an element has no part of 16 bytes.
    """
    check_number("get_tma_aligned_size", "size", size, 0)
    check_number("get_tma_aligned_size", "element_size", element_size, 1, TMA_BYTES)
    step = TMA_BYTES // element_size
    return -(-size // step) * step


def transform_sf_into_required_layout(
    sf: Tensor, mn: int, k: int, recipe: tuple[int, ...], num_groups: int | None = None, is_sfa: bool | None = None,
    disable_ue8m0_cast: bool = False, psum_layout: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Scales as DeepGEMM wants them on Hopper; the kernels here take any strides, so this is never needed.

    Args:
        sf: float32 ``(rows, blocks)``, or ``(num_groups, rows, blocks)``.
        mn: rows of the operand.
        k: its columns.
        recipe: rows of blocks of a and of b and their columns, with ``is_sfa``; or the rows and columns of this one's.
        num_groups: None where there are no groups.
        is_sfa: whether the scales are a's, beside 3 numbers; None beside 2.
        disable_ue8m0_cast, psum_layout: taken for DeepGEMM's sake.

    Returns:
        The scales of 1x128 blocks as `get_mn_major_tma_aligned_tensor` makes them; those of 128x128 blocks unchanged.

    Raises:
        UnsupportedCall: Of other blocks, or scales that are not float32.
        InvalidArgument: Where the recipe, ``is_sfa`` and the shape do not fit.
    """
    name = "transform_sf_into_required_layout"
    check_scales(name, sf)
    check_number(name, "mn", mn, 0)
    check_number(name, "k", k, 0)
    if not isinstance(recipe, (tuple, list)) or len(recipe) not in (2, 3):
        raise InvalidArgument(
            f"{name}: `recipe` expected 2 numbers, or 3 with `is_sfa`, got {recipe}; give the blocks' rows and columns"
        )
    if (len(recipe) == 3) != (is_sfa is not None):
        wanted, remedy = (
            ("True or False", "say whether the scales are a's") if len(recipe) == 3 else ("None", "leave it out")
        )
        raise InvalidArgument(
            f"{name}: `is_sfa` expected {wanted} beside a `recipe` of {len(recipe)} numbers, got {is_sfa}; {remedy}"
        )
    rows, columns = (recipe[0 if is_sfa else 1], recipe[2]) if len(recipe) == 3 else recipe
    if (rows, columns) not in ((1, 128), (128, 128)) or sf.dtype != torch.float32:
        raise UnsupportedCall(
            f"{name}: `recipe` expected blocks of (1, 128) or (128, 128) with float32 scales, got {(rows, columns)} "
            f"with {dtype(sf)}; other blocks are for other GPUs"
        )
    shape = (*(() if num_groups is None else (num_groups,)), -(-mn // rows), -(-k // columns))
    if tuple(sf.shape) != shape:
        raise InvalidArgument(f"{name}: `sf` expected the shape {shape}, got {tuple(sf.shape)}; see `mn` and `k`")
    return get_mn_major_tma_aligned_tensor(sf) if rows == 1 else sf


def get_mk_alignment_for_contiguous_layout() -> int:
    """Rows to which callers of DeepGEMM pad the groups of the contiguous layout: 128 unless set otherwise."""
    return _alignment


get_m_alignment_for_contiguous_layout = get_mk_alignment_for_contiguous_layout
get_k_alignment_for_contiguous_layout = get_mk_alignment_for_contiguous_layout


def set_mk_alignment_for_contiguous_layout(alignment: int) -> None:
    """Let callers pad groups to multiples of so many rows.

    Raises:
        InvalidArgument: If it is less than 1.
    """
    global _alignment
    check_number("set_mk_alignment_for_contiguous_layout", "alignment", alignment, 1)
    _alignment = alignment


def get_theoretical_mk_alignment_for_contiguous_layout(expected_m: int | None = None) -> int:
    """Rows to which DeepGEMM would pad groups at least on a Hopper GPU: 128 for any number of rows."""
    return ALIGNMENT


def groups_of(indices: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Where groups begin and how many rows they have, computed on the device.

    Args:
        indices: int32 ``(m,)``: the group of each row, -1 where it has none; groups come in order. A number that is no
            group's stands for none, too. Padding, rows of no
            group behind others of one group in the same block of the alignment, counts as that group's: DeepGEMM
            computes whole blocks.
        groups: how many.

    Returns:
        Offsets int32 ``(groups + 1,)`` and sizes int32 ``(groups,)``.
    """
    m = indices.shape[0]
    blocks = torch.nn.functional.pad(indices, (0, -m % _alignment), value=-1).view(-1, _alignment)
    indices = blocks.cummax(1).values.view(-1)[:m]
    group = torch.where(indices < 0, groups, indices).clamp_(max=groups).long()  # rows of no group are counted apart
    sizes = indices.new_zeros(groups + 1).scatter_add_(0, group, torch.ones_like(indices))[:groups]
    rows = torch.arange(m, dtype=indices.dtype, device=indices.device)
    begins = indices.new_full((groups + 1,), m).scatter_reduce_(0, group, rows, "amin")
    begins[groups] = m
    offsets = begins.flip(0).cummin(0).values.flip(0)  # an empty group begins where the next one does
    # Without rows, group 0 begins at 0, as the op asks. With rows it begins at its first one: the kernels multiply what
    # offsets and sizes name, so rows of no group in front of it are not counted as its own.
    if groups:
        offsets[:1] *= sizes[:1] > 0
    return offsets, sizes


def groups_of_ends(ends: Tensor) -> tuple[Tensor, Tensor]:
    """The same of groups that are given by where their rows end, each begun at a multiple of the alignment."""
    begins = torch.nn.functional.pad((ends[:-1] + (_alignment - 1)) // _alignment * _alignment, (1, 0))
    return torch.cat((begins, ends[-1:])), ends - begins
