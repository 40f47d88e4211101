"""Attention by torch's flash attention for CPUs, whose products are oneDNN's or MKL's.

Its causal mask is aligned top-left, so the records admit one only where there are as many queries as keys.
"""

import torch
from torch import Tensor

from opmux_vendor.heads import gradients, swapped

aten = torch.ops.aten
Window = tuple[int, int]


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
    return attention_lse(q, k, v, sinks, scale=scale, causal=causal, window=window, softcap=softcap)[0]


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
    """Compute ``opmux.attention_lse``; the record admits no sinks, window or softcap."""
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
        swapped(q), swapped(k), swapped(v), 0.0, causal, scale=scale
    )
    return swapped(out).contiguous(), lse.contiguous()


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
    grads = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        swapped(grad_out), swapped(q), swapped(k), swapped(v), swapped(out), lse, 0.0, causal, scale=scale
    )
    return gradients((swapped(grads[0]), swapped(grads[1]), swapped(grads[2])), output_mask)
