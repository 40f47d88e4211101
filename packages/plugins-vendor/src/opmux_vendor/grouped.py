"""Grouped products by torch: CUTLASS kernels on sm_90, which read the offsets on the device; a loop on a CPU."""

import torch
from torch import Tensor


def grouped_linear(x: Tensor, w: Tensor, group_offsets: Tensor, group_sizes: None) -> Tensor:
    """Compute ``opmux.grouped_linear`` without padding between groups."""
    if not x.shape[0] or not w.shape[0]:
        return x.new_empty(x.shape[0], w.shape[1])
    found: Tensor = torch._grouped_mm(x, w.mT, offs=group_offsets[1:])
    return found


def grouped_linear_backward(
    grad_out: Tensor, x: Tensor, w: Tensor, group_offsets: Tensor, group_sizes: None, *, output_mask: tuple[bool, ...]
) -> tuple[Tensor, Tensor]:
    """Compute ``opmux.grouped_linear_backward``: a product of the rows for grad_x, one over ragged rows for grad_w.

    torch leaves rows after the last group, and need not write groups without rows: both are filled with zeros.
    """
    grad_x, grad_w = x.new_empty(0), w.new_empty(0)
    if not x.shape[0] or not w.shape[0]:
        return (x.new_zeros(x.shape) if output_mask[0] else grad_x), (
            w.new_zeros(w.shape) if output_mask[1] else grad_w
        )
    ends = group_offsets[1:]
    if output_mask[0]:
        after = torch.arange(x.shape[0], dtype=torch.int32, device=x.device) >= ends[-1]
        grad_x = torch._grouped_mm(grad_out, w, offs=ends).masked_fill_(after.unsqueeze(1), 0)
    if output_mask[1]:
        empty = ends == group_offsets[:-1]
        grad_w = torch._grouped_mm(grad_out.mT, x, offs=ends).masked_fill_(empty.view(-1, 1, 1), 0)
    return grad_x, grad_w


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
