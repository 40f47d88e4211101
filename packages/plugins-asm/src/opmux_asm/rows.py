"""Tensors as rows that kernels can be launched on."""

from collections.abc import Iterator

from torch import Tensor

MOST_ROWS = 1 << 21
"""Rows of a launch: HIP wants fewer than 2**32 threads, and a workgroup has up to 1024."""


def with_row_stride(x: Tensor) -> Tensor:
    """``(*tokens, n)`` as ``(rows, n)``: a view where one stride serves all rows, else a copy."""
    return x.reshape(-1, x.shape[-1])


def in_grids(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Matrices of equally many rows, in parts that a launch may have."""
    rows = tensors[0].shape[0]
    for first in range(0, rows, MOST_ROWS):
        yield tuple(t[first : first + MOST_ROWS] for t in tensors)
