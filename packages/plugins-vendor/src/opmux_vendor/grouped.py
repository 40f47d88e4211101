"""Grouped products by torch: CUTLASS kernels on sm_90, which read the offsets on the device; a loop on a CPU."""

import torch
from torch import Tensor


def grouped_linear(x: Tensor, w: Tensor, group_offsets: Tensor, group_sizes: None) -> Tensor:
    """Compute ``opmux.grouped_linear`` without padding between groups."""
    if not x.shape[0] or not w.shape[0]:
        return x.new_empty(x.shape[0], w.shape[1])
    found: Tensor = torch._grouped_mm(x, w.mT, offs=group_offsets[1:])
    return found


def scaled_grouped_linear(
    x: Tensor, w: Tensor, group_offsets: Tensor, x_scale: Tensor, w_scale: Tensor, group_sizes: None,
    *, out_dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """Compute ``opmux.scaled_grouped_linear`` for scales of tokens and channels, sums promoted to float32."""
    if not x.shape[0] or not w.shape[0]:
        return x.new_empty(x.shape[0], w.shape[1], dtype=out_dtype)
    found: Tensor = torch._scaled_grouped_mm(
        x, w.mT, x_scale[:, 0], w_scale[:, :, 0], offs=group_offsets[1:], out_dtype=out_dtype, use_fast_accum=False
    )
    return found
