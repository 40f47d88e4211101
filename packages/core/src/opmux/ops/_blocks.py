"""Blocks that share a scale, and the codes of 8-bit dtypes: the arithmetic that the quantising references share."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from opmux.dtypes import name_of
from opmux.errors import invalid

LARGEST = {
    torch.float8_e4m3fn: 448.0,
    torch.float8_e4m3fnuz: 240.0,
    torch.float8_e5m2: 57344.0,
    torch.float8_e5m2fnuz: 57344.0,
    torch.int8: 127.0,  # symmetric: -128 is not used
}
"""The largest value that is stored of each dtype."""

BLOCKS = (
    "block in ((1, 128), (1, -1), (-1, -1), (128, 128), (1, 32))",
    "the blocks are (1, 128), (1, -1) row, (-1, -1) tensor, (128, 128) and (1, 32)",
)
"""What every op with a ``block`` requires of it."""

SCALE_SHAPES = (
    "(m_blocks, k_blocks) in ((1, 1), (m, 1), (m, -(-k // 128)), (-(-m // 128), -(-k // 128)), (m, -(-k // 32)))",
    "scales of a matrix ({m}, {k}) have the shape (1, 1) for the whole, ({m}, 1) for rows, "
    "({m}, {-(-k // 128)}) for blocks of 1x128, ({-(-m // 128)}, {-(-k // 128)}) for 128x128 or "
    "({m}, {-(-k // 32)}) for 1x32",
)
"""What every op that takes codes ``(m, k)`` with scales ``(m_blocks, k_blocks)`` requires: a shape tells its block."""

_TMA_BYTES = 16  # the row alignment that TMA requires


def check_stored(op: str, dtype: torch.dtype) -> None:
    """Raise if a dtype is none that `LARGEST` has."""
    if dtype not in LARGEST:
        expected = f"one of {', '.join(map(name_of, LARGEST))}"
        raise invalid(op, "dtype", expected, name_of(dtype), "pass the one that the consumer of q reads")


def round_up(size: int, multiple: int) -> int:
    """Return the smallest multiple that is not below a size."""
    return -(-size // multiple) * multiple


def _block_length(size: int, block: int) -> int:
    """Return how many values of a dim share a scale: a block of -1 is the whole dim."""
    return max(size, 1) if block == -1 else block


def layout_strides(shape: tuple[int, ...], scale_major: str, itemsize: int = 4) -> tuple[int, ...]:
    """Return the strides of scales: contiguous (``"k"``), or transposed with columns padded to 16 bytes (``"m"``)."""
    *batch, m_blocks, k_blocks = shape
    if scale_major == "k":
        columns, matrix = max(k_blocks, 1), (max(k_blocks, 1), 1)
        step = max(m_blocks, 1) * columns
    else:
        padded = max(round_up(m_blocks, _TMA_BYTES // itemsize), 1)
        matrix = (1, padded)
        step = padded * max(k_blocks, 1)
    strides = []
    for size in reversed(batch):
        strides.append(step)
        step *= max(size, 1)
    return (*reversed(strides), *matrix)


def scale_strides(shape: tuple[int, ...], options: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the strides of float32 scales, as the option ``scale_major`` has them."""
    return layout_strides(shape, options["scale_major"])


def in_layout(scale: Tensor, scale_major: str) -> Tensor:
    """Return scales with the layout's strides; the padding exists in memory and is zero."""
    if scale_major == "k":
        return scale.contiguous()
    strides = layout_strides(tuple(scale.shape), scale_major, scale.element_size())
    *batch, _, k_blocks = scale.shape
    memory = torch.zeros(
        math.prod(batch) * k_blocks * strides[-1] * scale.element_size(), dtype=torch.uint8, device=scale.device
    )
    return memory.view(scale.dtype).as_strided(scale.shape, strides).copy_(scale)


def rounded(scaled: Tensor, dtype: torch.dtype) -> Tensor:
    """Round to the nearest value of dtype, ties to even, saturating; NaN stays, or becomes 0 in integers."""
    largest = LARGEST[dtype]
    if not dtype.is_floating_point:
        scaled = scaled.nan_to_num(nan=0.0, posinf=largest, neginf=-largest).round()
    # Torch's conversions overflow to NaN or infinity, so saturate before them.
    scaled = scaled.clamp(-largest, largest)
    return (_to_odd(scaled) if scaled.dtype == torch.float64 else scaled).to(dtype)


def _to_odd(values: Tensor) -> Tensor:
    """Return float64 as float32, of two neighbours the one with an odd last bit: rounding again is as if once.

    Torch converts float64 to 8 bits by way of float32, and would round a tie of the second rounding that the first one
    made. Source: Boldo and Melquiond, "Emulation of FMA and Correctly Rounded Sums", 2008.
    """
    near = values.to(torch.float32)
    bits = near.view(torch.int32)
    beyond = near.to(torch.float64).abs() > values.abs()
    inexact = near.to(torch.float64) != values
    return torch.where(inexact & values.isfinite(), (bits - beyond.to(torch.int32)) | 1, bits).view(torch.float32)


def quantized(values: Tensor, dtype: torch.dtype, block: tuple[int, int], scale_major: str) -> tuple[Tensor, Tensor]:
    """Return the codes and the scales of values in the accumulation dtype."""
    *batch, m, k = values.shape
    rows, columns = _block_length(m, block[0]), _block_length(k, block[1])
    padded_m, padded_k = round_up(m, rows), round_up(k, columns)
    blocks = pad(values, (0, padded_k - k, 0, padded_m - m)).reshape(
        *batch, padded_m // rows, rows, padded_k // columns, columns
    )
    magnitudes = blocks.abs()
    amax = torch.where(magnitudes.isnan(), 0.0, magnitudes).amax(dim=(-3, -1))
    scale = (amax / LARGEST[dtype]).to(torch.float32)
    scale = torch.where(scale == 0.0, 1.0, scale)

    scaled = blocks / scale[..., :, None, :, None].to(blocks.dtype)
    q = rounded(scaled.reshape(*batch, padded_m, padded_k)[..., :m, :k], dtype).contiguous()
    return q, in_layout(scale, scale_major)


def spread(scale: Tensor, m: int, k: int) -> Tensor:
    """Return the scale of every element of matrices ``(m, k)``, whose block the shape of the scales tells."""
    m_blocks, k_blocks = scale.shape[-2:]
    rows = m if m_blocks == 1 else 1 if m_blocks == m else 128
    columns = k if k_blocks == 1 else 128 if k_blocks == -(-k // 128) else 32
    return scale.repeat_interleave(rows, -2)[..., :m, :].repeat_interleave(columns, -1)[..., :k]
