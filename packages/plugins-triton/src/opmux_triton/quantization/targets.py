"""What the core calls to quantise."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from opmux.dtypes import name_of
from opmux_triton.launch import as_bytes, launch
from opmux_triton.quantization import kernels
from opmux_triton.quantization.configs import QuantizeConfig
from opmux_triton.repeats import kept, repeated, scratch
from opmux_triton.rows import folded, parts

_ALIGNMENT = 4
"""Scales in 16 bytes: columns of transposed scales begin at multiples of it."""


def quantize(
    x: Tensor, *, dtype: torch.dtype, block: tuple[int, int], scale_major: str, config: QuantizeConfig
) -> tuple[Tensor, Tensor]:
    """The op `quantize`."""
    *batch, m, k = x.shape
    blocks = blocks_of(m, block[0]), blocks_of(k, block[1])
    q = x.new_empty(x.shape, dtype=dtype)
    transposed = scale_major == "m"
    scale = empty_scales(x, batch, blocks, transposed)
    if not q.numel():
        return q, scale
    key = ("quantize", id(config), x.shape, dtype, block, transposed)
    if not repeated(key, (x,), (q, scale)):
        with kept(key, (x,), (q, scale), config):
            quantize_into(x, q, scale, block, transposed, config)
    return q, scale


def quantize_into(
    x: Tensor, q: Tensor, scale: Tensor, block: tuple[int, int], transposed: bool, config: QuantizeConfig
) -> None:
    """Quantise x, which is not empty, into q, which is contiguous, and scale, which is as `empty_scales` makes it."""
    run = _by_rows if block[0] == 1 else _by_matrices
    run(x, q, scale, block, transposed, config)


def blocks_of(size: int, block: int) -> int:
    """How many blocks a dim has; a block of -1 is the whole dim."""
    return min(size, 1) if block == -1 else -(-size // block)


def empty_scales(x: Tensor, batch: list[int], blocks: tuple[int, int], transposed: bool) -> Tensor:
    """Room for scales, contiguous or transposed: then with columns padded to 16 bytes, the last one too."""
    if not transposed:
        return x.new_empty((*batch, *blocks), dtype=torch.float32)
    column = max(1, -(-blocks[0] // _ALIGNMENT) * _ALIGNMENT)
    step = column * max(1, blocks[1])
    sizes = [max(1, size) for size in batch]
    strides = [step * math.prod(sizes[place + 1 :]) for place in range(len(batch))]
    memory = x.new_empty(step * math.prod(batch), dtype=torch.float32)
    return memory.as_strided((*batch, *blocks), (*strides, 1, column))


def strides_of(scale: Tensor, transposed: bool) -> tuple[int, int]:
    """The strides of matrices and of columns of scales."""
    rows, columns = scale.shape[-2:]
    column: int = scale.stride(-1)
    return (column * columns, column) if transposed else (rows * columns, 1)


def _by_rows(
    x: Tensor, q: Tensor, scale: Tensor, block: tuple[int, int], transposed: bool, config: QuantizeConfig
) -> None:
    m, k = x.shape[-2:]
    step, column = strides_of(scale, transposed)
    tile = {"BLOCK": config.block, "ROWS": config.rows, "num_warps": config.num_warps}
    if x.is_contiguous():
        addresses: tuple[Any, ...] = (None, None, None)
        _rows(x, q, scale, x.numel() // k, (m, step, column), addresses, block, transposed, tile)
        return
    for rows, (part, q_part, scale_part) in parts((x,), (q, scale)):
        addresses = (rows.inner, *rows.stride, *rows.outer)
        _rows(part, q_part, scale_part, rows.total, (m, step, column), addresses, block, transposed, tile)


def _rows(
    x: Tensor, q: Tensor, scale: Tensor, rows: int, places: tuple[int, int, int], addresses: tuple[Any, ...],
    block: tuple[int, int], transposed: bool, tile: dict[str, Any],
) -> None:  # fmt: skip
    k = x.shape[-1]
    m, step, column = places
    form, codes = name_of(q.dtype), as_bytes(q)
    programs = -(-rows // tile["ROWS"])
    if block[1] == -1:
        meta = {"FORMAT": form, "K": k, "TRANSPOSED": transposed, **tile}
        launch(kernels.quantize_rows, (programs,), (x, codes, scale, rows, m, step, *addresses), meta)
    else:
        meta = {"FORMAT": form, "K": k, "GROUP": block[1], "TRANSPOSED": transposed, **tile}
        arguments = (x, codes, scale, rows, m, step, column, *addresses)
        launch(kernels.quantize_groups, (programs * -(-k // tile["BLOCK"]),), arguments, meta)


def _matrices(x: Tensor, others: tuple[Tensor, ...]) -> Iterator[tuple[int, int, Tensor, tuple[Tensor, ...]]]:
    """The matrices of x in as few parts as its strides allow: how many, how far apart, x's and the others' part."""
    dims = folded((x,), last=2)
    if len(dims) > 1:
        for entry in range(x.shape[0]):
            yield from _matrices(x[entry], tuple(t[entry] for t in others))
        return
    count, (stride,) = dims[0] if dims else (1, (0,))
    yield count, stride, x, others


_MOST_MATRICES = 65535
"""The most programs in the second dim of a grid."""


def _by_matrices(
    x: Tensor, q: Tensor, scale: Tensor, block: tuple[int, int], transposed: bool, config: QuantizeConfig
) -> None:
    m, k = x.shape[-2:]
    step, column = strides_of(scale, transposed)
    for count, stride, part, (q_part, scale_part) in _matrices(x, (q, scale)):
        for first in range(0, count, _MOST_MATRICES):
            some = min(count - first, _MOST_MATRICES)
            xs, qs, scales = part, q_part, scale_part
            if first:
                xs, qs, scales = (t.flatten(0, -3)[first:] for t in (part, q_part, scale_part))
            where = (stride, xs.stride(-2))
            if block[0] == -1:
                _whole(xs, qs, scales, some, m, k, step, where, config)
            else:
                side = block[0]
                grid = (-(-m // side) * -(-k // side), some)
                form, codes = name_of(q.dtype), as_bytes(qs)
                meta = {"FORMAT": form, "K": k, "TRANSPOSED": transposed, "SIDE": side, "num_warps": config.num_warps}
                launch(kernels.quantize_tiles, grid, (xs, codes, scales, m, step, column, *where), meta)


def _whole(
    x: Tensor, q: Tensor, scale: Tensor, count: int, m: int, k: int, step: int, where: tuple[int, int],
    config: QuantizeConfig,
) -> None:  # fmt: skip
    tiles = -(-m // config.rows) * -(-k // config.block)
    largest = scratch((count, config.parts), x)
    meta = {"K": k, "BLOCK": config.block, "ROWS": config.rows, "PARTS": config.parts, "num_warps": config.num_warps}
    launch(kernels.largest_of_tiles, (config.parts, count), (x, largest, m, tiles, *where), meta)
    arguments = (x, largest, as_bytes(q), scale, m, step, *where)
    launch(kernels.quantize_matrices, (tiles, count), arguments, {"FORMAT": name_of(q.dtype), **meta})
