"""What the core calls to quantise in one pass with the op before.

Blocks of one row are quantised by the kernel that computes the row. The others, and rows too long to hold, are computed
in float32, which loses nothing, and quantised by the kernels of `quantize`.
"""

from typing import Any

import torch
from torch import Tensor

from opmux.dtypes import name_of
from opmux_triton.activation import kernels as gates
from opmux_triton.devices import units
from opmux_triton.launch import as_bytes, launch
from opmux_triton.norm import kernels as norms
from opmux_triton.quantization import gate_kernels, norm_kernels
from opmux_triton.quantization.configs import FusedConfig
from opmux_triton.quantization.targets import blocks_of, empty_scales, quantize_into, strides_of
from opmux_triton.repeats import kept, repeated, scratch
from opmux_triton.rows import parts


def rms_norm_quantize(
    x: Tensor, weight: Tensor, *, dtype: torch.dtype, block: tuple[int, int], scale_major: str, eps: float,
    weight_offset: float, config: FusedConfig,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The op `rms_norm_quantize`."""
    q, scale, transposed = _results(x, x.shape[-1], dtype, block, scale_major)
    if not x.numel():
        return q, scale
    key = ("rms_norm_quantize", id(config), x.shape, dtype, block, transposed, eps, weight_offset)
    if not repeated(key, (x, weight), (q, scale)):
        with kept(key, (x, weight), (q, scale), config):
            _normed(x, None, weight, q, scale, None, block, transposed, eps, weight_offset, config)
    return q, scale


def add_rms_norm_quantize(
    x: Tensor, residual: Tensor, weight: Tensor, *, dtype: torch.dtype, block: tuple[int, int], scale_major: str,
    eps: float, weight_offset: float, config: FusedConfig,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The op `add_rms_norm_quantize`."""
    q, scale, transposed = _results(x, x.shape[-1], dtype, block, scale_major)
    total = torch.empty_like(residual, memory_format=torch.contiguous_format)
    if not x.numel():
        return q, scale, total
    given, results = (x, residual, weight), (q, scale, total)
    key = ("add_rms_norm_quantize", id(config), x.shape, dtype, block, transposed, eps, weight_offset)
    if not repeated(key, given, results):
        with kept(key, given, results, config):
            _normed(x, residual, weight, q, scale, total, block, transposed, eps, weight_offset, config)
    return results


def silu_and_mul_quantize(
    x: Tensor, *, dtype: torch.dtype, block: tuple[int, int], scale_major: str, config: FusedConfig
) -> tuple[Tensor, Tensor]:
    """The op `silu_and_mul_quantize`."""
    n = x.shape[-1] // 2
    q, scale, transposed = _results(x, n, dtype, block, scale_major)
    if not q.numel():
        return q, scale
    key = ("silu_and_mul_quantize", id(config), x.shape, dtype, block, transposed)
    if not repeated(key, (x,), (q, scale)):
        with kept(key, (x,), (q, scale), config):
            _gated(x, q, scale, block, transposed, config)
    return q, scale


def _results(
    x: Tensor, width: int, dtype: torch.dtype, block: tuple[int, int], scale_major: str
) -> tuple[Tensor, Tensor, bool]:
    *batch, m, _ = x.shape
    transposed = scale_major == "m"
    blocks = blocks_of(m, block[0]), blocks_of(width, block[1])
    return x.new_empty((*batch, m, width), dtype=dtype), empty_scales(x, batch, blocks, transposed), transposed


def _normed(
    x: Tensor, residual: Tensor | None, weight: Tensor, q: Tensor, scale: Tensor, total: Tensor | None,
    block: tuple[int, int], transposed: bool, eps: float, offset: float, config: FusedConfig,
) -> None:  # fmt: skip
    m, hidden = x.shape[-2:]
    given = (x,) if residual is None else (x, residual)
    made = () if total is None else (total,)
    tile = {"BLOCK": config.block, "ROWS": config.rows, "num_warps": config.num_warps}
    fused = config.quantize is None
    if fused:
        _require_whole_rows(config, hidden)
    y = q if fused else scratch(x.shape, x)
    step, column = strides_of(scale, transposed)
    for rows, tensors in parts(given, (y, scale, *made)):
        ours, (y_part, scale_part, *total_part) = tensors[: len(given)], tensors[len(given) :]
        grid = (-(-rows.total // config.rows),)
        places = (rows.inner, *rows.stride, *rows.outer)
        if fused:
            meta = {"FORMAT": name_of(q.dtype), "HIDDEN": hidden, "GROUP": block[1], "TRANSPOSED": transposed, **tile}
            fixed: tuple[Any, ...] = (rows.total, eps, offset, m, step, column, *places)
            kernel: Any = norm_kernels.add_norm_quantize
            if residual is None:
                kernel = norm_kernels.norm_quantize
                meta["OFFSET"] = offset != 0
                meta["STAGES"] = config.stages if config.programs else 0
                if config.programs:
                    grid = (min(grid[0], config.programs * units(x)),)
            launch(kernel, grid, (*ours, weight, as_bytes(y_part), scale_part, *total_part, *fixed), meta)
        else:
            meta = {"HIDDEN": hidden, "CENTRED": False, **({} if residual is None else {"IN_PLACE": False}), **tile}
            kernel = norms.norm if residual is None else norms.add_norm
            launch(kernel, grid, (*ours, weight, y_part, *total_part, rows.total, eps, offset, None, *places), meta)
    if config.quantize is not None:
        quantize_into(y, q, scale, block, transposed, config.quantize)


def _require_whole_rows(config: FusedConfig, columns: int) -> None:
    if config.block < columns:
        raise ValueError(f"block expected at least {columns}, a row, got {config.block}")


def _gated(x: Tensor, q: Tensor, scale: Tensor, block: tuple[int, int], transposed: bool, config: FusedConfig) -> None:
    m, n = q.shape[-2:]
    tile = {"BLOCK": config.block, "ROWS": config.rows, "num_warps": config.num_warps}
    fused = config.quantize is None
    if fused and block[1] == -1:
        _require_whole_rows(config, n)
    y = q if fused else scratch(q.shape, x)
    step, column = strides_of(scale, transposed)
    for rows, (part, y_part, scale_part) in parts((x,), (y, scale)):
        grid = (-(-rows.total // config.rows) * -(-n // config.block),)
        if fused:
            group = config.block if block[1] == -1 else block[1]
            meta = {"FORMAT": name_of(q.dtype), "N": n, "GROUP": group, "TRANSPOSED": transposed, **tile}
            places = (m, step, column, rows.inner, *rows.stride, *rows.outer)
            launch(gate_kernels.gated_quantize, grid, (part, as_bytes(y_part), scale_part, rows.total, *places), meta)
        else:
            strides = (rows.stride[0], None, rows.outer[0], None)
            arguments = (part, y_part, rows.total, None, rows.inner, *strides)
            launch(gates.gated, grid, arguments, {"N": n, "KIND": gates.SILU.value, **tile})
    if config.quantize is not None:
        quantize_into(y, q, scale, block, transposed, config.quantize)
