"""What the core calls for a norm."""

import torch
from torch import Tensor

from opmux_asm.dtypes import short
from opmux_asm.kernels import rms_norm as family
from opmux_asm.launching import launch
from opmux_asm.norm.configs import RowsConfig, for_row
from opmux_asm.rows import in_grids, with_row_stride


def rms_norm(x: Tensor, weight: Tensor, *, eps: float, weight_offset: float, config: RowsConfig) -> Tensor:
    """The op `rms_norm`."""
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if not y.numel():
        return y
    hidden = weight.numel()
    tile = for_row(config, hidden * x.element_size())
    name = family.name_of(short(x), short(weight), tile.waves, tile.chunks)
    for x_rows, y_rows in in_grids(with_row_stride(x), y.view(-1, hidden)):
        stride = x_rows.stride(0) * x.element_size()
        options = (stride, hidden, 1 / hidden, eps, weight_offset)
        launch(family.FAMILY, name, (len(x_rows), 1, 1), x_rows, weight, y_rows, *options)
    return y
