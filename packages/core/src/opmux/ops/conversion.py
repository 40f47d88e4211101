"""Conversions between forms of the same quantised values: layouts and dtypes of scales, flavours of 8-bit floats."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from opmux.definition import define_op
from opmux.dtypes import Float32, Fp8, Int32, Scale, accumulation_dtype
from opmux.ops._blocks import in_layout, layout_strides, rounded

_E8M0_BIAS = 127
_E8M0_NAN = 255


_CODES = 4
"""How many float8_e8m0fnu an int32 holds."""


def _packed_strides(shape: tuple[int, ...], options: Mapping[str, Any]) -> tuple[int, ...]:
    return layout_strides(shape, options["scale_major"], _CODES)


def _strides_of(shape: tuple[int, ...], options: Mapping[str, Any]) -> tuple[int, ...]:
    return layout_strides(shape, options["scale_major"], options["dtype"].itemsize)


def _powers_of_two(scale: Tensor) -> Tensor:
    """Round positive numbers up to powers of two, as float8_e8m0fnu; what is no positive finite number is NaN."""
    mantissa, exponent = torch.frexp(scale)
    # frexp's mantissa is in [1/2, 1): a power of two has 1/2.
    power = exponent - (mantissa == 0.5).to(exponent.dtype)
    codes = (power + _E8M0_BIAS).clamp(0, _E8M0_NAN - 1)
    codes = torch.where(scale == 0.0, 0, codes)
    codes = torch.where((scale >= 0.0) & scale.isfinite(), codes, _E8M0_NAN)
    return codes.to(torch.uint8).view(torch.float8_e8m0fnu)


@define_op(
    out_dtype={"out": "dtype"},
    out_strides={"out": _strides_of},
    option_dtypes={"dtype": Scale},
)
def convert_scale(
    scale: Scale[Tensor, "*batch m_blocks k_blocks"],
    *,
    dtype: torch.dtype,
    scale_major: Literal["k", "m"] = "k",
) -> Scale[Tensor, "*batch m_blocks k_blocks"]:
    """Convert scales to another layout and dtype.

    float8_e8m0fnu stores powers of two, and float32 has all of them. To float8_e8m0fnu, powers of two from
    ``2**-127`` to ``2**127`` are exact, and any other number is rounded up to the next one, so that codes times
    the scale do not shrink; the codes then have to be made again by `static_quantize`. Smaller numbers and 0
    become ``2**-127``, larger ones ``2**127``; a NaN, an infinity and a negative number become NaN.

    Args:
        scale: The scales, ``(*batch, m_blocks, k_blocks)``, in any strides.
        dtype: The dtype of out.
        scale_major: ``"k"`` gives contiguous scales; ``"m"`` gives them transposed, as TMA requires: m_blocks is
            the dim of stride 1, and every column is padded to 16 bytes (4 float32 or 16 float8_e8m0fnu).

    Returns:
        out: The scales, ``(*batch, m_blocks, k_blocks)``, in dtype, without the padding.

    Raises:
        InvalidArgument: If dtype or an argument breaks the signature.

    Source:
        Rouhani et al., "OCP Microscaling Formats (MX) Specification", version 1.0, 2023; the layout: "CUDA Driver
        API", ``cuTensorMapEncodeTiled``.
    """
    converted = scale.to(torch.float32)
    if dtype == torch.float8_e8m0fnu:
        converted = _powers_of_two(scale if scale.dtype == torch.float64 else converted)
    elif scale.dtype == torch.float32:
        converted = scale.clone()
    return in_layout(converted, scale_major)


@define_op(
    outputs=("packed",),
    out_dtype={"packed": torch.int32},
    out_strides={"packed": _packed_strides},
)
def pack_scale(
    scale: Scale[Tensor, "*batch m_blocks k_blocks"],
    *,
    scale_major: Literal["k", "m"] = "k",
) -> Int32[Tensor, "*batch m_blocks k_blocks/4"]:
    """Store scales as powers of two, four neighbours along k in an int32.

    The first of four is in the lowest byte, as a float8_e8m0fnu; past the last block the bytes are 0. Scales are
    converted as by `convert_scale`: powers of two from ``2**-127`` to ``2**127`` are exact, other numbers are rounded
    up, and what is no positive finite number or 0 becomes NaN, the byte 255.

    Args:
        scale: The scales, ``(*batch, m_blocks, k_blocks)``, in any strides.
        scale_major: ``"k"`` gives contiguous integers; ``"m"`` gives them transposed, as TMA requires: m_blocks is
            the dim of stride 1, and every column is padded to 16 bytes (4 integers).

    Returns:
        packed: The scales, ``(*batch, m_blocks, ceil(k_blocks / 4))`` int32, without the padding of columns.

    Raises:
        InvalidArgument: If an argument breaks the signature.

    Source:
        Rouhani et al., "OCP Microscaling Formats (MX) Specification", version 1.0, 2023; the packing: DeepSeek-AI,
        DeepGEMM, https://github.com/deepseek-ai/DeepGEMM.
    """
    converted = scale if scale.dtype == torch.float8_e8m0fnu else _powers_of_two(scale)
    codes = pad(converted.view(torch.uint8), (0, -scale.shape[-1] % _CODES)).to(torch.int32)
    groups = codes.unflatten(-1, (-1, _CODES)) << torch.arange(0, 32, 8, dtype=torch.int32, device=scale.device)
    return in_layout(groups.sum(-1, dtype=torch.int32), scale_major)


@define_op(
    out_dtype={"out": "dtype"},
    out_strides={"out": _strides_of},
    option_dtypes={"dtype": Scale},
    require=(
        (
            "k_blocks >= 0 and words == -(-k_blocks // 4)",
            "`k_blocks` is the number of scales in a row, of which each int32 holds 4",
        ),
    ),
)
def unpack_scale(
    packed: Int32[Tensor, "*batch m_blocks words"],
    *,
    k_blocks: int,
    dtype: torch.dtype,
    scale_major: Literal["k", "m"] = "k",
) -> Scale[Tensor, "*batch m_blocks {k_blocks}"]:
    """Restore the scales that `pack_scale` packed.

    Both dtypes have every packed scale, so nothing is rounded.

    Args:
        packed: The scales, ``(*batch, m_blocks, ceil(k_blocks / 4))`` int32, in any strides.
        k_blocks: How many scales a row has; bytes past them are not read.
        dtype: The dtype of out.
        scale_major: ``"k"`` or ``"m"``, as in `convert_scale`.

    Returns:
        out: The scales, ``(*batch, m_blocks, k_blocks)``, in dtype.

    Raises:
        InvalidArgument: If k_blocks does not fit the number of integers, or an argument breaks the signature.

    Source:
        As `pack_scale`.
    """
    codes = packed.unsqueeze(-1) >> torch.arange(0, 32, 8, dtype=torch.int32, device=packed.device)
    scale = (codes & 255).flatten(-2)[..., :k_blocks].to(torch.uint8).view(torch.float8_e8m0fnu)
    return in_layout(scale.to(dtype), scale_major)


@define_op(
    outputs=("q_out", "scale_out"),
    out_dtype={"q_out": "dtype", "scale_out": "scale"},
    option_dtypes={"dtype": Fp8},
)
def convert_fp8(
    q: Fp8[Tensor, "*batch m k"],
    scale: Float32[Tensor, "*batch m_blocks k_blocks"],
    *,
    dtype: torch.dtype,
) -> tuple[Fp8[Tensor, "*batch m k"], Float32[Tensor, "*batch m_blocks k_blocks"]]:
    """Convert 8-bit floats to another format, such as weights from the OCP to the fnuz flavour.

    Values are kept where dtype has them, and rounded to the nearest, ties to even, where it does not; values past its
    largest one, infinities too, saturate; NaN stays NaN. From float8_e4m3fn (largest value 448) to
    float8_e4m3fnuz (240), values are halved and the scales doubled, so that nothing saturates and
    ``q_out * scale_out`` is exactly ``q * scale``. In every other conversion the scales are kept. The fnuz
    flavours have one exponent more below, and so a value that OCP lacks: from fnuz to OCP, odd multiples of the
    smallest fnuz number (``2**-10`` of e4m3, ``2**-17`` of e5m2) are rounded, and everything else is exact. From
    OCP to fnuz, only infinities of e5m2 change, which become 57344, and the sign of zero is lost. Both hold between
    the flavours of one format; between e4m3 and e5m2 many values are rounded or saturate.

    Args:
        q: The values, ``(*batch, m, k)``.
        scale: Their scales, ``(*batch, m_blocks, k_blocks)`` float32, of any block.
        dtype: The dtype of q_out.

    Returns:
        q_out: The values, ``(*batch, m, k)``, in dtype.
        scale_out: Their scales, ``(*batch, m_blocks, k_blocks)`` float32.

    Raises:
        InvalidArgument: If dtype or an argument breaks the signature.

    Source:
        Micikevicius et al., "FP8 Formats for Deep Learning", 2022, https://arxiv.org/abs/2209.05433; the fnuz
        formats: Noune et al., "8-bit Numerical Formats for Deep Neural Networks", 2022,
        https://arxiv.org/abs/2206.02915.
    """
    halved = q.dtype == torch.float8_e4m3fn and dtype == torch.float8_e4m3fnuz
    values = q.to(accumulation_dtype(q.dtype))
    factor = 0.5 if halved else 1.0
    return rounded(values * factor, dtype).contiguous(), (scale / factor).contiguous()
