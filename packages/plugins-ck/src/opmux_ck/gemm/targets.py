"""What the core calls for a product."""

from collections.abc import Iterator

import torch
from torch import Tensor

from opmux_ck.dtypes import SHORT
from opmux_ck.gemm.configs import GemmConfig, loops
from opmux_ck.gemm.instances import Product
from opmux_ck.launching import launch

MOST_BYTES = (1 << 31) - 1
"""Of a matrix in a launch: CK counts the bytes of a buffer, and its elements, in 32 bits."""


def linear(x: Tensor, w: Tensor, bias: Tensor | None, *, config: GemmConfig) -> Tensor:
    """The op `linear`."""
    n, k = w.shape
    rows = x.reshape(-1, k)
    if config.split_k > 1:
        out = _summed(rows, w, bias, config)
    else:
        out = x.new_empty((len(rows), n))
        _multiply(product_of(x.dtype, bias is not None, k, config), rows, w, bias, out, 1)
    return out.view(*x.shape[:-1], n)


def product_of(dtype: torch.dtype, bias: bool, k: int, config: GemmConfig) -> Product:
    """The instance that a call launches."""
    split = config.split_k > 1
    out = torch.float32 if split else dtype
    return Product(SHORT[dtype], SHORT[out], config, loops(config, k), bias and not split)


def _summed(x: Tensor, w: Tensor, bias: Tensor | None, config: GemmConfig) -> Tensor:
    """The sum of the products of the parts of k, in a fixed order."""
    parts = torch.empty((config.split_k, len(x), len(w)), dtype=torch.float32, device=x.device)
    _multiply(product_of(x.dtype, False, x.shape[1], config), x, w, None, parts, config.split_k)
    total = parts.sum(0)
    if bias is not None:
        total += bias
    return total.to(x.dtype)


def _multiply(instance: Product, x: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, splits: int) -> None:
    """Launch a product, in parts that a launch can address; ``out`` has a matrix for each part of k."""
    rows, n = out.shape[-2:]
    if not rows:
        return
    matrices = out.view(splits, rows, n)
    k, tile = x.shape[1], instance.config
    for columns in _parts(n, _row_bytes(w), tile.n):
        for taken in _parts(rows, max(_row_bytes(x), n * out.element_size()), tile.m):
            made = matrices[0, taken, columns]
            count, width = made.shape
            grid = (-(-count // tile.m) * -(-width // tile.n), 1, splits)
            added = made if bias is None else bias[columns]  # without a bias the pointer is not read
            strides = _stride(x[taken]), _stride(w[columns]), n
            launch(instance, grid, x[taken], w[columns], added, made, count, width, k, *strides, splits, rows)


def _row_bytes(matrix: Tensor) -> int:
    return matrix.stride(0) * matrix.element_size()


def _stride(matrix: Tensor) -> int:
    return matrix.stride(0) if len(matrix) > 1 else matrix.shape[1]  # that of one row may not fit 32 bits


def _parts(size: int, row_bytes: int, step: int) -> Iterator[slice]:
    most = max(MOST_BYTES // max(row_bytes, 1) // step, 1) * step
    for first in range(0, size, most):
        yield slice(first, min(first + most, size))
