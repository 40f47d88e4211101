"""The calls to time of ops on 8-bit codes, and of grouped products; `opmux.bench.cases` has them with the others."""

import math

import torch
from torch import Tensor

from opmux.arch import fp8_dtype
from opmux.bench.data import Arguments, Data, Maker
from opmux.bench.shapes import Shape


def _quantize(data: Data, s: Shape) -> Arguments:
    return Arguments((data.normal(s.tokens, s.hidden),), {"dtype": fp8_dtype(data.device), "block": (1, 128)})


def _rms_norm_quantize(data: Data, s: Shape) -> Arguments:
    tensors = data.normal(s.tokens, s.hidden), data.gain(s.hidden)
    return Arguments(tensors, {"eps": 1e-5, "dtype": fp8_dtype(data.device)})


def _add_rms_norm_quantize(data: Data, s: Shape) -> Arguments:
    tensors = data.normal(s.tokens, s.hidden), data.normal(s.tokens, s.hidden), data.gain(s.hidden)
    return Arguments(tensors, {"eps": 1e-5, "dtype": fp8_dtype(data.device)})


def _silu_and_mul_quantize(data: Data, s: Shape) -> Arguments:
    return Arguments((data.normal(s.tokens, 2 * s.intermediate),), {"dtype": fp8_dtype(data.device)})


