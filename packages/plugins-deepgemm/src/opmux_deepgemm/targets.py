"""What the core calls."""

import torch
from torch import Tensor

from opmux_deepgemm.configs import Config
from opmux_deepgemm.launching import Operands, multiply


def linear(x: Tensor, w: Tensor, bias: Tensor | None, *, config: Config) -> Tensor:
    """The op `linear`."""
    y = x.new_empty((*x.shape[:-1], w.shape[0]))
    if y.numel():
        multiply(config, Operands(x, w, bias), y)
    return y


def scaled_linear(
    x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None, *, out_dtype: torch.dtype,
    config: Config,
) -> Tensor:  # fmt: skip
    """The op `scaled_linear`."""
    y = x.new_empty((*x.shape[:-1], w.shape[0]), dtype=out_dtype)
    if y.numel():
        multiply(config, Operands(x, w, bias, x_scale, w_scale), y)
    return y


def grouped_linear(
    x: Tensor, w: Tensor, group_offsets: Tensor, group_sizes: Tensor | None, *, config: Config
) -> Tensor:
    """The op `grouped_linear`."""
    y = x.new_empty((x.shape[0], w.shape[1]))
    if y.numel() and w.shape[0]:
        multiply(config, Operands(x, w, offsets=group_offsets, sizes=group_sizes), y)
    return y


def scaled_grouped_linear(
    x: Tensor, w: Tensor, group_offsets: Tensor, x_scale: Tensor, w_scale: Tensor, group_sizes: Tensor | None, *,
    out_dtype: torch.dtype, config: Config,
) -> Tensor:  # fmt: skip
    """The op `scaled_grouped_linear`."""
    y = x.new_empty((x.shape[0], w.shape[1]), dtype=out_dtype)
    if y.numel() and w.shape[0]:
        multiply(config, Operands(x, w, None, x_scale, w_scale, group_offsets, group_sizes), y)
    return y


def masked_grouped_linear(x: Tensor, w: Tensor, masked_m: Tensor, *, expected_m: int, config: Config) -> Tensor:
    """The op `masked_grouped_linear`."""
    y = x.new_empty((*x.shape[:2], w.shape[1]))
    if y.numel():
        multiply(config, Operands(x, w, sizes=masked_m), y)
    return y


def scaled_masked_grouped_linear(
    x: Tensor, w: Tensor, masked_m: Tensor, x_scale: Tensor, w_scale: Tensor, *, expected_m: int,
    out_dtype: torch.dtype, config: Config,
) -> Tensor:  # fmt: skip
    """The op `scaled_masked_grouped_linear`."""
    y = x.new_empty((*x.shape[:2], w.shape[1]), dtype=out_dtype)
    if y.numel():
        multiply(config, Operands(x, w, None, x_scale, w_scale, sizes=masked_m), y)
    return y
