"""What the core calls for the gradients of a norm."""

from functools import lru_cache

import torch
from torch import Tensor

from opmux_cutile.launching import TileKernel, aligned, launch, rows_of
from opmux_cutile.norms.configs import NormConfig, tile_columns
from opmux_cutile.parameters import Array, Constant, Parameter, Scalar
from opmux_cutile.products.targets import units_of
from opmux_cutile.tiles import whole_vectors

MODULE = "opmux_cutile.norms.backward_kernels"
PACKED = torch.contiguous_format
BLOCKS_OF_UNIT = 4
"""Blocks for each multiprocessor where the config does not say: few, for each writes sums over its rows."""
SUMMED_ROWS, SUMMED_COLUMNS = 64, 32
"""The tile in which those sums are added up: 32 columns are 128 bytes."""


def rms_norm_backward(
    grad_y: Tensor, x: Tensor, weight: Tensor, *, eps: float, weight_offset: float, output_mask: tuple[bool, ...],
    config: NormConfig,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The op `rms_norm_backward`."""
    wanted = (output_mask[0], False, output_mask[1], False)
    found = _run("rms_norm_backward", grad_y, None, x, weight, wanted, (eps, weight_offset), config)
    return found[0], found[2]


def add_rms_norm_backward(
    grad_y: Tensor, grad_residual_out: Tensor, residual_out: Tensor, weight: Tensor, *, eps: float,
    weight_offset: float, output_mask: tuple[bool, ...], config: NormConfig,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The op `add_rms_norm_backward`."""
    numbers, wanted = (eps, weight_offset), (*output_mask, False)
    found = _run("add_rms_norm_backward", grad_y, grad_residual_out, residual_out, weight, wanted, numbers, config)
    return found[0], found[1], found[2]


def layer_norm_backward(
    grad_y: Tensor, x: Tensor, weight: Tensor, *, eps: float, output_mask: tuple[bool, ...], config: NormConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """The op `layer_norm_backward`."""
    wanted = (output_mask[0], False, output_mask[1], output_mask[2])
    found = _run("layer_norm_backward", grad_y, None, x, weight, wanted, (eps, 0.0), config)
    return found[0], found[2], found[3]


def add_layer_norm_backward(
    grad_y: Tensor, grad_residual_out: Tensor, residual_out: Tensor, weight: Tensor, *, eps: float,
    output_mask: tuple[bool, ...], config: NormConfig,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The op `add_layer_norm_backward`."""
    wanted, numbers = (output_mask[0], output_mask[1], output_mask[2], output_mask[3]), (eps, 0.0)
    found = _run("add_layer_norm_backward", grad_y, grad_residual_out, residual_out, weight, wanted, numbers, config)
    return found[0], found[1], found[2], found[3]


def _run(
    op: str, grad: Tensor, more: Tensor | None, x: Tensor, weight: Tensor, wanted: tuple[bool, ...],
    numbers: tuple[float, float], config: NormConfig,
) -> list[Tensor]:  # fmt: skip
    """The gradients of x, of what was added to it, of the weight and of the bias; empty where not wanted."""
    of_x, of_more, of_weight, of_bias = wanted
    grad_x = torch.empty_like(grad, memory_format=PACKED) if of_x else grad.new_empty(0)
    grad_more = torch.empty_like(x, memory_format=PACKED) if of_more else x.new_empty(0)
    if not any(wanted):
        return [grad_x, grad_more, weight.new_empty(0), weight.new_empty(0)]
    width = weight.numel()
    xs = [rows_of(t, width) for t in (grad, x if more is None else more, x)]
    tiles = -(-len(xs[0]) // config.rows)
    blocks = min(tiles, (config.occupancy or BLOCKS_OF_UNIT) * units_of(x.get_device()))
    of_vectors = [
        torch.empty_like(weight, memory_format=PACKED) if w else weight.new_empty(0) for w in (of_weight, of_bias)
    ]
    if not tiles:
        return [grad_x, grad_more, *(vector.zero_() for vector in of_vectors)]
    sums = [x.new_empty((blocks if w else 1, width), dtype=torch.float32) for w in (of_weight, of_bias)]
    made = [t.view(-1, width) if t.numel() else other for t, other in ((grad_x, xs[0]), (grad_more, xs[2]))]
    _launch(op, xs, weight, made, sums, more is not None, wanted, numbers, blocks, config)
    if of_weight or of_bias:
        kernel = _sums(op, str(weight.dtype).removeprefix("torch."), width % 4 == 0, of_weight, of_bias)
        vectors = [vector if w else weight for vector, w in zip(of_vectors, (of_weight, of_bias), strict=True)]
        launch(kernel, (-(-width // SUMMED_COLUMNS), 1, 1), *sums, *vectors)
    return [grad_x, grad_more, *of_vectors]


def _launch(
    op: str, xs: list[Tensor], weight: Tensor, made: list[Tensor], parts: list[Tensor], added: bool,
    wanted: tuple[bool, ...], numbers: tuple[float, float], blocks: int, config: NormConfig,
) -> None:  # fmt: skip
    width = weight.numel()
    fits = whole_vectors(width) and aligned(*xs, weight, *made)
    dtypes = tuple(str(t.dtype).removeprefix("torch.") for t in (*xs, weight, *made))
    columns, fixed = tile_columns(config, width), width if fits else None
    kernel = _kernel(op, config, dtypes, columns, fixed, added, wanted)
    launch(kernel, (blocks, 1, 1), *xs, weight, *made, *parts, *numbers)


@lru_cache(maxsize=1024)
def _kernel(
    op: str, config: NormConfig, dtypes: tuple[str, ...], columns: int, fixed: int | None, added: bool,
    wanted: tuple[bool, ...],
) -> TileKernel:  # fmt: skip
    """The kernel for a width, which is compiled in where whole vectors are read; with None it serves all widths."""
    fits = fixed is not None
    matrices: list[Parameter] = [Array(dtype, (None, fixed), (None, 1), fits) for dtype in dtypes]
    matrices[3] = Array(dtypes[3], (fixed,), (1,), fits)
    sums = Array("float32", (None, fixed), (None, 1), fits)
    sizes = (config.rows, columns, "layer" in op, added, *wanted)
    numbers = [Scalar("float32")] * 2
    parameters = (*matrices, sums, sums, *numbers, *map(Constant, sizes))
    return TileKernel(op, MODULE, "norm_backward", parameters, config.hints)


@lru_cache(maxsize=64)
def _sums(op: str, dtype: str, fits: bool, of_weight: bool, of_bias: bool) -> TileKernel:
    """The kernel that adds up what the blocks have summed."""
    parts, vector = Array("float32", (None, None), (None, 1), fits), Array(dtype, (None,), (1,), False)
    sizes = (SUMMED_ROWS, SUMMED_COLUMNS, of_weight, of_bias)
    return TileKernel(op, MODULE, "column_sums", (parts, parts, vector, vector, *map(Constant, sizes)))
