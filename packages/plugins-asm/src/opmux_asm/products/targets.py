"""What the core calls for a product."""

import torch
from torch import Tensor

from opmux_asm.dtypes import short
from opmux_asm.kernels import block_products
from opmux_asm.kernels.operands import Operands
from opmux_asm.kernels.products import name_of
from opmux_asm.launching import arch_of, launch
from opmux_asm.products.configs import TileConfig
from opmux_asm.row_ops.launches import CODES
from opmux_asm.rows import in_grids, with_row_stride

LONGEST_STRIDE = 1 << 24
"""Bytes from a row to the next below which the offsets of a tile's rows have 32 bits; wider matrices are copied."""


def linear(
    x: Tensor, w: Tensor, bias: Tensor | None, *, out_dtype: torch.dtype | None = None, config: TileConfig
) -> Tensor:
    """The op `linear`, with a result in x's dtype."""
    y = x.new_empty((*x.shape[:-1], w.shape[0]))
    _run("linear", short(x), x, w, bias, y, None, None, config)
    return y


def scaled_linear(
    x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None, *, out_dtype: torch.dtype,
    config: TileConfig,
) -> Tensor:  # fmt: skip
    """The op `scaled_linear`; the bias is added in float32."""
    y = x.new_empty((*x.shape[:-1], w.shape[0]), dtype=out_dtype)
    scales = x_scale.reshape(-1).contiguous(), w_scale.reshape(-1).contiguous()
    _run("scaled_linear", CODES[x.dtype], x, w, None if bias is None else bias.float(), y, *scales, config)
    return y


def scaled_linear_blocks(
    x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None, *, out_dtype: torch.dtype,
    config: TileConfig,
) -> Tensor:  # fmt: skip
    """The op `scaled_linear` with blocks of 1x128 and 128x128; a wave loads the scales of 32 rows together."""
    y = x.new_empty((*x.shape[:-1], w.shape[0]), dtype=out_dtype)
    scales = x_scale.reshape(-1, x_scale.shape[-1])
    if scales.stride(0) != 1:
        scales = scales.T.contiguous().T
    added = None if bias is None else bias.float()
    _run(block_products.FAMILY, CODES[x.dtype], x, w, added, y, scales, w_scale, config)
    return y


def _run(
    family: str, dtype: str, x: Tensor, w: Tensor, bias: Tensor | None, y: Tensor, x_scale: Tensor | None,
    w_scale: Tensor | None, config: TileConfig,
) -> None:  # fmt: skip
    """Launch a product; y is contiguous and may be empty. Scales of blocks have two dims, others one."""
    if not y.numel():
        return
    n, k = w.shape
    operands = Operands(arch_of(x).name, dtype, short(y))
    is_blocked = family == block_products.FAMILY
    name = (
        block_products.name_of(operands, config.rows, config.columns)
        if is_blocked
        else name_of(family, operands, config.rows, config.columns)
    )
    strides = [
        4 * stride for scale in (x_scale, w_scale) if scale is not None and is_blocked for stride in scale.stride()
    ]
    x_rows, weights = _narrow(with_row_stride(x)), _narrow(w)
    scales = x_rows if x_scale is None else x_scale
    size = x.element_size()
    for x_part, y_part, scale_part in in_grids(x_rows, y.view(-1, n), scales):
        m = len(x_part)
        grid = (-(-n // config.columns), -(-m // config.rows), 1)
        launch(
            family, name, grid, x_part, weights, bias, y_part, None if x_scale is None else scale_part, w_scale, m, n,
            k, x_part.stride(0) * size, weights.stride(0) * size, 0 if bias is None else n * bias.element_size(),
            *strides,
        )  # fmt: skip


def _narrow(matrix: Tensor) -> Tensor:
    """The matrix, or a copy where its rows are too far apart."""
    return matrix if matrix.stride(0) * matrix.element_size() < LONGEST_STRIDE else matrix.contiguous()
