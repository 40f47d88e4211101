"""The launch that every op of rows makes."""

from dataclasses import replace

import torch
from torch import Tensor

from opmux_asm.dtypes import short
from opmux_asm.kernels.recipes import Recipe, name_of
from opmux_asm.launching import launch
from opmux_asm.row_ops.configs import RowsConfig, for_row
from opmux_asm.rows import in_grids, with_row_stride

CODES = {
    torch.float8_e4m3fn: "fp8", torch.float8_e4m3fnuz: "fp8", torch.int8: "int8",
}  # fmt: skip
"""The kernels' names of dtypes of codes: each arch has one flavour of fp8, which the records see to."""


def run(
    family: str,
    recipe: Recipe,
    columns: int,
    config: RowsConfig,
    x: Tensor,
    y: Tensor,
    *,
    residual: Tensor | None = None,
    total: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    scales: Tensor | None = None,
    eps: float = 0.0,
    weight_offset: float = 0.0,
) -> None:
    """Launch a kernel of rows.

    Args:
        family: the op.
        recipe: which of its kernels; its dtypes are filled in from the tensors.
        columns: of a row of y.
        config: the tile.
        x: ``(*tokens, columns)``, or twice the columns for gates.
        y: contiguous, of x's leading dims.
        residual: as x.
        total: the sum of x and residual, contiguous.
        weight: ``(columns,)``.
        bias: ``(columns,)``.
        scales: contiguous, of x's leading dims.
        eps: of the norm.
        weight_offset: added to the weight.
    """
    if not y.numel():
        return
    recipe = replace(recipe, x=short(x), weight="" if weight is None else short(weight), biased=bias is not None)
    tile = for_row(config, columns * x.element_size())
    name = name_of(family, recipe, tile.waves, tile.chunks)
    rows = y.numel() // columns
    x_rows = with_row_stride(x)
    residual_rows = x_rows if residual is None else with_row_stride(residual)
    sums = y.view(rows, -1) if total is None else total.view(rows, -1)
    scale_rows = y.view(rows, -1) if scales is None else scales.view(rows, -1)
    for x_part, y_part, residual_part, sum_part, scale_part in in_grids(
        x_rows, y.view(rows, -1), residual_rows, sums, scale_rows
    ):
        launch(
            family, name, (len(x_part), 1, 1), x_part, None if residual is None else residual_part, weight, bias,
            y_part, None if scales is None else scale_part, None if total is None else sum_part,
            x_part.stride(0) * x.element_size(), residual_part.stride(0) * x.element_size(), columns, 1 / columns, eps,
            weight_offset,
        )  # fmt: skip
