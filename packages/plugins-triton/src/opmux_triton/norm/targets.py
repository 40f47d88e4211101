"""What the core calls for a norm. Contiguous rows have kernels of their own; others are folded."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from opmux_triton.launch import launch
from opmux_triton.norm import kernels
from opmux_triton.repeats import kept, repeated
from opmux_triton.rows import parts

Config = Mapping[str, Any]

_DENSELY = torch.contiguous_format


def rms_norm(x: Tensor, weight: Tensor, *, eps: float, weight_offset: float, config: Config) -> Tensor:
    """The op `rms_norm`."""
    return _norm(x, weight, None, eps, weight_offset, False, config)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float, config: Config) -> Tensor:
    """The op `layer_norm`."""
    return _norm(x, weight, bias, eps, 0.0, True, config)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, weight_offset: float, config: Config
) -> tuple[Tensor, Tensor]:
    """The op `add_rms_norm`."""
    y, total = torch.empty_like(x, memory_format=_DENSELY), torch.empty_like(residual, memory_format=_DENSELY)
    _add_norm(x, residual, weight, None, y, total, eps, weight_offset, False, False, config)
    return y, total


def add_rms_norm_(
    x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, weight_offset: float, config: Config
) -> None:
    """The op `add_rms_norm_`."""
    _add_norm(x, residual, weight, None, x, residual, eps, weight_offset, False, True, config)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float, config: Config
) -> tuple[Tensor, Tensor]:
    """The op `add_layer_norm`."""
    y, total = torch.empty_like(x, memory_format=_DENSELY), torch.empty_like(residual, memory_format=_DENSELY)
    _add_norm(x, residual, weight, bias, y, total, eps, 0.0, True, False, config)
    return y, total


def _norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, offset: float, centred: bool, config: Config
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
        if not centred and x.is_contiguous():
            hidden = weight.numel()
            rows = size // hidden
            meta = {**_DENSE, "HIDDEN": hidden, "CENTRED": False, **config}
            launch(kernels.norm, (-(-rows // config["ROWS"]),), (x, weight, y, rows, eps, offset), meta)
            return y
        meta = {"HIDDEN": x.shape[-1], "CENTRED": centred, **config}
        for part, (x_part, y_part) in parts((x,), (y,)):
            arguments = (x_part, weight, y_part, part.total, eps, offset, bias, part.inner, *part.stride, *part.outer)
            launch(kernels.norm, (-(-part.total // config["ROWS"]),), arguments, meta)
    return y


_DENSE = dict.fromkeys(("bias", "inner", "stride", "outer"))
_ADDED_DENSE = dict.fromkeys(("bias", "inner", "x_stride", "residual_stride", "x_outer", "residual_outer"))


def _add_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, total: Tensor, eps: float,
    offset: float, centred: bool, in_place: bool, config: Config,
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
        if not centred and x.is_contiguous() and residual.is_contiguous():
            hidden = weight.numel()
            rows = size // hidden
            meta = {**_ADDED_DENSE, "HIDDEN": hidden, "CENTRED": False, "IN_PLACE": in_place, **config}
            arguments: tuple[Any, ...] = (x, residual, weight, y, total, rows, eps, offset)
            launch(kernels.add_norm, (-(-rows // config["ROWS"]),), arguments, meta)
            return
        meta = {"HIDDEN": x.shape[-1], "CENTRED": centred, "IN_PLACE": in_place, **config}
        for part, (x_part, residual_part, y_part, total_part) in parts((x, residual), (y, total)):
            arguments = (
                x_part, residual_part, weight, y_part, total_part, part.total, eps, offset, bias,
                part.inner, *part.stride, *part.outer,
            )  # fmt: skip
            launch(kernels.add_norm, (-(-part.total // config["ROWS"]),), arguments, meta)
