"""torch's own calls of quantised products, with scales laid out as torch takes them; that costs it no time here."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Call = Callable[[], Tensor]


def quantised(op: str, tensors: Mapping[str, Tensor | None], options: Mapping[str, Any]) -> dict[str, Call]:
    """torch's calls, by name; empty for an op, or for blocks, that torch has no call for.

    Args:
        op: its name.
        tensors, options: its arguments.
    """
    if op not in ("scaled_linear", "scaled_grouped_linear") or tensors["x_scale"] is None:
        return {}
    x, w, x_scale, w_scale = (_given(tensors, name) for name in ("x", "w", "x_scale", "w_scale"))
    rows = x_scale.shape[-1] == 1 and w_scale.shape[-2] == w.shape[-2]
    if x.dtype == torch.int8:
        whole = x_scale.shape[-1] == 1 and w_scale.shape[-1] == 1
        return {"torch._int_mm": _of_int8(x, w, x_scale, w_scale, options["out_dtype"])} if whole else {}
    if op == "scaled_linear":
        return {"torch._scaled_mm": (_by_rows if rows else _by_blocks)(x, w, x_scale, w_scale, options["out_dtype"])}
    if not rows:
        return {}
    a, b, ends = x_scale[:, 0].contiguous(), w_scale[:, :, 0].contiguous(), _given(tensors, "group_offsets")[1:]
    dtype = options["out_dtype"]
    return {"torch._scaled_grouped_mm": lambda: torch._scaled_grouped_mm(x, w.mT, a, b, offs=ends, out_dtype=dtype)}


def _given(tensors: Mapping[str, Tensor | None], name: str) -> Tensor:
    tensor = tensors[name]
    assert tensor is not None
    return tensor


def _by_rows(x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, dtype: torch.dtype) -> Call:
    codes, scales, turned = x.flatten(0, -2), x_scale.flatten(0, -2).contiguous(), w_scale.contiguous().t()
    return lambda: torch._scaled_mm(codes, w.t(), scales, turned, out_dtype=dtype)


def _of_int8(x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, dtype: torch.dtype) -> Call:
    codes, rows, columns = x.flatten(0, -2), x_scale.flatten(0, -2), w_scale[:, 0]
    return lambda: (torch._int_mm(codes, w.t()) * rows * columns).to(dtype)


def _by_blocks(x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, dtype: torch.dtype) -> Call:
    codes, columns = x.flatten(0, -2), w_scale.shape[1]
    scales = x_scale.flatten(0, -2).t().contiguous().t()
    # cuBLASLt reads rows of whole 16 bytes of the weight's scales.
    padded = w_scale.new_zeros(len(w_scale), -(-columns // 4) * 4)[:, :columns].copy_(w_scale)
    return lambda: torch._scaled_mm(codes, w.t(), scales, padded.t(), out_dtype=dtype)
