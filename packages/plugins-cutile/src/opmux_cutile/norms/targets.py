"""What the core calls for a norm."""

from functools import lru_cache

import torch
from torch import Tensor

from opmux_cutile.launching import TileKernel, aligned, in_launches, launch, rows_of
from opmux_cutile.norms.configs import NormConfig, tile_columns
from opmux_cutile.parameters import Array, Constant, Parameter, Scalar
from opmux_cutile.replaying import kept
from opmux_cutile.tiles import whole_vectors

MODULE = "opmux_cutile.norms.kernels"
CENTRED_MODULE = "opmux_cutile.norms.centred.kernels"
MADE = {"rms_norm": 1, "add_rms_norm": 2, "layer_norm": 1, "add_layer_norm": 2}
"""Matrices that each kernel writes."""
PACKED = torch.contiguous_format


@kept
def rms_norm(x: Tensor, weight: Tensor, *, eps: float, weight_offset: float, config: NormConfig) -> Tensor:
    """The op `rms_norm`."""
    y = torch.empty_like(x, memory_format=PACKED)
    _run("rms_norm", config, (x,), (weight,), (y,), (eps, weight_offset))
    return y


@kept
def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, weight_offset: float, config: NormConfig
) -> tuple[Tensor, Tensor]:
    """The op `add_rms_norm`."""
    y, total = torch.empty_like(x, memory_format=PACKED), torch.empty_like(residual, memory_format=PACKED)
    _run("add_rms_norm", config, (x, residual), (weight,), (y, total), (eps, weight_offset))
    return y, total


@kept
def add_rms_norm_(
    x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, weight_offset: float, config: NormConfig
) -> None:
    """The op `add_rms_norm_`: each thread has read its elements of x and residual when it overwrites them."""
    _run("add_rms_norm", config, (x, residual), (weight,), (x, residual), (eps, weight_offset), in_place=True)


@kept
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float, config: NormConfig) -> Tensor:
    """The op `layer_norm`."""
    y = torch.empty_like(x, memory_format=PACKED)
    vectors = (weight, weight if bias is None else bias)
    _run("layer_norm", config, (x,), vectors, (y,), (eps,), Constant(bias is not None))
    return y


@kept
def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float, config: NormConfig
) -> tuple[Tensor, Tensor]:
    """The op `add_layer_norm`."""
    y, total = torch.empty_like(x, memory_format=PACKED), torch.empty_like(residual, memory_format=PACKED)
    vectors = (weight, weight if bias is None else bias)
    _run("add_layer_norm", config, (x, residual), vectors, (y, total), (eps,), Constant(bias is not None))
    return y, total


def _run(
    name: str,
    config: NormConfig,
    given: tuple[Tensor, ...],
    vectors: tuple[Tensor, ...],
    made: tuple[Tensor, ...],
    numbers: tuple[float, ...],
    *more: Constant,
    in_place: bool = False,
) -> None:
    """Launch a norm on matrices that are read, vectors, and packed matrices that are written."""
    if not made[0].numel():
        return
    width = vectors[0].numel()
    matrices = tuple(rows_of(tensor, width) for tensor in (*given, *made))
    fits = whole_vectors(width) and aligned(*matrices, *vectors)
    dtypes = tuple(str(tensor.dtype).removeprefix("torch.") for tensor in (*given, *vectors, *made))
    columns, fixed = tile_columns(config, width), width if fits else None
    kernel = _kernel(name, config, len(given), dtypes, len(numbers), columns, fixed, fits, in_place, *more)
    for parts in in_launches(*matrices):
        blocks = -(-len(parts[0]) // config.rows)
        launch(kernel, (blocks, 1, 1), *parts[: len(given)], *vectors, *parts[len(given) :], *numbers)


@lru_cache(maxsize=1024)
def _kernel(
    name: str,
    config: NormConfig,
    given: int,
    dtypes: tuple[str, ...],
    numbers: int,
    columns: int,
    fixed: int | None,
    fits: bool,
    in_place: bool,
    *more: Constant,
) -> TileKernel:
    """The kernel for matrices and vectors of these dtypes: those that are given, the vectors, those that are made.

    The width is compiled in where whole vectors are read. Otherwise one kernel serves all widths up to its tile's.
    """
    arrays: list[Parameter] = []
    for position, dtype in enumerate(dtypes):
        first_made = len(dtypes) - MADE[name]
        if given <= position < first_made:
            arrays.append(Array(dtype, (fixed,), (1,), fits))
            continue
        place = position if position < given else position - first_made
        groups = (f"matrix {place}",) if in_place else ()
        arrays.append(Array(dtype, (None, fixed), (None, 1), fits, groups))
    sizes = Constant(config.rows), Constant(columns)
    parameters = (*arrays, *[Scalar("float32")] * numbers, *sizes, *more)
    op = f"{name}_" if in_place else name
    module = CENTRED_MODULE if name == "add_layer_norm" else MODULE
    return TileKernel(op, module, name, parameters, config.hints)
