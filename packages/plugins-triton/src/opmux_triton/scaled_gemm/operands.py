"""The tensors of a scaled product as the kernels address them."""

from typing import NamedTuple

from torch import Tensor

from opmux_triton.gemm.operands import Operand, rows_of
from opmux_triton.rows import folded

_UNFOLDED = 1 << 30


class Scales(NamedTuple):
    """The scales of rows: row r's begin at ``r // inner * outer + r % inner * row``, and are ``col`` apart."""

    tensor: Tensor
    inner: int
    outer: int
    row: int
    col: int

    @property
    def is_folded(self) -> bool:
        return self.inner != _UNFOLDED

    @property
    def strides(self) -> tuple[int, int, int, int]:
        return self.inner, self.outer, self.row, self.col


def codes_of(x: Tensor) -> Operand:
    """Codes ``(*batch, m, k)`` as rows; copied where their leading dims have more than two strides."""
    return rows_of(x if len(folded((x,))) <= 2 else x.contiguous(), rows_are_k=False)


def scales_of(scale: Tensor, m: int) -> Scales:
    """Scales ``(*batch, m_blocks, k_blocks)`` of rows of matrices with m rows; a matrix may have one row of scales."""
    shared = scale.shape[-2] != m
    dims = folded((scale,), last=2 if shared else 1)
    col = scale.stride(-1)
    if len(dims) > (1 if shared else 2):
        return scales_of(scale.contiguous(), m)
    if not dims:
        return Scales(scale, _UNFOLDED, 0, 0, col)
    if shared:
        return Scales(scale, m, dims[0][1][0], 0, col)
    if len(dims) == 1:
        return Scales(scale, _UNFOLDED, 0, dims[0][1][0], col)
    (_, (outer,)), (inner, (row,)) = dims
    return Scales(scale, inner, outer, row, col)


def weight_scales(scale: Tensor, n: int) -> tuple[int, int, int]:
    """(rows of the weight that share a row of scales, stride of these rows, stride of columns).

    The stride is 0 where there is one row of scales.
    """
    rows = scale.shape[0]
    return (1 if rows == n else 128), (0 if rows == 1 else scale.stride(0)), scale.stride(1)
