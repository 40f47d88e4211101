"""What the core calls for a product of 8-bit codes."""

from functools import lru_cache

import torch
from torch import Tensor

from opmux_cutile.launching import TileKernel, in_launches, launch, rows_of
from opmux_cutile.parameters import Array, Constant, Parameter
from opmux_cutile.products.targets import apart, units_of, within
from opmux_cutile.replaying import kept
from opmux_cutile.scaled.configs import LARGE, PAIRED, TENSOR_MEMORY, ScaledConfig

MODULE = "opmux_cutile.scaled.kernels"
TURNED_MODULE = "opmux_cutile.scaled.turned.kernels"


@kept
def scaled_linear(
    x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None, *, out_dtype: torch.dtype,
    config: ScaledConfig,
) -> Tensor:  # fmt: skip
    """The op `scaled_linear`. The shapes of the scales tell whether they are of rows, of all, or of 128 columns."""
    if x_scale.shape[-1] == 1 and len(w_scale) in (1, len(w)):
        return _run(x, w, x_scale.expand(*x.shape[:-1], 1), w_scale.expand(len(w), 1), bias, 0, out_dtype, config)
    return _run(x, w, x_scale, w_scale, bias, 1 if len(w_scale) == len(w) else 128, out_dtype, config)


def _run(
    x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None, w_rows: int, out_dtype: torch.dtype,
    config: ScaledConfig,
) -> Tensor:  # fmt: skip
    n, k = w.shape
    y = x.new_empty((*x.shape[:-1], n), dtype=out_dtype)
    if not y.numel():
        return y
    if w_rows == 1 and (config.turned or config == PAIRED):
        config = LARGE  # the turned kernel takes blocks of w; with two blocks of the grid a scale of each row spills
    if config == TENSOR_MEMORY and bias is not None and out_dtype == torch.float32:
        config = LARGE  # it spills
    kernel = _kernel(config, _name(x), "float32" if bias is None else _name(bias), _name(y), w_rows, bias is not None)
    across = -(-n // config.block_n)
    most = max(units_of(y.get_device()) // config.ctas, 1)
    shift = w_scale.as_strided((1,), (1,)) if bias is None else bias  # not read where there is none
    w = within(apart(w))
    parts = in_launches(apart(rows_of(x, k)), y.view(-1, n))
    scales = x_scale.reshape(-1, x_scale.shape[-1])
    first = 0
    for x_part, y_part in parts:
        tiles = -(-len(x_part) // config.block_m) * across
        scale = scales[first : first + len(x_part)]
        launch(kernel, (tiles if config.turned else min(tiles, most), 1, 1), x_part, w, scale, w_scale, shift, y_part)
        first += len(x_part)
    return y


def _name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


@lru_cache(maxsize=1024)
def _kernel(config: ScaledConfig, codes: str, bias: str, out: str, w_rows: int, biased: bool) -> TileKernel:
    """The kernel for products of any sizes."""
    matrix, result = Array(codes, (None, None), (None, 1), True), Array(out, (None, None), (None, 1), True)
    scale, shift = Array("float32", (None, None), (None, None), False), Array(bias, (None,), (1,), False)
    of_w = () if config.turned else (w_rows,)
    sizes = (config.block_m, config.block_n, config.block_k, config.group, *of_w, biased)
    parameters: tuple[Parameter, ...] = (matrix, matrix, scale, scale, shift, result, *map(Constant, sizes))
    module = TURNED_MODULE if config.turned else MODULE
    return TileKernel("scaled_linear", module, "scaled_linear", parameters, config.hints)
