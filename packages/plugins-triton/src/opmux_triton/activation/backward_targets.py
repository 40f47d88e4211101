"""What the core calls for the gradients of a gated activation."""

from typing import Any

import torch
from torch import Tensor

from opmux_triton.activation import kernels
from opmux_triton.activation.configs import GatedConfig
from opmux_triton.activation.targets import GELUS, SILU, tile_of
from opmux_triton.launch import launch
from opmux_triton.rows import parts


def silu_and_mul_backward(grad_out: Tensor, x: Tensor, *, output_mask: tuple[bool, ...], config: GatedConfig) -> Tensor:
    """The op `silu_and_mul_backward`."""
    return _packed(grad_out, x, SILU, output_mask, config)


def gelu_and_mul_backward(
    grad_out: Tensor, x: Tensor, *, approximate: str, output_mask: tuple[bool, ...], config: GatedConfig
) -> Tensor:
    """The op `gelu_and_mul_backward`."""
    return _packed(grad_out, x, GELUS[approximate], output_mask, config)


def silu_mul_backward(
    grad_out: Tensor, gate: Tensor, up: Tensor, *, output_mask: tuple[bool, ...], config: GatedConfig
) -> tuple[Tensor, Tensor]:
    """The op `silu_mul_backward`."""
    return _apart(grad_out, gate, up, SILU, output_mask, config)


def gelu_mul_backward(
    grad_out: Tensor, gate: Tensor, up: Tensor, *, approximate: str, output_mask: tuple[bool, ...], config: GatedConfig
) -> tuple[Tensor, Tensor]:
    """The op `gelu_mul_backward`."""
    return _apart(grad_out, gate, up, GELUS[approximate], output_mask, config)


def _packed(grad: Tensor, x: Tensor, kind: int, wanted: tuple[bool, ...], config: GatedConfig) -> Tensor:
    if not wanted[0]:
        return x.new_empty(0)
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not x.numel():
        return grad_x
    n = grad.shape[-1]
    meta = {"N": n, "PACKED": True, "KIND": kind, **tile_of(config)}
    for rows, (grad_part, part, grad_x_part) in parts((grad, x), (grad_x,)):
        _launch(rows.total, n, (grad_part, part, rows.total, grad_x_part, None, None, rows.inner,
                                *rows.stride, None, *rows.outer, None), meta, config)  # fmt: skip
    return grad_x


def _apart(
    grad: Tensor, gate: Tensor, up: Tensor, kind: int, wanted: tuple[bool, ...], config: GatedConfig
) -> tuple[Tensor, Tensor]:
    grads = [
        torch.empty_like(gate, memory_format=torch.contiguous_format) if want else gate.new_empty(0) for want in wanted
    ]
    made = [g for g, want in zip(grads, wanted, strict=True) if want]
    if made and gate.numel():
        n = gate.shape[-1]
        meta = {"N": n, "PACKED": False, "KIND": kind, **tile_of(config)}
        for rows, tensors in parts((grad, gate, up), made):
            results = iter(tensors[3:])
            of_gate = next(results) if wanted[0] else None
            of_up = next(results) if wanted[1] else None
            _launch(rows.total, n, (tensors[0], tensors[1], rows.total, of_gate, of_up, tensors[2], rows.inner,
                                    *rows.stride, *rows.outer), meta, config)  # fmt: skip
    return grads[0], grads[1]


def _launch(rows: int, n: int, arguments: tuple[Any, ...], meta: dict[str, Any], config: GatedConfig) -> None:
    grid = (-(-rows // config.rows) * -(-n // config.block),)
    launch(kernels.gated_backward, grid, arguments, meta)
