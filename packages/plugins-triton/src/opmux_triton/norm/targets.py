"""What the core calls for a norm. Contiguous rows have kernels of their own; others are folded."""

from typing import Any

import torch
from torch import Tensor

from opmux_triton.launch import launch
from opmux_triton.norm import kernels
from opmux_triton.norm.configs import RowsConfig
from opmux_triton.repeats import kept, repeated
from opmux_triton.rows import parts

_DENSELY = torch.contiguous_format


def rms_norm(x: Tensor, weight: Tensor, *, eps: float, weight_offset: float, config: RowsConfig) -> Tensor:
    """The op `rms_norm`."""
    return _norm(x, weight, None, eps, weight_offset, False, config)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float, config: RowsConfig) -> Tensor:
    """The op `layer_norm`."""
    return _norm(x, weight, bias, eps, 0.0, True, config)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, weight_offset: float, config: RowsConfig
) -> tuple[Tensor, Tensor]:
    """The op `add_rms_norm`."""
    y, total = torch.empty_like(x, memory_format=_DENSELY), torch.empty_like(residual, memory_format=_DENSELY)
    _add_norm(x, residual, weight, None, y, total, eps, weight_offset, False, False, config)
    return y, total


def add_rms_norm_(
    x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, weight_offset: float, config: RowsConfig
) -> None:
    """The op `add_rms_norm_`."""
    _add_norm(x, residual, weight, None, x, residual, eps, weight_offset, False, True, config)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float, config: RowsConfig
) -> tuple[Tensor, Tensor]:
    """The op `add_layer_norm`."""
    y, total = torch.empty_like(x, memory_format=_DENSELY), torch.empty_like(residual, memory_format=_DENSELY)
    _add_norm(x, residual, weight, bias, y, total, eps, 0.0, True, False, config)
    return y, total


def _norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, offset: float, centred: bool, config: RowsConfig
) -> Tensor:
    y = torch.empty_like(x, memory_format=_DENSELY)
    size = x.numel()
    if not size:
        return y
    given, results = (x, weight) if bias is None else (x, weight, bias), (y,)
    key = ("norm", id(config), x.shape, bias is None, eps, offset, centred)
    if repeated(key, given, results):
        return y
    with kept(key, given, results, config):
        tile = _tile_of(config)
        if not centred and x.is_contiguous():
            hidden = weight.numel()
            rows = size // hidden
            meta = {**_DENSE, "HIDDEN": hidden, "CENTRED": False, **tile}
            launch(kernels.norm, (-(-rows // config.rows),), (x, weight, y, rows, eps, offset), meta)
            return y
        meta = {"HIDDEN": x.shape[-1], "CENTRED": centred, **tile}
        for part, (x_part, y_part) in parts((x,), (y,)):
            arguments = (x_part, weight, y_part, part.total, eps, offset, bias, part.inner, *part.stride, *part.outer)
            launch(kernels.norm, (-(-part.total // config.rows),), arguments, meta)
    return y


def _tile_of(config: RowsConfig) -> dict[str, int]:
    """A config as the kernels' constants."""
    return {"BLOCK": config.block, "ROWS": config.rows, "num_warps": config.num_warps}


_DENSE = dict.fromkeys(("bias", "inner", "stride", "outer"))
_ADDED_DENSE = dict.fromkeys(("bias", "inner", "x_stride", "residual_stride", "x_outer", "residual_outer"))


def _add_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, total: Tensor, eps: float,
    offset: float, centred: bool, in_place: bool, config: RowsConfig,
) -> None:  # fmt: skip
    size = x.numel()
    if not size:
        return
    given = (x, residual, weight) if bias is None else (x, residual, weight, bias)
    results = () if in_place else (y, total)
    key = ("add_norm", id(config), x.shape, bias is None, eps, offset, centred, in_place)
    if repeated(key, given, results):
        return
    with kept(key, given, results, config):
        tile = _tile_of(config)
        if not centred and x.is_contiguous() and residual.is_contiguous():
            hidden = weight.numel()
            rows = size // hidden
            meta = {**_ADDED_DENSE, "HIDDEN": hidden, "CENTRED": False, "IN_PLACE": in_place, **tile}
            arguments: tuple[Any, ...] = (x, residual, weight, y, total, rows, eps, offset)
            launch(kernels.add_norm, (-(-rows // config.rows),), arguments, meta)
            return
        meta = {"HIDDEN": x.shape[-1], "CENTRED": centred, "IN_PLACE": in_place, **tile}
        for part, (x_part, residual_part, y_part, total_part) in parts((x, residual), (y, total)):
            arguments = (
                x_part, residual_part, weight, y_part, total_part, part.total, eps, offset, bias,
                part.inner, *part.stride, *part.outer,
            )  # fmt: skip
            launch(kernels.add_norm, (-(-part.total // config.rows),), arguments, meta)
