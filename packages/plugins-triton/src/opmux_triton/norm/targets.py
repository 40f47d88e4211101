"""What the core calls for a norm. Contiguous rows come first and cost the least host time; others are folded."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from opmux_triton.launch import launch
from opmux_triton.norm import kernels
from opmux_triton.rows import parts

Config = Mapping[str, Any]

_DENSELY = torch.contiguous_format


def rms_norm(x: Tensor, weight: Tensor, *, eps: float, weight_offset: float, config: Config) -> Tensor:
    """The op `rms_norm`."""
    size = x.numel()
    if size and x.is_contiguous():
        y = torch.empty_like(x)
        hidden = weight.numel()
        rows = size // hidden
        launch(
            kernels.norm,
            (-(-rows // config["ROWS"]),),
            (x, weight, y, rows, eps, weight_offset),
            {"bias": None, "inner": None, "stride": None, "outer": None, "HIDDEN": hidden, "CENTRED": False, **config},
        )
        return y
    return _norm(x, weight, None, eps, weight_offset, False, config)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float, config: Config) -> Tensor:
    """The op `layer_norm`."""
    return _norm(x, weight, bias, eps, 0.0, True, config)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, weight_offset: float, config: Config
) -> tuple[Tensor, Tensor]:
    """The op `add_rms_norm`."""
    size = x.numel()
    if size and x.is_contiguous() and residual.is_contiguous():
        y, total = torch.empty_like(x), torch.empty_like(residual)
        _add_dense(x, residual, weight, y, total, size, eps, weight_offset, False, config)
        return y, total
    return _add_norm(x, residual, weight, None, eps, weight_offset, False, config)


def add_rms_norm_(
    x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, weight_offset: float, config: Config
) -> None:
    """The op `add_rms_norm_`."""
    size = x.numel()
    if size and x.is_contiguous() and residual.is_contiguous():
        _add_dense(x, residual, weight, x, residual, size, eps, weight_offset, True, config)
    elif size:
        _add_parts(x, residual, weight, None, x, residual, eps, weight_offset, False, True, config)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float, config: Config
) -> tuple[Tensor, Tensor]:
    """The op `add_layer_norm`."""
    return _add_norm(x, residual, weight, bias, eps, 0.0, True, config)


def _norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, offset: float, centred: bool, config: Config
) -> Tensor:
    y = torch.empty_like(x, memory_format=_DENSELY)
    if not x.numel():
        return y
    meta = {"HIDDEN": x.shape[-1], "CENTRED": centred, **config}
    for rows, (x_part, y_part) in parts((x,), (y,)):
        launch(
            kernels.norm,
            (-(-rows.total // config["ROWS"]),),
            (x_part, weight, y_part, rows.total, eps, offset, bias, rows.inner, *rows.stride, *rows.outer),
            meta,
        )
    return y


def _add_dense(
    x: Tensor, residual: Tensor, weight: Tensor, y: Tensor, total: Tensor, size: int, eps: float, offset: float,
    in_place: bool, config: Config,
) -> None:  # fmt: skip
    hidden = weight.numel()
    rows = size // hidden
    launch(
        kernels.add_norm,
        (-(-rows // config["ROWS"]),),
        (x, residual, weight, y, total, rows, eps, offset),
        {**_DENSE, "HIDDEN": hidden, "CENTRED": False, "IN_PLACE": in_place, **config},
    )


_DENSE = dict.fromkeys(("bias", "inner", "x_stride", "residual_stride", "x_outer", "residual_outer"))


def _add_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float, offset: float, centred: bool,
    config: Config,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    y = torch.empty_like(x, memory_format=_DENSELY)
    total = torch.empty_like(residual, memory_format=_DENSELY)
    if x.numel():
        _add_parts(x, residual, weight, bias, y, total, eps, offset, centred, False, config)
    return y, total


def _add_parts(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, total: Tensor, eps: float,
    offset: float, centred: bool, in_place: bool, config: Config,
) -> None:  # fmt: skip
    meta = {"HIDDEN": x.shape[-1], "CENTRED": centred, "IN_PLACE": in_place, **config}
    for rows, tensors in parts((x, residual), (y, total)):
        x_part, residual_part, y_part, total_part = tensors
        launch(
            kernels.add_norm,
            (-(-rows.total // config["ROWS"]),),
            (
                x_part, residual_part, weight, y_part, total_part, rows.total, eps, offset, bias,
                rows.inner, *rows.stride, *rows.outer,
            ),
            meta,
        )  # fmt: skip
