"""What the core calls for paged attention of few new tokens a sequence."""

from typing import Any

import torch
from torch import Tensor

from opmux_asm.attention.scaling import scaling
from opmux_asm.dtypes import short
from opmux_asm.kernels import paged_decode
from opmux_asm.launching import launch


def paged_attention(*tensors: Any, **options: Any) -> Tensor:
    """The op `paged_attention`."""
    return _attend(*tensors, **options, wants_lse=False)[0]


def paged_attention_lse(*tensors: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """The op `paged_attention_lse`."""
    return _attend(*tensors, **options, wants_lse=True)


def _attend(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, cu_seqlens_q: Tensor, seq_lens: Tensor, block_table: Tensor,
    sinks: Tensor | None, q_scale: Tensor | None, k_scale: Tensor | None, v_scale: Tensor | None, *,
    scale: float | None, causal: bool, max_seqlen_q: int, wants_lse: bool, **_: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Launch the kernel, a workgroup for a new token and kv head; what no sequence has stays 0, its lse -inf."""
    tokens, heads, head_dim = q.shape
    page_size, kv_heads = k_cache.shape[1:3]
    out = torch.zeros((tokens, heads, head_dim), dtype=q.dtype, device=q.device)
    lse = q.new_full((heads, tokens if wants_lse else 0), -torch.inf, dtype=torch.float32)
    batch = seq_lens.numel()
    if not out.numel() or not batch or not max_seqlen_q:
        return out, lse
    is_coded = k_cache.dtype.itemsize == 1
    table = block_table if block_table.stride(1) == 1 else block_table.contiguous()
    scales = [None if given is None else given.contiguous() for given in (k_scale, v_scale)]
    steps = [0 if given is None or given.numel() == 1 else given.element_size() for given in scales]
    caches = [stride * cache.element_size() for cache in (k_cache, v_cache) for stride in cache.stride()[:3]]
    factor, keep, sign = scaling(scale, head_dim)
    launch(
        paged_decode.FAMILY, paged_decode.name_of(short(q), "fp8" if is_coded else ""), (batch, kv_heads, max_seqlen_q),
        q,
        k_cache, v_cache, out, lse if wants_lse else None, cu_seqlens_q.contiguous(), seq_lens.contiguous(), table,
        *scales, *(stride * q.element_size() for stride in q.stride()[:2]), *caches,
        table.stride(0) * table.element_size(), *steps, page_size.bit_length() - 1, tokens, heads, heads // kv_heads,
        factor, int(causal), keep, sign,
    )  # fmt: skip
    return out, lse
