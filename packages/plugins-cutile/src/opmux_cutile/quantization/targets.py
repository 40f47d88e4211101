"""What the core calls to quantise."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from opmux_cutile.gates.configs import GatedConfig
from opmux_cutile.launching import MOST_BYTES, TileKernel, aligned, launch, rows_of
from opmux_cutile.norms.configs import NormConfig
from opmux_cutile.parameters import Array, Constant, Parameter, Scalar
from opmux_cutile.products.targets import units_of
from opmux_cutile.quantization.configs import NormedConfig
from opmux_cutile.replaying import kept
from opmux_cutile.tiles import power_of_two, whole_vectors

MODULE = "opmux_cutile.quantization.kernels"
ALIGNMENT = 4
"""Scales in 16 bytes: columns of transposed scales begin at multiples of it."""
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}
Codes = tuple[Tensor, Tensor]


@kept
def quantize(x: Tensor, *, dtype: torch.dtype, block: tuple[int, int], scale_major: str, config: GatedConfig) -> Codes:
    """The op `quantize`."""
    q, scale = _empty(x, x.shape[-1], dtype, block, scale_major)
    _run("quantize", "quantize", (x,), (), (q, scale), None, (), block, config.columns, config)
    return q, scale


@kept
def silu_and_mul_quantize(
    x: Tensor, *, dtype: torch.dtype, block: tuple[int, int], scale_major: str, config: GatedConfig
) -> Codes:
    """The op `silu_and_mul_quantize`."""
    n = x.shape[-1] // 2
    q, scale = _empty(x, n, dtype, block, scale_major)
    halves = x[..., :n], x[..., n:]
    name = "silu_mul_quantize"
    _run(name, "silu_and_mul_quantize", halves, (), (q, scale), None, (), block, config.columns, config)
    return q, scale


@kept
def rms_norm_quantize(
    x: Tensor, weight: Tensor, *, dtype: torch.dtype, block: tuple[int, int], scale_major: str, eps: float,
    weight_offset: float, config: NormedConfig,
) -> Codes:  # fmt: skip
    """The op `rms_norm_quantize`."""
    q, scale = _empty(x, x.shape[-1], dtype, block, scale_major)
    numbers, columns = (eps, weight_offset), max(power_of_two(x.shape[-1]), 128)
    _run("rms_norm_quantize", "rms_norm_quantize", (x,), (weight,), (q, scale), None, numbers, block, columns, config)
    return q, scale


@kept
def add_rms_norm_quantize(
    x: Tensor, residual: Tensor, weight: Tensor, *, dtype: torch.dtype, block: tuple[int, int], scale_major: str,
    eps: float, weight_offset: float, config: NormConfig,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The op `add_rms_norm_quantize`."""
    q, scale = _empty(x, x.shape[-1], dtype, block, scale_major)
    total = torch.empty_like(residual, memory_format=torch.contiguous_format)
    numbers, columns, name = (eps, weight_offset), max(power_of_two(x.shape[-1]), 128), "add_rms_norm_quantize"
    _run(name, name, (x, residual), (weight,), (q, scale), total, numbers, block, columns, config)
    return q, scale, total


