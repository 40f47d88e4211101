"""What the core calls for the gradients of a gated activation."""

from functools import lru_cache

import torch
from torch import Tensor

from opmux_cutile.gates.configs import GatedConfig
from opmux_cutile.launching import TileKernel, aligned, in_launches, launch, rows_of
from opmux_cutile.parameters import Array, Constant
from opmux_cutile.tiles import whole_vectors

MODULE = "opmux_cutile.gates.kernels"
BOTH = (True, True)


def silu_and_mul_backward(grad_out: Tensor, x: Tensor, *, output_mask: tuple[bool, ...], config: GatedConfig) -> Tensor:
    """The op `silu_and_mul_backward`."""
    return _packed("silu_and_mul_backward", grad_out, x, output_mask, config)


def gelu_and_mul_backward(
    grad_out: Tensor, x: Tensor, *, approximate: str, output_mask: tuple[bool, ...], config: GatedConfig
) -> Tensor:
    """The op `gelu_and_mul_backward`; `approximate` is ``tanh``."""
    return _packed("gelu_and_mul_backward", grad_out, x, output_mask, config)


def silu_mul_backward(
    grad_out: Tensor, gate: Tensor, up: Tensor, *, output_mask: tuple[bool, ...], config: GatedConfig
) -> tuple[Tensor, Tensor]:
    """The op `silu_mul_backward`."""
    return _apart("silu_mul_backward", grad_out, gate, up, output_mask, config)


def gelu_mul_backward(
    grad_out: Tensor, gate: Tensor, up: Tensor, *, approximate: str, output_mask: tuple[bool, ...], config: GatedConfig
) -> tuple[Tensor, Tensor]:
    """The op `gelu_mul_backward`; `approximate` is ``tanh``."""
    return _apart("gelu_mul_backward", grad_out, gate, up, output_mask, config)


def _packed(op: str, grad: Tensor, x: Tensor, wanted: tuple[bool, ...], config: GatedConfig) -> Tensor:
    if not wanted[0]:
        return x.new_empty(0)
    grad_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    n = grad.shape[-1]
    _run(op, grad, (x[..., :n], x[..., n:]), (grad_x[..., :n], grad_x[..., n:]), BOTH, config)
    return grad_x


def _apart(
    op: str, grad: Tensor, gate: Tensor, up: Tensor, wanted: tuple[bool, ...], config: GatedConfig
) -> tuple[Tensor, Tensor]:
    made = [torch.empty_like(gate, memory_format=torch.contiguous_format) if w else None for w in wanted]
    first = next((m for m in made if m is not None), None)
    if first is None:
        return gate.new_empty(0), up.new_empty(0)
    results = [first if m is None else m for m in made]  # what is not wanted is not written
    _run(op, grad, (gate, up), (results[0], results[1]), (wanted[0], wanted[1]), config)
    grad_gate, grad_up = (gate.new_empty(0) if m is None else m for m in made)
    return grad_gate, grad_up


def _run(
    op: str, grad: Tensor, given: tuple[Tensor, Tensor], made: tuple[Tensor, Tensor], wanted: tuple[bool, bool],
    config: GatedConfig,
) -> None:  # fmt: skip
    if not grad.numel():
        return
    n = grad.shape[-1]
    matrices = tuple(rows_of(tensor, n) for tensor in (grad, *given, *made))
    fits = whole_vectors(n) and aligned(*matrices)
    kernel = _kernel(op, config, str(grad.dtype).removeprefix("torch."), n if fits else None, fits, wanted)
    for parts in in_launches(*matrices):
        launch(kernel, (-(-len(parts[0]) // config.rows) * -(-n // config.columns), 1, 1), *parts)


@lru_cache(maxsize=1024)
def _kernel(
    op: str, config: GatedConfig, dtype: str, n: int | None, fits: bool, wanted: tuple[bool, bool]
) -> TileKernel:
    """The kernel for a width, which is compiled in where whole vectors are read; with None it serves all widths."""
    matrix = Array(dtype, (None, n), (None, 1), fits)
    sizes = (config.rows, config.columns, op.startswith("gelu"), *wanted)
    return TileKernel(op, MODULE, "gate_backward", (matrix,) * 5 + tuple(map(Constant, sizes)), config.hints)
