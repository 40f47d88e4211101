"""Quantisation to 8-bit floats and integers, with a scale per block, and back."""

from typing import Literal

import torch
from torch import Tensor

from opmux.definition import define_op
from opmux.dtypes import Float32, Quantized, Real, accumulation_dtype
from opmux.ops._blocks import BLOCKS, SCALE_SHAPES, check_stored, quantized, rounded, scale_strides, spread


@define_op(
    outputs=("q", "scale"),
    out_dtype={"q": "dtype", "scale": torch.float32},
    out_strides={"scale": scale_strides},
    option_dtypes={"dtype": Quantized},
    require=(
        ("k > 0", "a row has at least one column"),
        BLOCKS,
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
    NaN is ignored in amax: it stays NaN (0 in int8) and does not affect the rest of its block. An infinity, or
    a float64 magnitude whose scale float32 cannot hold, makes the scale infinite: the infinities of that block
    become NaN (0 in int8), its finite values become zero, and ``q * scale`` is NaN for the whole block.

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
    check_stored("quantize", dtype)
    return quantized(x.to(accumulation_dtype(x.dtype)), dtype, block, scale_major)


@define_op(
    outputs=("q",),
    out_dtype={"q": "dtype"},
    option_dtypes={"dtype": Quantized},
    require=(("k > 0", "a row has at least one column"), SCALE_SHAPES),
)
def static_quantize(
    x: Real[Tensor, "*batch m k"],
    scale: Float32[Tensor, "*batch m_blocks k_blocks"],
    *,
    dtype: torch.dtype,
) -> Quantized[Tensor, "*batch m k"]:
    """Quantise a matrix to an 8-bit dtype with scales that are known already, as from a calibration.

    ``q = round(x / scale)``, computed in float32 (in float64 for float64), rounded to the nearest with ties to even,
    and saturating: values past the largest one, infinities too, become the largest. NaN stays NaN (0 in int8). The
    scales are used as they are: they should be positive and finite.

    Args:
        x: The values, ``(*batch, m, k)``.
        scale: The scales, ``(*batch, m_blocks, k_blocks)`` float32, whose shape tells their block: ``(1, 1)`` for
            the matrix, ``(m, 1)`` for rows, ``(m, ceil(k / 128))``, ``(ceil(m / 128), ceil(k / 128))``, or
            ``(m, ceil(k / 32))``. Any strides.
        dtype: The dtype of q: an 8-bit float or int8.

    Returns:
        q: The quantised values, ``(*batch, m, k)``, in dtype.

    Raises:
        InvalidArgument: If the scales have the shape of no block, or another argument breaks the signature.

    Source:
        Micikevicius et al., "FP8 Formats for Deep Learning", 2022, https://arxiv.org/abs/2209.05433.
    """
    check_stored("static_quantize", dtype)
    values = x.to(accumulation_dtype(x.dtype))
    return rounded(values / spread(scale.to(values.dtype), *x.shape[-2:]), dtype).contiguous()


@define_op(
    out_dtype={"out": "out_dtype"},
    option_dtypes={"out_dtype": Real},
    require=(("k > 0", "a row has at least one column"), SCALE_SHAPES),
)
def dequantize(
    q: Quantized[Tensor, "*batch m k"],
    scale: Float32[Tensor, "*batch m_blocks k_blocks"],
    *,
    out_dtype: torch.dtype,
) -> Real[Tensor, "*batch m k"]:
    """Multiply quantised values by their scales.

    ``out = q * scale``, computed in float32 (in float64 for an out_dtype of float64) and rounded once.

    Args:
        q: The quantised values, ``(*batch, m, k)``.
        scale: Their scales, ``(*batch, m_blocks, k_blocks)`` float32, whose shape tells their block: ``(1, 1)`` for
            the matrix, ``(m, 1)`` for rows, ``(m, ceil(k / 128))``, ``(ceil(m / 128), ceil(k / 128))``, or
            ``(m, ceil(k / 32))``. Any strides.
        out_dtype: The dtype of out.

    Returns:
        out: The values, ``(*batch, m, k)``, in out_dtype.

    Raises:
        InvalidArgument: If the scales have the shape of no block, or another argument breaks the signature.

    Source:
        Micikevicius et al., "FP8 Formats for Deep Learning", 2022, https://arxiv.org/abs/2209.05433.
    """
    acc = accumulation_dtype(out_dtype)
    return (q.to(acc) * spread(scale.to(acc), *q.shape[-2:])).to(out_dtype).contiguous()
