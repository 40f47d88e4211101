"""Attention in blocks of queries by keys: the arithmetic that the references of the attention family share.

Both directions take dense tensors, one batch of equally long sequences, and return the accumulation dtype.
Inside, the query heads that share a kv head are adjacent, as *rows*, so that one product serves them
all: ``(batch, kv_heads, seq * groups, dim)``, row ``i * groups + g`` for query ``i`` of the g-th head of its
group.

Masked-out entries must not affect the result, even when they are NaN or Inf. Scores are masked by selection, but
in a product of weights and values a weight of 0 does not silence a NaN. When some entries are masked out, the
products therefore use only finite factors, and the contribution of the non-finite ones is computed separately: each
query attends to one interval of keys, so running counts of the non-finite entries tell which sums they belong to.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from opmux.dtypes import accumulation_dtype
from opmux.ops._band import Band

SCORES_PER_BLOCK = {"cpu": 1 << 20, "cuda": 1 << 25}
"""Approximate number of scores, over all batches and heads, held at a time."""

BLOCK_SIDES = {"cpu": (64, 1024), "cuda": (64, 4096)}
"""The minimum and the maximum number of rows, and of keys, in a block."""

INF = float("inf")

REQUIRED = (
    ("heads > 0 and kv_heads > 0", "attention has at least one head"),
    ("head_dim > 0 and value_dim > 0", "a head has at least one dim"),
    ("heads % kv_heads == 0", "query heads are shared evenly by the kv heads"),
    ("window[0] >= -1 and window[1] >= -1", "a side of the window is a number of keys, or -1 for open"),
    ("scale is None or -3e38 < scale < 3e38", "the scale is a finite float32 number, or None for 1 / sqrt(head_dim)"),
    ("softcap >= 0", "the cap is positive, or 0 for off"),
)
"""What every op of the family requires of its dims and options."""


class Scoring(NamedTuple):
    """The options that determine how queries score keys, under the ops' own names."""

    scale: float | None
    causal: bool
    window: tuple[int, int]
    softcap: float

    def factor(self, head_dim: int) -> float:
        """The factor on the scores."""
        return 1 / math.sqrt(head_dim) if self.scale is None else self.scale


