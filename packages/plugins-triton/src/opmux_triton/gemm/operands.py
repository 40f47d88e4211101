"""Tensors as the operands of a product: rows with at most two strides, columns with one."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from opmux_triton.descriptors import ALIGNMENT
from opmux_triton.gemm import vector_kernels
from opmux_triton.launch import launch
from opmux_triton.rows import folded

_UNFOLDED = 1 << 30


class Operand(NamedTuple):
    """A matrix: element (r, c) lies at ``r // inner * outer + r % inner * row + c * col``.

    With rows_are_k, its rows run along the dim that a product sums over.
    """

    tensor: Tensor
    rows: int
    columns: int
    inner: int
    outer: int
    row: int
    col: int
    rows_are_k: bool

    @property
    def is_folded(self) -> bool:
        return self.inner != _UNFOLDED

    @property
    def fits_descriptor(self) -> bool:
        """Whether the tensor memory accelerator reads it: unit columns, rows 16 bytes apart or a multiple."""
        size = self.tensor.element_size()
        return (
            self.inner == _UNFOLDED
            and (self.col == 1 or self.columns == 1)
            and (self.rows == 1 or (self.row >= self.columns and self.row * size % ALIGNMENT == 0))
            and self.tensor.data_ptr() % ALIGNMENT == 0
        )

    @property
    def along_memory(self) -> "Operand":
        """The same elements with unit columns, if they are those of a transposed matrix: its columns are rows then."""
        if self.is_folded or self.col == 1 or self.row != 1 or self.rows == 1 or self.columns == 1:
            return self
        return Operand(
            self.tensor, self.columns, self.rows, self.inner, self.outer, self.col, self.row, not self.rows_are_k
        )

    def described(self, block: int, block_k: int) -> tuple[list[int], list[int], list[int]]:
        """(sizes, strides, block) of a tensor descriptor of its blocks; a single row takes any stride."""
        stride = self.row if self.rows > 1 else -(-self.columns // 16) * 16
        shape = [block_k, block] if self.rows_are_k else [block, block_k]
        return [self.rows, self.columns], [stride, 1], shape


def rows_of(x: Tensor, rows_are_k: bool) -> Operand:
    """A tensor ``(*tokens, columns)`` as an operand; more than two strides before the last dim are packed first."""
    if x.dim() == 2:
        return matrix_of(x, rows_are_k)
    columns = x.shape[-1]
    col = x.stride(-1)
    dims = folded((x,))
    if not dims:
        return Operand(x, 1, columns, _UNFOLDED, 0, columns, col, rows_are_k)
    if len(dims) == 1:
        return Operand(x, dims[0][0], columns, _UNFOLDED, 0, dims[0][1][0], col, rows_are_k)
    if len(dims) > 2:
        return rows_of(_packed(x), rows_are_k)
    (outer, (outer_stride,)), (inner, (stride,)) = dims
    return Operand(x, outer * inner, columns, inner, outer_stride, stride, col, rows_are_k)


def matrix_of(w: Tensor, rows_are_k: bool) -> Operand:
    """A tensor ``(rows, columns)`` as an operand."""
    return Operand(w, w.shape[0], w.shape[1], _UNFOLDED, 0, w.stride(0), w.stride(1), rows_are_k)


def _packed(x: Tensor) -> Tensor:
    """Rows of three strides and more, as a tensor permuted in three leading dims has them, behind one another."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _pack(x, out)
    return out


def _pack(x: Tensor, out: Tensor) -> None:
    if len(folded((x,))) > 2:
        axis = next(axis for axis, size in enumerate(x.shape) if size > 1)
        for index in range(x.shape[axis]):
            _pack(x.select(axis, index), out.select(axis, index))
        return
    source = rows_of(x, rows_are_k=False)
    meta: dict[str, Any] = {"FOLDED": source.is_folded, "ROWS": 16, "BLOCK": 256, "num_warps": 4}
    arguments = (x, out, source.rows, source.columns, source.inner, source.outer, source.row, source.col)
    launch(vector_kernels.pack_rows, (-(-source.rows // 16), -(-source.columns // 256)), arguments, meta)