def _empty(x: Tensor, k: int, dtype: torch.dtype, block: tuple[int, int], scale_major: str) -> Codes:
    """Room for codes, and for scales: contiguous, or transposed, with columns padded to 16 bytes by zeros."""
    *batch, m, _ = x.shape
    q = x.new_empty((*batch, m, k), dtype=dtype)
    blocks = min(k, 1) if block[1] == -1 else -(-k // block[1])
    if scale_major == "k":
        return q, x.new_empty((*batch, m, blocks), dtype=torch.float32)
    column = max(1, -(-m // ALIGNMENT) * ALIGNMENT)
    step = column * max(1, blocks)
    sizes = [max(1, size) for size in batch]
    strides = [step * math.prod(sizes[place + 1 :]) for place in range(len(batch))]
    memory = (x.new_zeros if m % ALIGNMENT else x.new_empty)(step * math.prod(batch), dtype=torch.float32)
    return q, memory.as_strided((*batch, m, blocks), (*strides, 1, column))


def _run(
    name: str, op: str, given: tuple[Tensor, ...], vectors: tuple[Tensor, ...], codes: Codes, total: Tensor | None,
    numbers: tuple[float, ...], block: tuple[int, int], columns: int, config: GatedConfig | NormConfig,
) -> None:  # fmt: skip
    """Launch on the rows of the tensors, as few at a time as one launch can address."""
    q, scale = codes
    if not q.numel():
        return
    k = q.shape[-1]
    group = columns if block[1] == -1 else block[1]
    more = () if total is None else (total.view(-1, k),)
    for xs, q_part, scale_part, made in _parts(given, q, scale, more):
        vectorised = whole_vectors(k) and aligned(*xs, *vectors, *made) and q_part.data_ptr() % 16 == 0
        dtypes = tuple(str(t.dtype).removeprefix("torch.") for t in (*xs, *vectors, q_part, *made))
        grid, more_sizes = _grid(len(q_part), k, config.rows, columns, group), [bool(numbers[1])] if numbers else []
        chosen = config if vectorised and all(t.element_size() == 2 for t in (*xs, *vectors)) else _roomier(config)
        if isinstance(chosen, NormedConfig):
            more_sizes.append(chosen.ahead)
            if chosen.ahead:
                grid = min(grid[0], chosen.occupancy * units_of(q.get_device())), 1, 1
        kernel = _kernel(
            name, op, chosen, dtypes, len(xs), len(vectors), len(numbers), columns, group, LARGEST[q.dtype],
            k if vectorised else None, *more_sizes,
        )  # fmt: skip
        launch(kernel, grid, *xs, *vectors, q_part, scale_part, *made, *numbers)


def _grid(rows: int, k: int, height: int, columns: int, group: int) -> tuple[int, int, int]:
    """The blocks of a launch, as `place_of` of the kernels reads them."""
    down, across = -(-rows // height), -(-k // columns)
    return (down, across, 1) if group == columns else (down * across, 1, 1)


def _roomier(config: GatedConfig | NormConfig) -> GatedConfig | NormConfig:
    """For whole rows of float32, or read number by number: with room for as many blocks, registers spill."""
    if isinstance(config, NormedConfig):
        return replace(config, occupancy=config.occupancy // 2, ahead=False)
    return replace(config, occupancy=config.occupancy // 2) if isinstance(config, NormConfig) else config


def _parts(
    given: tuple[Tensor, ...], q: Tensor, scale: Tensor, more: tuple[Tensor, ...]
) -> Iterator[tuple[tuple[Tensor, ...], Tensor, Tensor, tuple[Tensor, ...]]]:
    """The matrices of a launch: all rows, or those of one matrix of a batch whose scales are transposed."""
    k = q.shape[-1]
    xs, codes = tuple(rows_of(x, k) for x in given), rows_of(q, k)
    rows, m = len(codes), q.shape[-2]
    transposed = scale.dim() > 2 and not scale.is_contiguous()
    scales = scale if scale.dim() == 2 else scale.reshape(-1, scale.shape[-1])  # a copy where it is transposed
    most = max(MOST_BYTES // max(x.stride(0) * x.element_size() for x in (*xs, *more, codes)), 1)
    for start in range(0, rows, m) if transposed else (0,):
        end = start + m if transposed else rows
        for first in range(start, end, most):
            last = min(first + most, end)
            of_scale = _matrix(scale, start // m)[first - start : last - start] if transposed else scales[first:last]
            cut = [tuple(rows_of(x[first:last], k) for x in tensors) for tensors in (xs, (codes,), more)]
            yield cut[0], cut[1][0], of_scale, cut[2]


def _matrix(scale: Tensor, place: int) -> Tensor:
    """One matrix of a batch of scales."""
    offset = scale.storage_offset() + place * scale.stride(-3)
    return scale.as_strided(scale.shape[-2:], scale.stride()[-2:], offset)


@lru_cache(maxsize=1024)
def _kernel(
    name: str, op: str, config: GatedConfig | NormConfig, dtypes: tuple[str, ...], given: int, vectors: int,
    numbers: int, columns: int, group: int, largest: float, fixed: int | None, *more: bool,
) -> TileKernel:  # fmt: skip
    """The kernel for a width, which is compiled in where whole vectors are read; with None it serves all widths."""
    fits = fixed is not None
    arrays: list[Parameter] = [Array(dtype, (None, fixed), (None, 1), fits) for dtype in dtypes]
    for place in range(given, given + vectors):
        arrays[place] = Array(dtypes[place], (fixed,), (1,), fits)
    arrays.insert(given + vectors + 1, Array("float32", (None, None), (None, None), False))
    sizes = (config.rows, columns, group, largest, dtypes[given + vectors] == "int8", *more)
    parameters = (*arrays, *[Scalar("float32")] * numbers, *map(Constant, sizes))
    return TileKernel(op, MODULE, name, parameters, config.hints)