def _scales(data: Data, m: int, k: int) -> Tensor:
    """Scales of blocks of 1x128, about those of normal numbers."""
    made = torch.rand(m, -(-k // 128), generator=data.generator, device=data.device)
    return 2.0**-7 * (1 + made)


def _static_quantize(data: Data, s: Shape) -> Arguments:
    tensors = (data.normal(s.tokens, s.hidden), _scales(data, s.tokens, s.hidden))
    return Arguments(tensors, {"dtype": fp8_dtype(data.device)})


def _codes(data: Data, s: Shape) -> tuple[Tensor, Tensor]:
    values = torch.randn(s.tokens, s.hidden, generator=data.generator, device=data.device)
    return (64 * values).to(fp8_dtype(data.device)), _scales(data, s.tokens, s.hidden)


def _dequantize(data: Data, s: Shape) -> Arguments:
    return Arguments(_codes(data, s), {"out_dtype": torch.float32 if data.dtype == torch.float64 else data.dtype})


def _scaled_linear(data: Data, s: Shape) -> Arguments:
    (x, x_scale), k = _codes(data, s), s.hidden
    w = (64 * torch.randn(s.intermediate, k, generator=data.generator, device=data.device)).to(x.dtype)
    w_scale = _scales(data, -(-s.intermediate // 128), k)
    out_dtype = torch.float32 if data.dtype == torch.float64 else data.dtype
    return Arguments((x, w, x_scale, w_scale, None), {"out_dtype": out_dtype})


def _scaled_linear_accumulate(data: Data, s: Shape) -> Arguments:
    x, w, x_scale, w_scale, _ = _scaled_linear(data, s).tensors
    return Arguments((torch.zeros(s.tokens, s.intermediate, device=data.device), x, w, x_scale, w_scale))


GROUPS = 4
"""Groups of a grouped product, all of one size; fewer where that does not divide the tokens."""


def _groups(data: Data, s: Shape) -> tuple[int, Tensor]:
    """How many groups the tokens are cut into, and their offsets."""
    groups = math.gcd(s.tokens, GROUPS)
    return groups, data.offsets(groups, s.tokens // groups)


def _grouped(data: Data, s: Shape) -> tuple[Tensor, Tensor, Tensor]:
    groups, offsets = _groups(data, s)
    return data.normal(s.tokens, s.hidden), data.weight(groups, s.intermediate, s.hidden), offsets


def _product_flops(s: Shape) -> float:
    return 2.0 * s.tokens * s.intermediate * s.hidden


def _grouped_linear(data: Data, s: Shape) -> Arguments:
    return Arguments((*_grouped(data, s), None), flops=_product_flops(s))


def _grouped_linear_backward(data: Data, s: Shape) -> Arguments:
    tensors = (data.normal(s.tokens, s.intermediate), *_grouped(data, s), None)
    return Arguments(tensors, {"output_mask": (True, True)}, flops=2 * _product_flops(s))


def _grouped_weight_grad(data: Data, s: Shape) -> Arguments:
    x, w, offsets = _grouped(data, s)
    dy = data.normal(s.tokens, s.intermediate)
    return Arguments((torch.zeros_like(w, dtype=torch.float32), dy, x, offsets, None), flops=_product_flops(s))


def _masked_grouped_linear(data: Data, s: Shape) -> Arguments:
    x, w, offsets = _grouped(data, s)
    counts = offsets.diff().to(torch.int32)
    options = {"expected_m": s.tokens // len(counts)}
    return Arguments((x.unflatten(0, (len(counts), -1)), w, counts), options, flops=_product_flops(s))


def _scaled_grouped_linear(data: Data, s: Shape) -> Arguments:
    x, w, x_scale, w_scale, _ = _scaled_linear(data, s).tensors
    assert x is not None
    assert w is not None
    assert w_scale is not None
    groups, offsets = _groups(data, s)
    weights, scales = w.expand(groups, -1, -1).contiguous(), w_scale.expand(groups, -1, -1).contiguous()
    out_dtype = torch.float32 if data.dtype == torch.float64 else data.dtype
    tensors = (x, weights, offsets, x_scale, scales, None)
    return Arguments(tensors, {"out_dtype": out_dtype}, flops=_product_flops(s))


def _scaled_grouped_weight_grad(data: Data, s: Shape) -> Arguments:
    groups, offsets = _groups(data, s)
    tensors = [torch.zeros(groups, s.intermediate, s.hidden, device=data.device)]
    scales = []
    for width in (s.intermediate, s.hidden):
        values = torch.randn(width, s.tokens, generator=data.generator, device=data.device)
        tensors.append((64 * values).to(fp8_dtype(data.device)).T)  # codes that are summed are next to each other
        scales.append(_scales(data, width, s.tokens).T)
    return Arguments((*tensors, offsets, *scales, None), flops=_product_flops(s))


def _scaled_masked_grouped_linear(data: Data, s: Shape) -> Arguments:
    scaled = _scaled_grouped_linear(data, s)
    x, w, offsets, x_scale, w_scale, _ = scaled.tensors
    assert x is not None
    assert offsets is not None
    assert x_scale is not None
    counts = offsets.diff().to(torch.int32)
    rows, scales = (t.unflatten(0, (len(counts), -1)) for t in (x, x_scale))
    options = {"expected_m": s.tokens // len(counts), **scaled.options}
    return Arguments((rows, w, counts, scales, w_scale), options, flops=_product_flops(s))


def _convert_fp8(data: Data, s: Shape) -> Arguments:
    return Arguments(_codes(data, s), {"dtype": torch.float8_e4m3fnuz})


def _convert_scale(data: Data, s: Shape) -> Arguments:
    return Arguments((_scales(data, s.tokens, s.hidden),), {"dtype": torch.float32, "scale_major": "m"})


def _pack_scale(data: Data, s: Shape) -> Arguments:
    return Arguments((_scales(data, s.tokens, s.hidden),), {"scale_major": "m"})


def _unpack_scale(data: Data, s: Shape) -> Arguments:
    scale = _scales(data, s.tokens, s.hidden)
    codes = torch.frexp(scale).exponent.add(127).to(torch.uint8)
    blocks = codes.shape[-1]
    packed = torch.nn.functional.pad(codes, (0, -blocks % 4)).view(torch.int32)
    return Arguments((packed,), {"k_blocks": blocks, "dtype": torch.float32, "scale_major": "m"})


MAKERS: dict[str, Maker] = {
    "quantize": _quantize,
    "scaled_linear": _scaled_linear,
    "scaled_linear_accumulate": _scaled_linear_accumulate,
    "grouped_linear": _grouped_linear,
    "grouped_linear_backward": _grouped_linear_backward,
    "grouped_weight_grad": _grouped_weight_grad,
    "masked_grouped_linear": _masked_grouped_linear,
    "scaled_grouped_linear": _scaled_grouped_linear,
    "scaled_grouped_weight_grad": _scaled_grouped_weight_grad,
    "scaled_masked_grouped_linear": _scaled_masked_grouped_linear,
    "static_quantize": _static_quantize,
    "dequantize": _dequantize,
    "convert_scale": _convert_scale,
    "pack_scale": _pack_scale,
    "unpack_scale": _unpack_scale,
    "convert_fp8": _convert_fp8,
    "rms_norm_quantize": _rms_norm_quantize,
    "add_rms_norm_quantize": _add_rms_norm_quantize,
    "silu_and_mul_quantize": _silu_and_mul_quantize,
}
