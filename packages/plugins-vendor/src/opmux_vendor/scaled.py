"""Products of 8-bit codes by the libraries that torch was built with: cuBLASLt, CUTLASS, oneDNN.

Sums of 8-bit floats are promoted to float32 in between: ``use_fast_accum`` is off.
"""

import math

import torch
from torch import Tensor


def scaled_linear(
    x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None, *, out_dtype: torch.dtype
) -> Tensor:
    """Compute ``opmux.scaled_linear`` of 8-bit floats with scales of tensors, or of tokens and channels.

    The records admit no bias, and one matrix only where a matrix has a single scale.
    """
    return _scaled_mm(x, w, x_scale.reshape(-1, 1).contiguous(), w_scale.contiguous().t(), out_dtype)


def scaled_linear_of_blocks(
    x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None, *, out_dtype: torch.dtype
) -> Tensor:
    """Compute ``opmux.scaled_linear`` with scales of blocks of 1x128 and of 128x128.

    cuBLASLt reads the first with a row's neighbour next to it, and the second by rows. Scales that lie otherwise are
    copied.
    """
    x_scale = x_scale.reshape(-1, w_scale.shape[1]).t().contiguous().t()
    return _scaled_mm(x, w, x_scale, w_scale.contiguous().t(), out_dtype)


def _scaled_mm(x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, out_dtype: torch.dtype) -> Tensor:
    n, k = w.shape
    rows = math.prod(x.shape[:-1])
    if not rows:
        return x.new_empty((*x.shape[:-1], n), dtype=out_dtype)
    # Rows may be one row, repeated: libraries take none that overlap.
    a, b = (t if t.stride(0) >= k else t.contiguous() for t in (x.reshape(rows, k), w))
    made: Tensor = torch._scaled_mm(a, b.t(), x_scale, w_scale, out_dtype=out_dtype)
    return made.view(*x.shape[:-1], n)


def scaled_linear_int8(
    x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None, *, out_dtype: torch.dtype
) -> Tensor:
    """Compute ``opmux.scaled_linear`` of int8 with scales that hold for whole rows: an exact sum, then the scales."""
    n, k = w.shape
    rows = math.prod(x.shape[:-1])
    if not rows:
        return x.new_empty((*x.shape[:-1], n), dtype=out_dtype)
    sums: Tensor = torch._int_mm(x.reshape(rows, k), w.t()).view(*x.shape[:-1], n)
    out = sums.to(torch.float32).mul_(x_scale).mul_(w_scale[:, 0])
    if bias is not None:
        out = out + bias.to(torch.float32)
    return out.to(out_dtype)
