"""What the core calls for attention."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from opmux_ck.attention.configs import AttentionConfig
from opmux_ck.attention.instances import Attention
from opmux_ck.dtypes import SHORT
from opmux_ck.launching import MOST_BYTES, launch

MOST_WORKGROUPS = 65535
"""In the second and third dim of a grid."""


@dataclass(frozen=True)
class Scoring:
    """What becomes of scores.

    Attributes:
        scale: on them, or None for the usual one.
        cap: on their absolute value, after the scale; 0 for none.
        seen: how many keys to the left and to the right of its position a query sees; -1 is all of them.
    """

    scale: float | None
    cap: float
    seen: tuple[int, int]

    @property
    def masked(self) -> bool:
        """Whether a query may see less than all keys."""
        return max(self.seen) >= 0

    def factor(self, head_dim: int) -> float:
        """The scale where exponentials have the base 2."""
        return (head_dim**-0.5 if self.scale is None else self.scale) * math.log2(math.e)


def attention(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, *,
    scale: float | None, causal: bool, window: tuple[int, int], softcap: float, config: AttentionConfig,
) -> Tensor:  # fmt: skip
    """The op `attention`, without sinks."""
    return _dense(q, k, v, scoring_of(scale, softcap, causal, window), config, lse=None)


def attention_lse(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, *,
    scale: float | None, causal: bool, window: tuple[int, int], softcap: float, config: AttentionConfig,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The op `attention_lse`, without sinks."""
    batch, queries, heads, _ = q.shape
    lse = torch.empty((batch, heads, queries), dtype=torch.float32, device=q.device)
    return _dense(q, k, v, scoring_of(scale, softcap, causal, window), config, lse), lse


def attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, sinks: Tensor | None, *,
    max_seqlen_q: int, max_seqlen_k: int, scale: float | None, causal: bool, window: tuple[int, int], softcap: float,
    config: AttentionConfig,
) -> Tensor:  # fmt: skip
    """The op `attention_varlen`, without sinks."""
    starts, longest = (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k)
    return _ragged(q, k, v, starts, longest, scoring_of(scale, softcap, causal, window), config, lse=None)


def attention_varlen_lse(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, sinks: Tensor | None, *,
    max_seqlen_q: int, max_seqlen_k: int, scale: float | None, causal: bool, window: tuple[int, int], softcap: float,
    config: AttentionConfig,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The op `attention_varlen_lse`, without sinks."""
    starts, longest = (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k)
    lse = torch.full((q.shape[1], len(q)), -math.inf, dtype=torch.float32, device=q.device)
    return _ragged(q, k, v, starts, longest, scoring_of(scale, softcap, causal, window), config, lse), lse


def limits(causal: bool, window: tuple[int, int]) -> tuple[int, int]:
    """How many keys to the left and to the right of its position a query sees; -1 is all of them."""
    left, right = window
    return left, 0 if causal else right


def scoring_of(scale: float | None, softcap: float, causal: bool, window: tuple[int, int]) -> Scoring:
    """What the options of a call say of scores."""
    return Scoring(scale, softcap, limits(causal, window))


def attention_instance(
    dtype: torch.dtype, head_dim: int, value_dim: int, scoring: Scoring, config: AttentionConfig, *,
    ragged: bool, lse: bool,
) -> Attention:  # fmt: skip
    """The instance that a call launches."""
    return Attention(SHORT[dtype], head_dim, value_dim, config, ragged, scoring.masked, scoring.cap > 0, lse)


def _dense(
    q: Tensor, k: Tensor, v: Tensor, scoring: Scoring, config: AttentionConfig, lse: Tensor | None,
) -> Tensor:  # fmt: skip
    """Attend within each of a batch; fills ``lse`` where there is one."""
    batch, queries = q.shape[:2]
    keys = k.shape[1]
    q, k, v = (addressable(tensor, tensor.shape[1]) for tensor in (q, k, v))
    out = empty_like_heads(q, v.shape[-1], queries)
    if not keys:
        out.zero_()
        if lse is not None:
            lse.fill_(-math.inf)
    elif out.numel():
        for first in range(0, batch, MOST_WORKGROUPS):
            part = slice(first, first + MOST_WORKGROUPS)
            of_lse = None if lse is None else lse[part]
            _launch(q[part], k[part], v[part], out[part], of_lse, None, (queries, keys), scoring, config)
    return out.contiguous()


def _ragged(
    q: Tensor, k: Tensor, v: Tensor, starts: tuple[Tensor, Tensor], longest: tuple[int, int], scoring: Scoring,
    config: AttentionConfig, lse: Tensor | None,
) -> Tensor:  # fmt: skip
    """Attend within each sequence; tokens of no sequence keep 0, and -inf in ``lse``."""
    q, k, v = (addressable(tensor, most) for tensor, most in ((q, longest[0]), (k, longest[1]), (v, longest[1])))
    out = empty_like_heads(q, v.shape[-1], longest[0]).zero_()
    first_q, first_k = (tensor.contiguous() for tensor in starts)
    sequences = len(first_q) - 1
    if longest[0] and out.numel():
        for first in range(0, sequences, MOST_WORKGROUPS):
            part = slice(first, first + MOST_WORKGROUPS + 1)
            _launch(q, k, v, out, lse, (first_q[part], first_k[part]), longest, scoring, config)
    return out.contiguous()


def _launch(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None, starts: tuple[Tensor, Tensor] | None,
    lengths: tuple[int, int], scoring: Scoring, config: AttentionConfig,
) -> None:  # fmt: skip
    """Launch an instance on tensors that end in tokens, heads and elements."""
    heads, head_dim = q.shape[-2:]
    instance = attention_instance(
        q.dtype, head_dim, v.shape[-1], scoring, config, ragged=starts is not None, lse=lse is not None
    )
    batch = len(q) if starts is None else len(starts[0]) - 1
    first_q, first_k = (q, q) if starts is None else starts  # without offsets, and without lse, pointers are not read
    tensors = (q, k, v, out)
    batches = [0] * 5
    if starts is None:
        batches = [
            *(tensor.stride(0) if batch > 1 else 0 for tensor in tensors),
            lse.stride(0) if lse is not None else 0,
        ]
    launch(
        instance,
        (heads, -(-lengths[0] // config.queries), batch),
        *tensors,
        out if lse is None else lse,
        first_q,
        first_k,
        scoring.factor(head_dim),
        scoring.cap,
        *lengths,
        heads,
        heads // k.shape[-2],
        *(tensor.stride(-3) for tensor in tensors),
        *(tensor.stride(-2) for tensor in tensors),
        lse.stride(-2) if lse is not None else 0,
        *batches,
        *scoring.seen,
    )


def addressable(tensor: Tensor, tokens: int) -> Tensor:
    """A tensor of which a launch can address each head; copied, heads first, where tokens lie too far apart."""
    if tensor.numel() and (tokens * tensor.stride(-3) * 2 > MOST_BYTES or max(tensor.stride()) > MOST_BYTES):
        return tensor.transpose(-3, -2).contiguous().transpose(-3, -2)
    return tensor


def empty_like_heads(q: Tensor, value_dim: int, tokens: int) -> Tensor:
    """The unwritten output, of a layout that a launch can address."""
    heads = q.shape[-2]
    if tokens * heads * value_dim * 2 > MOST_BYTES:
        rows = (*q.shape[:-3], heads, q.shape[-3], value_dim)
        return torch.empty(rows, dtype=q.dtype, device=q.device).transpose(-3, -2)
    return torch.empty((*q.shape[:-1], value_dim), dtype=q.dtype, device=q.device)
