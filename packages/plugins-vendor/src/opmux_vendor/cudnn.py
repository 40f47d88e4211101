"""Attention by cuDNN, which torch ships with its builds for CUDA.

cuDNN aligns its causal mask top-left, so the records admit one only where there are as many queries as keys. For that
reason ragged batches are left to flash attention: a record sees no lengths.
"""

import torch
from torch import Tensor

from opmux_vendor.heads import swapped
from opmux_vendor.targets import Forward, Gradients, Scoring, dense

aten = torch.ops.aten


def _attend(q: Tensor, k: Tensor, v: Tensor, scoring: Scoring, with_lse: bool) -> tuple[Tensor, Tensor]:
    """cuDNN's lse is in natural log, of shape (batch, heads, seq_q, 1)."""
    made = aten._scaled_dot_product_cudnn_attention(
        swapped(q), swapped(k), swapped(v), None, with_lse, 0.0, scoring.causal, False, scale=scoring.scale
    )
    return swapped(made[0]).contiguous(), made[1].squeeze(-1).contiguous() if with_lse else made[1]


def _differentiate(grad_out: Tensor, forward: Forward, scoring: Scoring) -> Gradients:
    q, k, v, out, lse = forward
    # Seed and offset of a dropout: torch reads neither where it is off. To clear them would be a launch of its own.
    unused = torch.empty((), dtype=torch.int64, device=q.device)
    grads = aten._scaled_dot_product_cudnn_attention_backward(
        swapped(grad_out), swapped(q), swapped(k), swapped(v), swapped(out), lse.unsqueeze(-1), unused, unused,
        None, None, None, q.shape[1], k.shape[1], 0.0, scoring.causal, scale=scoring.scale,
    )  # fmt: skip
    return swapped(grads[0]), swapped(grads[1]), swapped(grads[2])


attention, attention_lse, attention_backward = dense(_attend, _differentiate)
