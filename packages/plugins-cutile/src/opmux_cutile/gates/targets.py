"""What the core calls for a gated activation."""

from functools import lru_cache

import torch
from torch import Tensor

from opmux_cutile.gates.configs import GatedConfig
from opmux_cutile.launching import TileKernel, aligned, in_launches, launch, rows_of
from opmux_cutile.parameters import Array, Constant
from opmux_cutile.replaying import kept
from opmux_cutile.tiles import whole_vectors

MODULE = "opmux_cutile.gates.kernels"


@kept
def silu_and_mul(x: Tensor, *, config: GatedConfig) -> Tensor:
    """The op `silu_and_mul`."""
    return _packed("silu_mul", "silu_and_mul", x, config)


@kept
def gelu_and_mul(x: Tensor, *, approximate: str, config: GatedConfig) -> Tensor:
    """The op `gelu_and_mul`; `approximate` is ``tanh``."""
    return _packed("gelu_tanh_mul", "gelu_and_mul", x, config)


@kept
def silu_mul(gate: Tensor, up: Tensor, *, config: GatedConfig) -> Tensor:
    """The op `silu_mul`."""
    return _run("silu_mul", "silu_mul", gate, up, config)


@kept
def gelu_mul(gate: Tensor, up: Tensor, *, approximate: str, config: GatedConfig) -> Tensor:
    """The op `gelu_mul`; `approximate` is ``tanh``."""
    return _run("gelu_tanh_mul", "gelu_mul", gate, up, config)


def _packed(name: str, op: str, x: Tensor, config: GatedConfig) -> Tensor:
    n = x.shape[-1] // 2
    return _run(name, op, x[..., :n], x[..., n:], config)


def _run(name: str, op: str, gate: Tensor, up: Tensor, config: GatedConfig) -> Tensor:
    y = torch.empty_like(gate, memory_format=torch.contiguous_format)
    if not y.numel():
        return y
    n = y.shape[-1]
    matrices = rows_of(gate, n), rows_of(up, n), y.view(-1, n)
    fits = whole_vectors(n) and aligned(*matrices)
    kernel = _kernel(name, op, config, str(y.dtype).removeprefix("torch."), n if fits else None, fits)
    for parts in in_launches(*matrices):
        launch(kernel, (-(-len(parts[0]) // config.rows) * -(-n // config.columns), 1, 1), *parts)
    return y


@lru_cache(maxsize=1024)
def _kernel(name: str, op: str, config: GatedConfig, dtype: str, n: int | None, fits: bool) -> TileKernel:
    """The kernel for a width, which is compiled in where whole vectors are read; with None it serves all widths."""
    matrix = Array(dtype, (None, n), (None, 1), fits)
    sizes = Constant(config.rows), Constant(config.columns)
    return TileKernel(op, MODULE, name, (matrix, matrix, matrix, *sizes), config.hints)
