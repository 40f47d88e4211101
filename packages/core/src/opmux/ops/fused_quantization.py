"""Quantisation in one pass with the op before it: norms and gated activations whose result a product takes in 8 bits.

The value that is quantised is the one that the op computes, in float32, before it would be rounded to its own dtype.
"""

from typing import Literal

import torch
from torch import Tensor

from opmux.definition import define_op
from opmux.dtypes import Float32, Quantized, Real, accumulation_dtype
from opmux.ops._blocks import BLOCKS, check_stored, quantized, scale_strides

_QUANTIZED = {"q": "dtype", "scale": torch.float32}
_NORM = (
    ("hidden > 0", "a row has at least one column"),
    ("eps >= 0", "eps is added under a square root, so it is 0 or more"),
    BLOCKS,
)


def _rms_normed(x: Tensor, weight: Tensor, eps: float, weight_offset: float) -> Tensor:
    """Return the norm of rows in the accumulation dtype, unrounded."""
    normalised = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    return normalised * (weight.to(x.dtype) + weight_offset)


def _widest(*tensors: Tensor) -> torch.dtype:
    """Return float64 if any tensor is float64, else float32."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


@define_op(
    outputs=("q", "scale"),
    out_dtype=_QUANTIZED,
    out_strides={"scale": scale_strides},
    option_dtypes={"dtype": Quantized},
    require=_NORM,
)
def rms_norm_quantize(
    x: Real[Tensor, "*batch m hidden"],
    weight: Real[Tensor, "hidden"],
    *,
    dtype: torch.dtype,
    block: tuple[int, int] = (1, 128),
    scale_major: Literal["k", "m"] = "k",
    eps: float = 1e-6,
    weight_offset: float = 0.0,
) -> tuple[Quantized[Tensor, "*batch m hidden"], Float32[Tensor, "*batch m/{block[0]} hidden/{block[1]}"]]:
    """Scale each row by the reciprocal of its root mean square, and quantise the result.

    ``y = x * rsqrt(mean(x**2) + eps) * (weight + weight_offset)`` as in `rms_norm`, then `quantize` of y. The y that
    is quantised is not rounded to x's dtype: everything is computed in float32 (in float64 where x or weight is
    float64), and codes and scales are rounded once.

    Args:
        x: The rows, ``(*batch, m, hidden)``.
        weight: The gain of each column, ``(hidden,)``; its dtype may differ from x's.
        dtype: The dtype of q: an 8-bit float or int8.
        block: How many rows and columns share a scale, as in `quantize`.
        scale_major: The layout of the scales, as in `quantize`.
        eps: Added to the mean square, in the unit of ``x**2``.
        weight_offset: Added to the weight before it is used; 1.0 in Gemma, which stores weights around 0.

    Returns:
        q: The quantised rows, ``(*batch, m, hidden)``, in dtype.
        scale: The scales, ``(*batch, ceil(m / block[0]), ceil(hidden / block[1]))`` float32.

    Raises:
        InvalidArgument: If dtype or block is none of those of `quantize`, hidden is 0, eps is negative or NaN, or
            another argument breaks the signature.

    Source:
        Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, https://arxiv.org/abs/1910.07467; the
        blocks: DeepSeek-AI, "DeepSeek-V3 Technical Report", section 3.3, 2024, https://arxiv.org/abs/2412.19437.
    """
    check_stored("rms_norm_quantize", dtype)
    return quantized(_rms_normed(x.to(_widest(x, weight)), weight, eps, weight_offset), dtype, block, scale_major)


@define_op(
    outputs=("q", "scale", "residual_out"),
    out_dtype={**_QUANTIZED, "residual_out": "residual"},
    out_strides={"scale": scale_strides},
    option_dtypes={"dtype": Quantized},
    require=_NORM,
)
def add_rms_norm_quantize(
    x: Real[Tensor, "*batch m hidden"],
    residual: Real[Tensor, "*batch m hidden"],
    weight: Real[Tensor, "hidden"],
    *,
    dtype: torch.dtype,
    block: tuple[int, int] = (1, 128),
    scale_major: Literal["k", "m"] = "k",
    eps: float = 1e-6,
    weight_offset: float = 0.0,
) -> tuple[
    Quantized[Tensor, "*batch m hidden"],
    Float32[Tensor, "*batch m/{block[0]} hidden/{block[1]}"],
    Real[Tensor, "*batch m hidden"],
]:
    """Add a residual stream, norm the sum, and quantise the result.

    ``residual_out = x + residual``, taken in float32 and rounded to residual's dtype; ``y`` is the `rms_norm` of
    residual_out, and q and scale are the `quantize` of y. The y that is quantised is not rounded to x's dtype:
    everything but residual_out is computed in float32 (in float64 where a tensor is float64) and rounded once.

    Args:
        x: What the block before gave, ``(*batch, m, hidden)``.
        residual: The residual stream, ``(*batch, m, hidden)``; its dtype may differ from x's.
        weight: The gain of each column, ``(hidden,)``.
        dtype: The dtype of q: an 8-bit float or int8.
        block: How many rows and columns share a scale, as in `quantize`.
        scale_major: The layout of the scales, as in `quantize`.
        eps: Added to the mean square, in the unit of ``x**2``.
        weight_offset: Added to the weight before it is used; 1.0 in Gemma, which stores weights around 0.

    Returns:
        q: The quantised rows, ``(*batch, m, hidden)``, in dtype.
        scale: The scales, ``(*batch, ceil(m / block[0]), ceil(hidden / block[1]))`` float32.
        residual_out: The sum, ``(*batch, m, hidden)``, in residual's dtype.

    Raises:
        InvalidArgument: If dtype or block is none of those of `quantize`, hidden is 0, eps is negative or NaN, or
            another argument breaks the signature.

    Source:
        Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, https://arxiv.org/abs/1910.07467; the
        blocks: DeepSeek-AI, "DeepSeek-V3 Technical Report", section 3.3, 2024, https://arxiv.org/abs/2412.19437.
    """
    check_stored("add_rms_norm_quantize", dtype)
    acc = _widest(x, residual, weight)
    residual_out = (x.to(acc) + residual.to(acc)).to(residual.dtype).contiguous()
    y = _rms_normed(residual_out.to(acc), weight, eps, weight_offset)
    return *quantized(y, dtype, block, scale_major), residual_out


@define_op(
    outputs=("q", "scale"),
    out_dtype=_QUANTIZED,
    out_strides={"scale": scale_strides},
    option_dtypes={"dtype": Quantized},
    require=(("n > 0", "a row has at least one column"), BLOCKS),
)
def silu_and_mul_quantize(
    x: Real[Tensor, "*batch m 2*n"],
    *,
    dtype: torch.dtype,
    block: tuple[int, int] = (1, 128),
    scale_major: Literal["k", "m"] = "k",
) -> tuple[Quantized[Tensor, "*batch m n"], Float32[Tensor, "*batch m/{block[0]} n/{block[1]}"]]:
    """Multiply the second half of each row by the SiLU of the first half, and quantise the result.

    ``y = silu(gate) * up`` with ``gate = x[..., :n]`` and ``up = x[..., n:]`` as in `silu_and_mul`, then `quantize` of
    y. The y that is quantised is not rounded to x's dtype: everything is computed in float32 (in float64 for
    float64), and codes and scales are rounded once.

    Args:
        x: The gate, then the up projection, ``(*batch, m, 2 * n)``.
        dtype: The dtype of q: an 8-bit float or int8.
        block: How many rows and columns share a scale, as in `quantize`.
        scale_major: The layout of the scales, as in `quantize`.

    Returns:
        q: The quantised rows, ``(*batch, m, n)``, in dtype.
        scale: The scales, ``(*batch, ceil(m / block[0]), ceil(n / block[1]))`` float32.

    Raises:
        InvalidArgument: If dtype or block is none of those of `quantize`, the last dim is odd or 0, or another
            argument breaks the signature.

    Source:
        Shazeer, "GLU Variants Improve Transformer", 2020, https://arxiv.org/abs/2002.05202; the blocks:
        DeepSeek-AI, "DeepSeek-V3 Technical Report", section 3.3, 2024, https://arxiv.org/abs/2412.19437.
    """
    check_stored("silu_and_mul_quantize", dtype)
    gate, up = x.to(accumulation_dtype(x.dtype)).chunk(2, dim=-1)
    return quantized(gate * torch.sigmoid(gate) * up, dtype, block, scale_major)
