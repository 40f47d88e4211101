"""Attention by the flash attention kernels that torch's builds for GPUs contain.

Two of their conventions differ from opmux's. A row that attends to nothing has lse +inf, and so has a row of NaN. A
ragged batch's results past the last sequence are not written.
"""

import math
from typing import Any

import torch
from torch import Tensor

from opmux_vendor.targets import Forward, Gradients, Ragged, Scoring, dense, ragged

aten = torch.ops.aten


def _options(scoring: Scoring) -> dict[str, Any]:
    """The scale and the window as flash attention takes them: an open side of the window is None."""
    left, right = (None if side < 0 else side for side in scoring.window)
    return {"scale": scoring.scale, "window_size_left": left, "window_size_right": right}


def _state(device: torch.device) -> tuple[Tensor, Tensor]:
    """The random state of a dropout that is off."""
    state = torch.zeros(2, dtype=torch.uint64, device=device)
    return state, state.new_empty(0)


def _attend(q: Tensor, k: Tensor, v: Tensor, scoring: Scoring, with_lse: bool) -> tuple[Tensor, Tensor]:
    made = aten._flash_attention_forward(
        q, k, v, None, None, q.shape[1], k.shape[1], 0.0, scoring.causal, False, **_options(scoring)
    )
    return made[0].contiguous(), made[1].contiguous()


def _differentiate(grad_out: Tensor, forward: Forward, scoring: Scoring) -> Gradients:
    q, k, v, out, lse = forward
    grads: Gradients = aten._flash_attention_backward(
        grad_out, q, k, v, out, lse.contiguous(), None, None, q.shape[1], k.shape[1], 0.0, scoring.causal,
        *_state(q.device), **_options(scoring),
    )  # fmt: skip
    return grads


def _offsets(scoring: Scoring, batch: Ragged) -> tuple[Tensor, Tensor, int, int]:
    """The offsets, and bounds of the lengths with which flash attention reads both as they are.

    If no sequence can have more than one query, it takes the batch for one query of each, though some may be empty. If
    no sequence can have more keys than a window's right side, it takes that side for open, which it is only in
    sequences with as many keys as queries.
    """
    return (
        batch.cu_seqlens_q,
        batch.cu_seqlens_k,
        max(batch.max_seqlen_q, 2),
        max(batch.max_seqlen_k, scoring.window[1] + 1),
    )


def _attend_ragged(
    q: Tensor, k: Tensor, v: Tensor, scoring: Scoring, batch: Ragged, with_lse: bool
) -> tuple[Tensor, Tensor]:
    offsets, past_last = _offsets(scoring, batch), _past_last(q, batch.cu_seqlens_q)
    made = aten._flash_attention_forward(q, k, v, *offsets, 0.0, scoring.causal, False, **_options(scoring))
    out = made[0].contiguous().masked_fill_(past_last.view(-1, 1, 1), 0)
    return out, _natural(made[1], out, past_last) if with_lse else made[1]


def _past_last(tensor: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Which of its tokens lie past the last sequence."""
    return torch.arange(tensor.shape[0], device=tensor.device) >= cu_seqlens[-1]


def _natural(lse: Tensor, out: Tensor, past_last: Tensor) -> Tensor:
    """The lse ``(heads, tokens)`` in opmux's convention: -inf where nothing is attended to, NaN in a row of NaN."""
    empty = torch.where(out[..., 0].mT.isnan(), math.nan, -math.inf)
    return torch.where((lse == math.inf) | past_last, empty, lse)


def _differentiate_ragged(grad_out: Tensor, forward: Forward, scoring: Scoring, batch: Ragged) -> Gradients:
    q, k, v, out, lse = forward
    grad_q, grad_k, grad_v = aten._flash_attention_backward(
        grad_out, q, k, v, out, lse.masked_fill(lse == -math.inf, math.inf).contiguous(), *_offsets(scoring, batch),
        0.0, scoring.causal, *_state(q.device), **_options(scoring),
    )  # fmt: skip
    for grad, starts in ((grad_q, batch.cu_seqlens_q), (grad_k, batch.cu_seqlens_k), (grad_v, batch.cu_seqlens_k)):
        grad.masked_fill_(_past_last(grad, starts).view(-1, 1, 1), 0)
    return grad_q, grad_k, grad_v


attention, attention_lse, attention_backward = dense(_attend, _differentiate)
attention_varlen, attention_varlen_lse, attention_varlen_backward = ragged(_attend_ragged, _differentiate_ragged)
