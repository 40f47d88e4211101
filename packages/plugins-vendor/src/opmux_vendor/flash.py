"""Attention by the flash attention kernels that torch's builds for GPUs contain.

A row that attends to nothing has lse +inf there and -inf in opmux, so the records admit no call that can have one.
"""

import torch
from torch import Tensor

from opmux_vendor.heads import gradients

aten = torch.ops.aten
Window = tuple[int, int]


def _side(keys: int) -> int | None:
    """A side of a window as flash attention takes it: None is open."""
    return None if keys < 0 else keys


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
    """Compute ``opmux.attention``; the record admits no sinks and no softcap."""
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
    """Compute ``opmux.attention_lse``; the record admits no sinks and no softcap."""
    made = aten._flash_attention_forward(
        q, k, v, None, None, q.shape[1], k.shape[1], 0.0, causal, False,
        scale=scale, window_size_left=_side(window[0]), window_size_right=_side(window[1]),
    )  # fmt: skip
    return made[0].contiguous(), made[1].contiguous()


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
    state = torch.zeros(2, dtype=torch.uint64, device=q.device)  # of a dropout that is off
    grads = aten._flash_attention_backward(
        grad_out, q, k, v, out, lse, None, None, q.shape[1], k.shape[1], 0.0, causal, state, state.new_empty(0),
        scale=scale, window_size_left=_side(window[0]), window_size_right=_side(window[1]),
    )  # fmt: skip
    return gradients(grads, output_mask)
