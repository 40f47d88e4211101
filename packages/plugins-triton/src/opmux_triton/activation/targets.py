"""What the core calls for a gated activation. Contiguous rows have kernels of their own; others are folded."""

from typing import Any

import torch
from torch import Tensor

from opmux_triton.activation import kernels
from opmux_triton.activation.configs import GatedConfig
from opmux_triton.launch import launch
from opmux_triton.repeats import kept, repeated
from opmux_triton.rows import parts

SILU = kernels.SILU.value
GELUS = {"none": kernels.GELU.value, "tanh": kernels.GELU_TANH.value}
_PACKED = dict.fromkeys(("up", "inner", "gate_stride", "up_stride", "gate_outer", "up_outer"))
_APART = dict.fromkeys(("inner", "gate_stride", "up_stride", "gate_outer", "up_outer"))


def silu_and_mul(x: Tensor, *, config: GatedConfig) -> Tensor:
    """The op `silu_and_mul`."""
    return _packed(x, SILU, config)


def gelu_and_mul(x: Tensor, *, approximate: str, config: GatedConfig) -> Tensor:
    """The op `gelu_and_mul`."""
    return _packed(x, GELUS[approximate], config)


def silu_mul(gate: Tensor, up: Tensor, *, config: GatedConfig) -> Tensor:
    """The op `silu_mul`."""
    return _apart(gate, up, SILU, config)


def gelu_mul(gate: Tensor, up: Tensor, *, approximate: str, config: GatedConfig) -> Tensor:
    """The op `gelu_mul`."""
    return _apart(gate, up, GELUS[approximate], config)


def _packed(x: Tensor, kind: int, config: GatedConfig) -> Tensor:
    *tokens, width = x.shape
    n = width // 2
    out = x.new_empty((*tokens, n))
    size = out.numel()
    if not size:
        return out
    key = ("gated", id(config), x.shape, kind)
    if repeated(key, (x,), (out,)):
        return out
    with kept(key, (x,), (out,), config):
        tile = tile_of(config)
        if x.is_contiguous():
            _gated((x, out, size // n), size // n, n, {**_PACKED, "N": n, "KIND": kind, **tile})
            return out
        meta = {"N": n, "KIND": kind, **tile}
        for folded, (part, out_part) in parts((x,), (out,)):
            strides = (folded.stride[0], None, folded.outer[0], None)
            _gated((part, out_part, folded.total, None, folded.inner, *strides), folded.total, n, meta)
    return out


def _apart(gate: Tensor, up: Tensor, kind: int, config: GatedConfig) -> Tensor:
    n = gate.shape[-1]
    out = torch.empty_like(gate, memory_format=torch.contiguous_format)
    size = gate.numel()
    if not size:
        return out
    key = ("gated apart", id(config), gate.shape, kind)
    if repeated(key, (gate, up), (out,)):
        return out
    with kept(key, (gate, up), (out,), config):
        tile = tile_of(config)
        if gate.is_contiguous() and up.is_contiguous():
            _gated((gate, out, size // n, up), size // n, n, {**_APART, "N": n, "KIND": kind, **tile})
            return out
        meta = {"N": n, "KIND": kind, **tile}
        for folded, (gate_part, up_part, out_part) in parts((gate, up), (out,)):
            arguments = (gate_part, out_part, folded.total, up_part, folded.inner, *folded.stride, *folded.outer)
            _gated(arguments, folded.total, n, meta)
    return out


def tile_of(config: GatedConfig) -> dict[str, int]:
    """A config as the kernels' constants."""
    return {"BLOCK": config.block, "ROWS": config.rows, "num_warps": config.num_warps}


def _gated(arguments: tuple[Any, ...], rows: int, n: int, meta: dict[str, Any]) -> None:
    launch(kernels.gated, (-(-rows // meta["ROWS"]) * -(-n // meta["BLOCK"]),), arguments, meta)
