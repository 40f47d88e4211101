"""Attention by cuDNN, which torch ships with its builds for CUDA.

cuDNN aligns its causal mask top-left, so the records admit one only where there are as many queries as keys.
"""

import torch
from torch import Tensor

from opmux_vendor.heads import gradients, swapped

aten = torch.ops.aten
Window = tuple[int, int]


def _forward(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool, with_lse: bool
) -> tuple[Tensor, Tensor]:
    made = aten._scaled_dot_product_cudnn_attention(
        swapped(q), swapped(k), swapped(v), None, with_lse, 0.0, causal, False, scale=scale
    )
    return swapped(made[0]).contiguous(), made[1]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    *,
    scale: float | None,
    causal: bool,
    window: Window,
    softcap: float,
) -> Tensor:
    """Compute ``opmux.attention``; the record admits no sinks, window or softcap."""
    return _forward(q, k, v, scale, causal, with_lse=False)[0]


def attention_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    *,
    scale: float | None,
    causal: bool,
    window: Window,
    softcap: float,
) -> tuple[Tensor, Tensor]:
    """Compute ``opmux.attention_lse``; cuDNN's lse is in natural log, of shape (batch, heads, seq_q, 1)."""
    out, lse = _forward(q, k, v, scale, causal, with_lse=True)
    return out, lse.squeeze(-1).contiguous()


def attention_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    sinks: Tensor | None,
    grad_lse: Tensor | None,
    *,
    scale: float | None,
    causal: bool,
    window: Window,
    softcap: float,
    output_mask: tuple[bool, ...],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute ``opmux.attention_backward``; the record admits no gradient of the lse."""
    unused = torch.zeros((), dtype=torch.int64, device=q.device)  # seed and offset of a dropout that is off
    grads = aten._scaled_dot_product_cudnn_attention_backward(
        swapped(grad_out), swapped(q), swapped(k), swapped(v), swapped(out), lse.unsqueeze(-1), unused, unused,
        None, None, None, q.shape[1], k.shape[1], 0.0, causal, scale=scale,
    )  # fmt: skip
    return gradients((swapped(grads[0]), swapped(grads[1]), swapped(grads[2])), output_mask)
