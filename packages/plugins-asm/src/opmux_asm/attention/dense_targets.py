"""What the core calls for dense attention."""

from typing import Any

import torch
from torch import Tensor

from opmux_asm.attention.scaling import scaling
from opmux_asm.dtypes import short
from opmux_asm.kernels import attention as kernel
from opmux_asm.kernels.attention_places import ROWS, UNMASKED
from opmux_asm.launching import launch

LONGEST_STRIDE = 1 << 24
"""Bytes between tokens, or heads, below which the offsets of a tile have 31 bits; others are copied."""


def attention(*tensors: Any, scale: float | None, causal: bool, **_: Any) -> Tensor:
    """The op `attention`."""
    return _attend(*tensors, scale=scale, causal=causal, wants_lse=False)[0]


def attention_lse(*tensors: Any, scale: float | None, causal: bool, **_: Any) -> tuple[Tensor, Tensor]:
    """The op `attention_lse`."""
    return _attend(*tensors, scale=scale, causal=causal, wants_lse=True)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, *, scale: float | None, causal: bool, wants_lse: bool
) -> tuple[Tensor, Tensor]:
    """Launch the kernel, a workgroup for 128 queries of a head."""
    (batch, seq_q, heads, head_dim), seq_k, kv_heads = q.shape, k.shape[1], k.shape[2]
    out = torch.empty((batch, seq_q, heads, head_dim), dtype=q.dtype, device=q.device)
    lse = q.new_empty((batch, heads, seq_q) if wants_lse else (0,), dtype=torch.float32)
    if not out.numel():
        return out, lse
    if not seq_k:
        return out.zero_(), lse.fill_(-torch.inf)
    given = [_near(tensor) for tensor in (q, k, v)]
    size, tiles = q.element_size(), -(-seq_q // ROWS)
    batches = [tensor.stride(0) * size if batch > 1 else 0 for tensor in given]
    launch(
        kernel.FAMILY, kernel.name_of(short(q)), (tiles, heads, batch), *given, out, lse if wants_lse else None,
        *batches, *(tensor.stride(dim) * size for tensor in given for dim in (1, 2)), seq_q, seq_k, heads,
        kv_heads / heads, seq_k - seq_q if causal else UNMASKED, tiles, *scaling(scale, head_dim),
    )  # fmt: skip
    return out, lse


def _near(tensor: Tensor) -> Tensor:
    """The tensor, or a copy where its tokens or heads are too far apart."""
    furthest = max(tensor.stride(1), tensor.stride(2)) * tensor.element_size()
    return tensor if furthest < LONGEST_STRIDE else tensor.contiguous()
