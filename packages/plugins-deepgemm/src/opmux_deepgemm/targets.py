"""What the core calls. ``out`` is a tensor that the caller provides for the result, in any strides."""

import torch
from torch import Tensor

from opmux_deepgemm.configs import Config
from opmux_deepgemm.launching import Operands, multiply, repeated, repeated_into
from opmux_deepgemm.summing import add_gradients, add_scaled_gradients


def linear(
    x: Tensor, w: Tensor, bias: Tensor | None, *, out_dtype: torch.dtype | None = None, config: Config,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The op `linear`."""
    dtype = x.dtype if out_dtype is None else out_dtype
    found = repeated(config, (x, w) if bias is None else (x, w, bias), dtype, out)  # the calls that come most often
    if found is not None:
        return found
    return _product(Operands(x, w, bias), (*x.shape[:-1], w.shape[0]), dtype, config, out)


def scaled_linear(
    x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None, *, out_dtype: torch.dtype,
    config: Config, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The op `scaled_linear`."""
    given = (x, w, x_scale, w_scale) if bias is None else (x, w, bias, x_scale, w_scale)
    found = repeated(config, given, out_dtype, out)
    if found is not None:
        return found
    return _product(Operands(x, w, bias, x_scale, w_scale), (*x.shape[:-1], w.shape[0]), out_dtype, config, out)


def grouped_linear(
    x: Tensor, w: Tensor, group_offsets: Tensor, group_sizes: Tensor | None, *, config: Config,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The op `grouped_linear`."""
    given = (x, w, group_offsets) if group_sizes is None else (x, w, group_offsets, group_sizes)
    found = repeated(config, given, x.dtype, out)
    if found is not None:
        return found
    operands = Operands(x, w, offsets=group_offsets, sizes=group_sizes)
    return _product(operands, (x.shape[0], w.shape[1]), x.dtype, config, out)


def scaled_grouped_linear(
    x: Tensor, w: Tensor, group_offsets: Tensor, x_scale: Tensor, w_scale: Tensor, group_sizes: Tensor | None, *,
    out_dtype: torch.dtype, config: Config, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The op `scaled_grouped_linear`."""
    given = (x, w, x_scale, w_scale, group_offsets)
    found = repeated(config, given if group_sizes is None else (*given, group_sizes), out_dtype, out)
    if found is not None:
        return found
    operands = Operands(x, w, None, x_scale, w_scale, group_offsets, group_sizes)
    return _product(operands, (x.shape[0], w.shape[1]), out_dtype, config, out)


def masked_grouped_linear(
    x: Tensor, w: Tensor, masked_m: Tensor, *, expected_m: int, config: Config, out: Tensor | None = None
) -> Tensor:
    """The op `masked_grouped_linear`."""
    found = repeated(config, (x, w, masked_m), x.dtype, out)
    if found is not None:
        return found
    return _product(Operands(x, w, sizes=masked_m), (*x.shape[:2], w.shape[1]), x.dtype, config, out)


def scaled_masked_grouped_linear(
    x: Tensor, w: Tensor, masked_m: Tensor, x_scale: Tensor, w_scale: Tensor, *, expected_m: int,
    out_dtype: torch.dtype, config: Config, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The op `scaled_masked_grouped_linear`."""
    found = repeated(config, (x, w, x_scale, w_scale, masked_m), out_dtype, out)
    if found is not None:
        return found
    operands = Operands(x, w, None, x_scale, w_scale, sizes=masked_m)
    return _product(operands, (*x.shape[:2], w.shape[1]), out_dtype, config, out)


def _product(given: Operands, shape: tuple[int, ...], dtype: torch.dtype, config: Config, out: Tensor | None) -> Tensor:
    y = out
    if y is None or not y.is_contiguous() or y.data_ptr() % 16:  # rows that the copy engine cannot write
        y = given.x.new_empty(shape, dtype=dtype)
        if out is not None and given.layout:
            y.copy_(out)  # rows of no group stay as they are
    if y.numel() and given.w.shape[0]:
        multiply(config, given, y)
    if out is None or y is out:
        return y
    return out.copy_(y)


def scaled_linear_accumulate(
    out: Tensor, x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, *, config: Config
) -> None:
    """The op `scaled_linear_accumulate`."""
    if out.numel() and not repeated_into(config, (x, w, x_scale, w_scale), out, accumulate=True):
        multiply(config, Operands(x, w, None, x_scale, w_scale), out, accumulate=True)


def scaled_grouped_weight_grad(
    out: Tensor, dy: Tensor, x: Tensor, group_offsets: Tensor, dy_scale: Tensor, x_scale: Tensor,
    group_sizes: Tensor | None, *, config: Config,
) -> None:  # fmt: skip
    """The op `scaled_grouped_weight_grad`."""
    if not out.numel() or not x.shape[0]:
        return
    summed = out
    if not out.is_contiguous() or out.data_ptr() % 16:  # rows that the copy engine cannot write
        summed = out.clone(memory_format=torch.contiguous_format)
    add_scaled_gradients(config, dy, x, dy_scale, x_scale, group_offsets, group_sizes, summed)
    if summed is not out:
        out.copy_(summed)


def grouped_weight_grad(
    out: Tensor, dy: Tensor, x: Tensor, group_offsets: Tensor, group_sizes: Tensor | None, *, config: Config
) -> None:
    """The op `grouped_weight_grad`."""
    if out.numel() and x.shape[0]:
        add_gradients(config, dy, x, group_offsets, group_sizes, out)
