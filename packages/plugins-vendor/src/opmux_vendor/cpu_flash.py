"""Attention by torch's flash attention for CPUs, whose products are oneDNN's or MKL's.

Its causal mask is aligned top-left, so the records admit one only where there are as many queries as keys.
"""

import torch
from torch import Tensor

from opmux_vendor.heads import swapped
from opmux_vendor.targets import Forward, Gradients, Scoring, dense

aten = torch.ops.aten


def _attend(q: Tensor, k: Tensor, v: Tensor, scoring: Scoring, with_lse: bool) -> tuple[Tensor, Tensor]:
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
        swapped(q), swapped(k), swapped(v), 0.0, scoring.causal, scale=scoring.scale
    )
    return swapped(out).contiguous(), lse.contiguous() if with_lse else lse


def _differentiate(grad_out: Tensor, forward: Forward, scoring: Scoring) -> Gradients:
    q, k, v, out, lse = forward
    grads = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        swapped(grad_out), swapped(q), swapped(k), swapped(v), swapped(out), lse, 0.0, scoring.causal,
        scale=scoring.scale,
    )  # fmt: skip
    return swapped(grads[0]), swapped(grads[1]), swapped(grads[2])


attention, attention_lse, attention_backward = dense(_attend, _differentiate)
