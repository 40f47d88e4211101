"""What the core calls for a product."""

from collections.abc import Iterator

import torch
from torch import Tensor

from opmux_ck.dtypes import SHORT
from opmux_ck.gemm.configs import SCALE_BLOCK, BlockCodesConfig, CodesConfig, GemmConfig, loops
from opmux_ck.gemm.instances import Product
from opmux_ck.launching import MOST_BYTES, launch


def linear(
    x: Tensor, w: Tensor, bias: Tensor | None, *, out_dtype: torch.dtype | None = None, config: GemmConfig
) -> Tensor:
    """The op `linear`, with a result in x's dtype."""
    n, k = w.shape
    rows, w = _addressable(x.reshape(-1, k), config.m), _addressable(w, config.n)
    if config.split_k > 1:
        out = _summed(rows, w, bias, config)
    else:
        out = x.new_empty((len(rows), n))
        _multiply(product_of(x.dtype, bias is not None, k, config), rows, w, bias, out, 1)
    return out.view(*x.shape[:-1], n)


def scaled_linear(
    x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None, *, out_dtype: torch.dtype,
    config: CodesConfig,
) -> Tensor:  # fmt: skip
    """The op `scaled_linear` for scales of tokens and channels, or of blocks, without a bias."""
    if isinstance(config, BlockCodesConfig):
        return _by_blocks(x, w, x_scale, w_scale, out_dtype, config)
    n, k = w.shape
    rows, w = _addressable(x.reshape(-1, k), config.m), _addressable(w, config.n)
    scales, weights = x_scale.reshape(-1).contiguous(), w_scale.reshape(-1).contiguous()
    out = torch.empty((len(rows), n), dtype=out_dtype, device=x.device)
    instance = scaled_product_of(x.dtype, out_dtype, k, config)
    for taken, columns in _launches(rows, w, out, config.m, config.n):
        part = rows[taken], w[columns], scales[taken], weights[columns], out[taken, columns]
        count, width = part[-1].shape
        grid = (-(-count // config.m) * -(-width // config.n), 1, 1)
        launch(instance, grid, *part, count, width, k, _stride(part[0]), _stride(part[1]), n, 0, 0)
    return out.view(*x.shape[:-1], n)


def _by_blocks(
    x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, out_dtype: torch.dtype, config: BlockCodesConfig
) -> Tensor:
    """The product of codes with scales of blocks, 1x128 of x and 128x128 of w."""
    n, k = w.shape
    rows, w = _addressable(x.reshape(-1, k), config.m), _addressable(w, SCALE_BLOCK)
    scales = near_scales(x_scale.reshape(len(rows), -1))
    weights = near_scales(w_scale)
    out = torch.empty((len(rows), n), dtype=out_dtype, device=x.device)
    instance = scaled_product_of(x.dtype, out_dtype, k, config)
    for taken, columns in _launches(rows, w, out, config.m, SCALE_BLOCK):
        block = slice(columns.start // SCALE_BLOCK, None)
        part = rows[taken], w[columns], scales[taken], weights[block], out[taken, columns]
        count, width = part[-1].shape
        grid = (-(-count // config.m) * -(-width // config.n), 1, 1)
        strides = (_stride(part[0]), _stride(part[1]), n, *scales.stride(), *weights.stride())
        launch(instance, grid, *part, count, width, k, *strides, *[0] * 6)
    return out.view(*x.shape[:-1], n)


def scaled_product_of(dtype: torch.dtype, out_dtype: torch.dtype, k: int, config: CodesConfig) -> Product:
    """The instance that a call of `scaled_linear` launches."""
    steps = 0 if isinstance(config, BlockCodesConfig) else loops(config, k)
    return Product(SHORT[dtype], SHORT[out_dtype], config, steps)


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
    matrices = out.view(splits, rows, n)
    k, tile = x.shape[1], instance.config
    for taken, columns in _launches(x, w, matrices[0], tile.m, tile.n):
        made = matrices[0, taken, columns]
        count, width = made.shape
        grid = (-(-count // tile.m) * -(-width // tile.n), 1, splits)
        added = made if bias is None else bias[columns]  # without a bias the pointer is not read
        strides = _stride(x[taken]), _stride(w[columns]), n
        launch(instance, grid, x[taken], w[columns], added, made, count, width, k, *strides, splits, rows)


def _launches(x: Tensor, w: Tensor, out: Tensor, m: int, n: int) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of the result that one launch can address, in steps of ``m`` and ``n``: mostly all of them."""
    rows, width = out.shape
    for columns in _parts(width, _row_bytes(w), n):
        for taken in _parts(rows, max(_row_bytes(x), width * out.element_size()), m):
            yield taken, columns


def _addressable(matrix: Tensor, step: int) -> Tensor:
    """A matrix of whose rows a launch can address those of one tile; copied where they are too far apart."""
    return matrix.contiguous() if step * _row_bytes(matrix) > MOST_BYTES else matrix


def near_scales(scales: Tensor) -> Tensor:
    """Scales whose strides and bytes 32 bits can count; copied where theirs cannot be."""
    reach = sum(size * abs(stride) for size, stride in zip(scales.shape, scales.stride(), strict=True))
    return scales.contiguous() if reach * scales.element_size() > MOST_BYTES else scales


def _row_bytes(matrix: Tensor) -> int:
    return matrix.stride(0) * matrix.element_size()


def _stride(matrix: Tensor) -> int:
    return matrix.stride(0) if len(matrix) > 1 else matrix.shape[1]  # that of one row may not fit 32 bits


def _parts(size: int, row_bytes: int, step: int) -> Iterator[slice]:
    most = max(MOST_BYTES // max(row_bytes, 1) // step, 1) * step
    for first in range(0, size, most):
        yield slice(first, min(first + most, size))
