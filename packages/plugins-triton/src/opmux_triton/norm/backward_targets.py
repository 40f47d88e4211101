"""What the core calls for the gradients of a norm: one launch over the rows, one that adds the shares up."""

import torch
from torch import Tensor

from opmux_triton.devices import units
from opmux_triton.launch import launch
from opmux_triton.norm import backward_kernels as kernels
from opmux_triton.norm.configs import BackwardConfig
from opmux_triton.repeats import kept, repeated, scratch
from opmux_triton.rows import parts


def rms_norm_backward(
    grad_y: Tensor, x: Tensor, weight: Tensor, *, eps: float, weight_offset: float, output_mask: tuple[bool, ...],
    config: BackwardConfig,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The op `rms_norm_backward`."""
    of_x, of_weight = output_mask
    grad_x, _, grad_weight, _ = _backward(
        grad_y, None, x, weight, eps, weight_offset, (of_x, False, of_weight, False), False, config
    )
    return grad_x, grad_weight


def layer_norm_backward(
    grad_y: Tensor, x: Tensor, weight: Tensor, *, eps: float, output_mask: tuple[bool, ...], config: BackwardConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """The op `layer_norm_backward`."""
    of_x, of_weight, of_bias = output_mask
    grad_x, _, grad_weight, grad_bias = _backward(
        grad_y, None, x, weight, eps, 0.0, (of_x, False, of_weight, of_bias), True, config
    )
    return grad_x, grad_weight, grad_bias


def add_rms_norm_backward(
    grad_y: Tensor, grad_residual_out: Tensor, residual_out: Tensor, weight: Tensor, *, eps: float,
    weight_offset: float, output_mask: tuple[bool, ...], config: BackwardConfig,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The op `add_rms_norm_backward`."""
    of_x, of_residual, of_weight = output_mask
    wanted = (of_x, of_residual, of_weight, False)
    found = _backward(grad_y, grad_residual_out, residual_out, weight, eps, weight_offset, wanted, False, config)
    return found[0], found[1], found[2]


def add_layer_norm_backward(
    grad_y: Tensor, grad_residual_out: Tensor, residual_out: Tensor, weight: Tensor, *, eps: float,
    output_mask: tuple[bool, ...], config: BackwardConfig,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The op `add_layer_norm_backward`."""
    of_x, of_residual, of_weight, of_bias = output_mask
    wanted = (of_x, of_residual, of_weight, of_bias)
    return _backward(grad_y, grad_residual_out, residual_out, weight, eps, 0.0, wanted, True, config)


def _backward(
    grad_y: Tensor, grad_total: Tensor | None, x: Tensor, weight: Tensor, eps: float, offset: float,
    wanted: tuple[bool, bool, bool, bool], centred: bool, config: BackwardConfig,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of (x, residual, weight, bias), empty where not wanted; grad_y's dtype is the first one's."""
    of_x, of_residual, of_weight, of_bias = wanted
    device, none, hidden = x.device, (0,), x.shape[-1]
    grad_x = torch.empty(x.shape if of_x else none, dtype=grad_y.dtype, device=device)
    grad_residual = torch.empty(x.shape if of_residual else none, dtype=x.dtype, device=device)
    if not x.numel():
        grad_weight = torch.zeros(hidden if of_weight else none, dtype=weight.dtype, device=device)
        return grad_x, grad_residual, grad_weight, torch.zeros_like(grad_weight) if of_bias else weight.new_empty(0)
    grad_weight = torch.empty(hidden if of_weight else none, dtype=weight.dtype, device=device)
    grad_bias = torch.empty(hidden if of_bias else none, dtype=weight.dtype, device=device)
    found = grad_x, grad_residual, grad_weight, grad_bias
    if not any(wanted):
        return found
    given = (grad_y, x, weight) if grad_total is None else (grad_y, x, weight, grad_total)
    results = tuple(made for made, of in zip(found, wanted, strict=True) if of)
    key = ("norm backward", id(config), x.shape, eps, offset, wanted, centred, grad_total is None)
    if not repeated(key, given, results):
        with kept(key, given, results, config):
            _launch(grad_y, grad_total, x, weight, found, eps, offset, wanted, centred, config)
    return found


def _launch(
    grad_y: Tensor, grad_total: Tensor | None, x: Tensor, weight: Tensor,
    found: tuple[Tensor, Tensor, Tensor, Tensor], eps: float, offset: float, wanted: tuple[bool, bool, bool, bool],
    centred: bool, config: BackwardConfig,
) -> None:  # fmt: skip
    grad_x, grad_residual, grad_weight, grad_bias = found
    of_x, of_residual, of_weight, of_bias = wanted
    hidden = x.shape[-1]
    if config.wide is not None and any(t.element_size() > 2 for t in (grad_y, x, weight)):
        config = config.wide
    given = [grad_y, x] if grad_total is None or not (of_x or of_residual) else [grad_y, x, grad_total]
    made = ([grad_x] if of_x else []) + ([grad_residual] if of_residual else [])
    pieces = list(parts(given, made))
    most = units(x) * config.programs
    counts = [min(most, -(-rows.total // config.rows)) for rows, _ in pieces]
    kinds, total = of_weight + of_bias, sum(counts)
    partial = scratch((kinds, total, hidden), x) if kinds else None
    meta = {
        "HIDDEN": hidden, "CENTRED": centred, "OF_WEIGHT": of_weight, "OF_BIAS": of_bias, "BLOCK": config.block,
        "TAIL": config.tail, "ROWS": config.rows, "STAGES": config.stages,
        "AGAIN": config.again, "num_warps": config.num_warps,
    }  # fmt: skip
    first = 0
    for (rows, tensors), count in zip(pieces, counts, strict=True):
        results = iter(tensors[len(given) :])
        strides = (*rows.stride, None)[:3]
        outers = (*rows.outer, None)[:3]
        share = partial[:, first:] if partial is not None and first else partial
        launch(
            kernels.norm_backward,
            (count,),
            (
                tensors[0], tensors[1], weight, rows.total, eps, offset,
                next(results) if of_x else None, share, total * hidden,
                tensors[2] if len(given) == 3 else None, next(results) if of_residual else None,
                rows.inner, *strides, *outers,
            ),
            meta,
        )  # fmt: skip
        first += count
    if partial is not None:
        _add_up(partial, grad_weight if of_weight else grad_bias, grad_bias if kinds == 2 else None, config)


def _add_up(partial: Tensor, first: Tensor, second: Tensor | None, config: BackwardConfig) -> None:
    kinds, count, hidden = partial.shape
    meta = {
        "HIDDEN": hidden, "COLUMNS": config.sum_columns, "ROWS": config.sum_rows, "num_warps": config.sum_warps
    }  # fmt: skip
    launch(kernels.sum_partials, (-(-hidden // config.sum_columns), kinds), (partial, first, second, count), meta)
