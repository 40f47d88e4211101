"""What the core calls where scales are known: to quantise with them, to take them off, to convert flavours."""

from typing import Any

import torch
from torch import Tensor

from opmux.dtypes import name_of
from opmux_triton.launch import as_bytes, launch
from opmux_triton.quantization import known_scale_kernels as kernels
from opmux_triton.quantization.configs import QuantizeConfig
from opmux_triton.repeats import kept, repeated
from opmux_triton.rows import parts


def static_quantize(x: Tensor, scale: Tensor, *, dtype: torch.dtype, config: QuantizeConfig) -> Tensor:
    """The op `static_quantize`."""
    q = x.new_empty(x.shape, dtype=dtype)
    _run("static_quantize", kernels.static_quantize, x, scale, q, name_of(dtype), config)
    return q


def dequantize(q: Tensor, scale: Tensor, *, out_dtype: torch.dtype, config: QuantizeConfig) -> Tensor:
    """The op `dequantize`."""
    out = q.new_empty(q.shape, dtype=out_dtype)
    _run("dequantize", kernels.dequantize, q, scale, out, name_of(q.dtype), config)
    return out


def convert_fp8(q: Tensor, scale: Tensor, *, dtype: torch.dtype, config: QuantizeConfig) -> tuple[Tensor, Tensor]:
    """The op `convert_fp8`; the scales are few, and torch's own."""
    halved = q.dtype == torch.float8_e4m3fn and dtype == torch.float8_e4m3fnuz
    out = q.new_empty(q.shape, dtype=dtype)
    scales = torch.mul(scale, 2.0 if halved else 1.0).contiguous()
    if q.numel():
        key = ("convert_fp8", id(config), q.shape, dtype)
        if not repeated(key, (q,), (out,)):
            with kept(key, (q,), (out,), config):
                meta = {"FORMAT": name_of(q.dtype), "TO": name_of(dtype), "K": q.shape[-1], **_tile_of(config)}
                for rows, (part, out_part) in parts((q,), (out,)):
                    addresses = (None, None, None) if q.is_contiguous() else (rows.inner, *rows.stride, *rows.outer)
                    arguments = (as_bytes(part), as_bytes(out_part), rows.total, 0.5 if halved else 1.0, *addresses)
                    launch(kernels.convert_fp8, (_programs(rows.total, q.shape[-1], config),), arguments, meta)
    return out, scales


def _tile_of(config: QuantizeConfig) -> dict[str, Any]:
    return {"BLOCK": config.block, "ROWS": config.rows, "num_warps": config.num_warps}


def _programs(rows: int, k: int, config: QuantizeConfig) -> int:
    return -(-rows // config.rows) * -(-k // config.block)


def _run(op: str, kernel: Any, x: Tensor, scale: Tensor, out: Tensor, form: str, config: QuantizeConfig) -> None:
    if not out.numel():
        return
    key = (op, id(config), x.shape, out.dtype)
    if repeated(key, (x, scale), (out,)):
        return
    m, k = x.shape[-2:]
    m_blocks, k_blocks = scale.shape[-2:]
    side = 1 if m_blocks in (1, m) else 128
    group = 128 if k_blocks in (1, -(-k // 128)) else 32
    meta = {"FORMAT": form, "K": k, "GROUP": group, "SIDE": side, **_tile_of(config)}
    with kept(key, (x, scale), (out,), config):
        for rows, (part, out_part, scales) in _parts(x, out, scale):
            addresses = (None, None, None) if x.is_contiguous() else (rows.inner, *rows.stride, *rows.outer)
            step = scales.stride(0) if scales.dim() > 2 else 0
            row_step = scales.stride(-2) if m_blocks > 1 else 0
            column_step = scales.stride(-1) if k_blocks > 1 else 0
            arguments = (
                _stored(part), scales, _stored(out_part), rows.total, m, step, row_step, column_step, *addresses,
            )  # fmt: skip
            launch(kernel, (_programs(rows.total, k, config),), arguments, meta)


def _stored(tensor: Tensor) -> Any:
    return as_bytes(tensor) if tensor.element_size() == 1 else tensor


def _parts(x: Tensor, out: Tensor, scale: Tensor) -> Any:
    """The parts of x as `parts` makes them, with the scales of each as ``(matrices, m_blocks, k_blocks)``.

    The scales of a part are copied only where their leading dims do not fold, which a kept call may not do: it has them
    in one piece.
    """
    for rows, (part, out_part, scales) in parts((x,), (out, scale)):
        if scales.dim() > 3:
            scales = scales.reshape(-1, *scales.shape[-2:])
        yield rows, (part, out_part, scales)
