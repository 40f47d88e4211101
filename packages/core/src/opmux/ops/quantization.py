"""Quantisation to 8-bit floats and integers, with a scale per block."""

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from opmux.definition import define_op
from opmux.dtypes import Float32, Quantized, Real, accumulation_dtype, name_of
from opmux.errors import invalid

_LARGEST = {
    torch.float8_e4m3fn: 448.0,
    torch.float8_e4m3fnuz: 240.0,
    torch.float8_e5m2: 57344.0,
    torch.float8_e5m2fnuz: 57344.0,
    torch.int8: 127.0,  # symmetric: -128 is not used
}
"""The largest value of each dtype that `quantize` stores."""

_SCALE_ALIGNMENT = 4  # float32 scales in 16 bytes, the row alignment that TMA requires


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _block_length(size: int, block: int) -> int:
    """Return how many values of a dim share a scale: a block of -1 is the whole dim."""
    return max(size, 1) if block == -1 else block


def _scale_strides(shape: tuple[int, ...], options: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the strides of quantize's scales: contiguous, or transposed with columns padded to 16 bytes."""
    *batch, m_blocks, k_blocks = shape
    if options["scale_major"] == "k":
        columns, matrix = max(k_blocks, 1), (max(k_blocks, 1), 1)
        step = max(m_blocks, 1) * columns
    else:
        padded = max(_round_up(m_blocks, _SCALE_ALIGNMENT), 1)
        matrix = (1, padded)
        step = padded * max(k_blocks, 1)
    strides = []
    for size in reversed(batch):
        strides.append(step)
        step *= max(size, 1)
    return (*reversed(strides), *matrix)


def _rounded(scaled: Tensor, dtype: torch.dtype) -> Tensor:
    """Round to the nearest value of dtype, ties to even, saturating; NaN stays, or becomes 0 in integers."""
    largest = _LARGEST[dtype]
    if not dtype.is_floating_point:
        scaled = scaled.nan_to_num(nan=0.0, posinf=largest, neginf=-largest).round()
    # Torch's conversions overflow to NaN or infinity, so saturate before them.
    return scaled.clamp(-largest, largest).to(dtype)


@define_op(
    outputs=("q", "scale"),
    out_dtype={"q": "dtype", "scale": torch.float32},
    out_strides={"scale": _scale_strides},
    option_dtypes={"dtype": Quantized},
    require=(
        ("k > 0", "a row has at least one column"),
        (
            "block in ((1, 128), (1, -1), (-1, -1), (128, 128), (1, 32))",
            "the blocks are (1, 128), (1, -1) row, (-1, -1) tensor, (128, 128) and (1, 32)",
        ),
    ),
)
def quantize(
    x: Real[Tensor, "*batch m k"],
    *,
    dtype: torch.dtype,
    block: tuple[int, int] = (1, 128),
    scale_major: Literal["k", "m"] = "k",
) -> tuple[Quantized[Tensor, "*batch m k"], Float32[Tensor, "*batch m/{block[0]} k/{block[1]}"]]:
    """Quantise each block of a matrix to an 8-bit dtype, with one scale per block.

    With ``amax`` the largest magnitude of a block: ``scale = amax / largest`` and ``q = round(x / scale)``,
    so that ``q * scale`` restores x up to rounding; ``largest`` is 448 for float8_e4m3fn, 240 for
    float8_e4m3fnuz, 57344 for float8_e5m2 and float8_e5m2fnuz, and 127 for int8, which is symmetric. Computed
    in float32 (in float64 for float64, whose scale is rounded to float32 before it divides), rounded to the
    nearest with ties to even, and saturating.

    Blocks at the edges of x may be partial. A block of zeros, or one whose scale underflows to zero, has scale 1.
    NaN is ignored in amax: it stays NaN (0 in int8) and does not affect the rest of its block. An infinity makes
    the scale infinite: the infinities of that block become NaN (0 in int8), its finite values become zero, and
    ``q * scale`` is NaN for the whole block.

    Args:
        x: The values, ``(*batch, m, k)``.
        dtype: The dtype of q: an 8-bit float or int8.
        block: How many rows and columns share a scale, -1 for the whole dim: ``(1, 128)``, ``(1, -1)`` per
            row, ``(-1, -1)`` per tensor (each matrix of a batch), ``(128, 128)`` or ``(1, 32)``.
        scale_major: ``"k"`` gives contiguous scales; ``"m"`` gives them transposed, as TMA requires: m is
            the dim of stride 1, and every column is padded to 16 bytes, so the strides end in
            ``(1, 4 * ceil(m_blocks / 4))``.

    Returns:
        q: The quantised values, ``(*batch, m, k)``, in dtype.
        scale: The scales, ``(*batch, ceil(m / block[0]), ceil(k / block[1]))`` float32. A dim of 0 has no
            blocks.

    Raises:
        InvalidArgument: If dtype or block is not one of those above, or another argument breaks the
            signature.

    Source:
        Micikevicius et al., "FP8 Formats for Deep Learning", 2022, https://arxiv.org/abs/2209.05433; the
        blocks: DeepSeek-AI, "DeepSeek-V3 Technical Report", section 3.3, 2024,
        https://arxiv.org/abs/2412.19437.
    """
    if dtype not in _LARGEST:
        expected = f"one of {', '.join(map(name_of, _LARGEST))}"
        raise invalid("quantize", "dtype", expected, name_of(dtype), "pass the one that the consumer of q reads")
    *batch, m, k = x.shape
    rows, columns = _block_length(m, block[0]), _block_length(k, block[1])
    padded_m, padded_k = _round_up(m, rows), _round_up(k, columns)
    values = pad(x.to(accumulation_dtype(x.dtype)), (0, padded_k - k, 0, padded_m - m))
    blocks = values.reshape(*batch, padded_m // rows, rows, padded_k // columns, columns)

    magnitudes = blocks.abs()
    amax = torch.where(magnitudes.isnan(), 0.0, magnitudes).amax(dim=(-3, -1))
    scale = (amax / _LARGEST[dtype]).to(torch.float32)
    scale = torch.where(scale == 0.0, 1.0, scale)

    scaled = blocks / scale[..., :, None, :, None].to(blocks.dtype)
    q = _rounded(scaled.reshape(*batch, padded_m, padded_k)[..., :m, :k], dtype).contiguous()
    return q, _in_layout(scale, scale_major)


def _in_layout(scale: Tensor, scale_major: str) -> Tensor:
    """Return the scales with the layout's strides; the padding exists in memory and is zero."""
    if scale_major == "k":
        return scale.contiguous()
    strides = _scale_strides(tuple(scale.shape), {"scale_major": scale_major})
    *batch, _, k_blocks = scale.shape
    padded = scale.new_zeros(math.prod(batch) * k_blocks * strides[-1]).as_strided(scale.shape, strides)
    return padded.copy_(scale)