def forward(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, scoring: Scoring) -> tuple[Tensor, Tensor]:
    """`attention_lse` by online softmax: (out, lse), contiguous, in the accumulation dtype."""
    dtype = accumulation_dtype(q.dtype)
    kv_heads, groups = k.shape[2], q.shape[2] // k.shape[2]
    band = Band.of(q.shape[1], k.shape[1], scoring.causal, scoring.window)
    factor, softcap = scoring.factor(q.shape[3]), scoring.softcap
    rows = as_rows(q, kv_heads, dtype) * factor
    keys, values = as_rows(k, kv_heads, dtype), as_rows(v, kv_heads, dtype)
    factors = finite_part(values) if band.partial else values
    start = sink_rows(sinks, rows)
    out = rows.new_zeros((*rows.shape[:3], v.shape[3]))
    lse = rows.new_zeros((*rows.shape[:3], 1))
    side = block_side(rows)

    for query, block in band.query_blocks(max(1, side // groups), groups):
        top = start[:, :, block]  # the largest score so far
        total = torch.exp(top - anchor(top))  # the sum so far of exp(score - top)
        mean = torch.zeros_like(out[:, :, block])  # the sum so far of exp(score - top) * value
        for key in band.key_blocks(query, side):
            scores = scores_of(rows[:, :, block], keys[:, :, key], softcap)
            masked = band.masked_out(query, key, groups, q.device)
            if masked is not None:
                scores = scores.masked_fill_(masked, -INF)
            new_top = torch.maximum(top, scores.amax(-1, keepdim=True))
            weights = scores.sub_(anchor(new_top)).exp_()
            decay = torch.exp(top - anchor(new_top))
            total = total * decay + weights.sum(-1, keepdim=True)
            mean = mean * decay + weights @ factors[:, :, key]
            top = new_top
        out[:, :, block] = mean / torch.where(total == 0, 1.0, total)
        lse[:, :, block] = anchor(top) + torch.log(total)

    if band.partial:
        out += nonfinite_sum(values, factors, band, query_rows=groups)
    return from_rows(out, groups), from_rows(lse, groups).squeeze(-1).mT.contiguous()


def backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    sinks: Tensor | None,
    grad_lse: Tensor | None,
    scoring: Scoring,
    output_mask: tuple[bool, ...],
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """`attention_backward`: the wanted gradients of (q, k, v, sinks), in the accumulation dtype."""
    wants_q, wants_k, wants_v, wants_sinks = output_mask
    dtype = accumulation_dtype(q.dtype)
    kv_heads, groups = k.shape[2], q.shape[2] // k.shape[2]
    band = Band.of(q.shape[1], k.shape[1], scoring.causal, scoring.window)
    factor, softcap = scoring.factor(q.shape[3]), scoring.softcap
    rows = as_rows(q, kv_heads, dtype) * factor
    keys, values = as_rows(k, kv_heads, dtype), as_rows(v, kv_heads, dtype)
    grads = as_rows(grad_out, kv_heads, dtype)
    base = anchor(as_rows(lse.mT.unsqueeze(-1), kv_heads, dtype))
    shift = -(grads * as_rows(out, kv_heads, dtype)).sum(-1, keepdim=True)
    if grad_lse is not None:
        shift = shift + as_rows(grad_lse.mT.unsqueeze(-1), kv_heads, dtype)
    row_factors, key_factors, grad_factors = rows, keys, grads
    if band.partial:
        row_factors, key_factors, grad_factors = (finite_part(x) for x in (rows, keys, grads))
    grad_rows = torch.zeros_like(rows) if wants_q else None
    grad_keys = torch.zeros_like(keys) if wants_k else None
    grad_values = torch.zeros_like(values) if wants_v else None
    side = block_side(rows)

    query_blocks = band.query_blocks(max(1, side // groups), groups) if any(output_mask[:3]) else ()
    for query, block in query_blocks:
        for key in band.key_blocks(query, side):
            scores = scores_of(rows[:, :, block], keys[:, :, key], softcap)
            masked = band.masked_out(query, key, groups, q.device)
            slope = 1 - (scores / softcap).square() if softcap > 0 else None
            weights = scores.sub_(base[:, :, block]).exp_()
            if masked is not None:
                weights = weights.masked_fill_(masked, 0.0)
            if grad_values is not None:
                grad_values[:, :, key] += weights.mT @ grad_factors[:, :, block]
            if grad_rows is None and grad_keys is None:
                continue
            grad_scores = grads[:, :, block] @ values[:, :, key].mT
            grad_scores = grad_scores.add_(shift[:, :, block]).mul_(weights)
            if slope is not None:
                grad_scores = grad_scores.mul_(slope)
            if masked is not None:
                grad_scores = grad_scores.masked_fill_(masked, 0.0)
            if grad_rows is not None:
                grad_rows[:, :, block] += grad_scores @ key_factors[:, :, key]
            if grad_keys is not None:
                grad_keys[:, :, key] += grad_scores.mT @ row_factors[:, :, block]

    if band.partial and grad_values is not None:
        grad_values += nonfinite_sum(grads, grad_factors, band.transposed(), key_rows=groups)
    grad_sinks = None
    if sinks is not None and wants_sinks:
        by_row = torch.exp(sink_rows(sinks, rows) - base) * shift
        grad_sinks = from_rows(by_row, groups).sum((0, 1, 3))
    return (
        None if grad_rows is None else from_rows(grad_rows * factor, groups),
        None if grad_keys is None else from_rows(grad_keys, 1),
        None if grad_values is None else from_rows(grad_values, 1),
        grad_sinks,
    )


def rounded(
    grads: Sequence[Tensor | None], arguments: Sequence[Tensor | None], q: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Each gradient in its argument's dtype (q's for an absent argument); empty where there is none."""
    dtypes = [q.dtype if argument is None else argument.dtype for argument in arguments]
    grad_q, grad_k, grad_v, grad_sinks = (
        q.new_empty((0,), dtype=dtype) if grad is None else grad.to(dtype)
        for grad, dtype in zip(grads, dtypes, strict=True)
    )
    return grad_q, grad_k, grad_v, grad_sinks


def as_rows(x: Tensor, kv_heads: int, dtype: torch.dtype) -> Tensor:
    """``(batch, seq, heads, dim)`` as ``(batch, kv_heads, seq * groups, dim)``; may be x itself."""
    batch, seq, heads, dim = x.shape
    groups = heads // kv_heads
    by_group = x.reshape(batch, seq, kv_heads, groups, dim).permute(0, 2, 1, 3, 4)
    return by_group.to(dtype).reshape(batch, kv_heads, seq * groups, dim).contiguous()


def from_rows(x: Tensor, groups: int) -> Tensor:
    """The inverse of `as_rows`."""
    batch, kv_heads, rows, dim = x.shape
    by_group = x.reshape(batch, kv_heads, rows // groups, groups, dim).permute(0, 2, 1, 3, 4)
    return by_group.reshape(batch, rows // groups, kv_heads * groups, dim).contiguous()


def sink_rows(sinks: Tensor | None, rows: Tensor) -> Tensor:
    """The sink of each row, ``(1, kv_heads, rows, 1)``; -inf where there are none."""
    if sinks is None:
        return rows.new_full((1, *rows.shape[1:3], 1), -INF)
    by_head = sinks.to(rows.dtype).reshape(1, rows.shape[1], -1, 1)
    return by_head.repeat(1, 1, rows.shape[2] // by_head.shape[2], 1)


def block_side(rows: Tensor) -> int:
    """The number of rows, and of keys, in a block."""
    kind = rows.device.type if rows.device.type in BLOCK_SIDES else "cpu"
    fewest, most = BLOCK_SIDES[kind]
    return min(max(math.isqrt(SCORES_PER_BLOCK[kind] // max(1, rows.shape[0] * rows.shape[1])), fewest), most)


def scores_of(rows: Tensor, keys: Tensor, softcap: float) -> Tensor:
    """The capped scores of a block; the rows are already scaled."""
    scores = rows @ keys.mT
    return softcap * torch.tanh(scores / softcap) if softcap > 0 else scores


def anchor(top: Tensor) -> Tensor:
    """The value to subtract from scores: a maximum or lse, but 0 for -inf, because -inf - -inf would be NaN."""
    return torch.where(top == -INF, 0.0, top)


def finite_part(x: Tensor) -> Tensor:
    """x with 0 for NaN and Inf."""
    return x.nan_to_num(0.0, 0.0, 0.0)


def nonfinite_sum(x: Tensor, finite: Tensor, band: Band, query_rows: int = 1, key_rows: int = 1) -> Tensor:
    """The contribution of NaN and Inf in x to positively weighted sums over each query's keys: NaN, Inf, -Inf or 0.

    Each query of the band has ``query_rows`` rows, and each key ``key_rows``.
    """
    first, last = band.bounds(query_rows, key_rows, x.device)
    if not x.is_cuda and None in (band.left, band.right):
        # Faster, but in torch's deterministic mode CUDA refuses a running sum of floating-point numbers.
        excess = x - finite
        if band.left is None:
            return after_zero(excess.cumsum(2)).index_select(2, last)
        return after_zero(excess.flip(2).cumsum(2)).index_select(2, x.shape[2] - first)

    def some(exempt: Tensor) -> Tensor:
        """Whether some of a query's keys are not exempt."""
        count = after_zero(exempt.cumsum(2, dtype=torch.int32))
        return count.index_select(2, last) - count.index_select(2, first) < (last - first).unsqueeze(1)

    return torch.where(some(x < INF), INF, 0.0) - torch.where(some(x > -INF), INF, 0.0)


def after_zero(running: Tensor) -> Tensor:
    """Running sums, preceded by the empty sum, 0."""
    return torch.nn.functional.pad(running, (0, 0, 1, 0))
