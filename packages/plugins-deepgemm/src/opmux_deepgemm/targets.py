"""What the core calls."""

import torch
from torch import Tensor

from opmux_deepgemm.configs import Config
from opmux_deepgemm.launching import Scales, launch


def linear(x: Tensor, w: Tensor, bias: Tensor | None, *, config: Config) -> Tensor:
    """The op `linear`."""
    n, k = w.shape
    y = x.new_empty((*x.shape[:-1], n))
    if y.numel():
        launch(config, matrix(x, k), matrix(w, k), y.view(-1, n), bias)
    return y


def scaled_linear(
    x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None, *, out_dtype: torch.dtype,
    config: Config,
) -> Tensor:  # fmt: skip
    """The op `scaled_linear`."""
    n, k = w.shape
    y = x.new_empty((*x.shape[:-1], n), dtype=out_dtype)
    if y.numel():
        scales = Scales(x_scale.reshape(-1, x_scale.shape[-1]), w_scale)
        launch(config, matrix(x, k), matrix(w, k), y.view(-1, n), bias, scales)
    return y


def matrix(tensor: Tensor, columns: int) -> Tensor:
    """A tensor's rows as a matrix that the copy engine reads; copied where its rows overlap or have several strides."""
    rows = tensor if tensor.dim() == 2 else tensor.reshape(-1, columns)
    if len(rows) == 1:  # one row may have any stride
        return rows.as_strided((1, columns), (columns, 1))
    return rows if rows.stride(0) >= columns else rows.contiguous()
