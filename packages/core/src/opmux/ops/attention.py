"""Dense attention, its lse variant, its backward, and the merge of partial attention states."""

from typing import Any

import torch
from torch import Tensor

from opmux.definition import GENERATED, Accumulated, Caveat, define_op
from opmux.dtypes import Real, Statistic, accumulation_dtype
from opmux.ops._blockwise import INF, REQUIRED, Scoring, backward, forward, rounded
from opmux.ops._variants import variant

_FLOPS = "2 * batch * heads * seq_q * seq_k * (head_dim + value_dim)"


@define_op(
    outputs=("out",),
    same_dtype=(("q", "k", "v"),),
    require=REQUIRED,
    gradient="attention_backward",
    gradient_through="attention_lse",
    flops=_FLOPS,
    caveats=(Caveat.MASKED_NONFINITE,),
)
def attention(
    q: Real[Tensor, "batch seq_q heads head_dim"],
    k: Real[Tensor, "batch seq_k kv_heads head_dim"],
    v: Real[Tensor, "batch seq_k kv_heads value_dim"],
    sinks: Real[Tensor, "heads"] | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
) -> Real[Tensor, "batch seq_q heads value_dim"]:
    """Attend from each query to the keys of its own sequence and average their values.

    With ``p = i + seq_k - seq_q``, the position of query ``i`` counted from the last key (bottom-right):

        s[i, j] = scale * q[i] . k[j]
        s[i, j] = softcap * tanh(s[i, j] / softcap)        if softcap > 0
        s[i, j] = -inf                                     where key j is masked out for query i
        lse[i] = log(exp(sinks) + sum_j exp(s[i, j]))      (sinks only where given)
        out[i] = sum_j exp(s[i, j] - lse[i]) * v[j]

    Query ``i`` attends to key ``j`` if ``j <= p`` (only where ``causal``), ``j >= p - left`` (only where
    ``left != -1``) and ``j <= p + right`` (only where ``right != -1``). The output of a query that attends to nothing
    is 0. A masked-out key or value has no weight. A NaN in an attended one reaches the result; whether a NaN or
    infinity in a masked-out one reaches the queries that mask it out is unspecified: the reference keeps it out, and
    an implementation that does not says so (`Caveat.MASKED_NONFINITE`). A score of +inf makes its row NaN, lse
    included, as in any softmax; one of -inf has no weight. Accumulates in float32 (float64 for float64) and rounds
    once, at the end.

    Args:
        q: Queries, ``(batch, seq_q, heads, head_dim)``.
        k: Keys, ``(batch, seq_k, kv_heads, head_dim)``, q's dtype. Query head ``h`` reads kv head
            ``h // (heads / kv_heads)``.
        v: Values, ``(batch, seq_k, kv_heads, value_dim)``, q's dtype. ``value_dim`` may differ from
            ``head_dim``.
        sinks: One logit per head, ``(heads,)``, of any real dtype, neither scaled nor capped: it joins the
            denominator (and the lse) of every query of that head, and carries no value.
        scale: Factor on the scores; None is ``1 / sqrt(head_dim)``.
        causal: Whether a query sees no key past its own position.
        window: How many keys (left, right) of its own position a query sees, both ends included; -1 is open.
        softcap: Bound on the absolute value of the scores; 0.0 is off.

    Returns:
        The averaged values, ``(batch, seq_q, heads, value_dim)``, in q's dtype.

    Raises:
        InvalidArgument: If ``heads`` is not a multiple of ``kv_heads``, a window side is below -1, or softcap is
            negative.

    Source:
        Vaswani et al., Attention Is All You Need (2017); blocks: Dao, FlashAttention-2 (2023); sinks: OpenAI,
        gpt-oss model card (2025); softcap: Gemma Team, Gemma 2 (2024).
    """
    out, _ = forward(q, k, v, sinks, Scoring(scale, causal, window, softcap))
    return out.to(q.dtype)


@variant(
    attention,
    outputs=("out", "lse"),
    out_dtype={"lse": Accumulated("q")},
    gradient="attention_backward",
)
def attention_lse(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, **options: Any
) -> tuple[Real[Tensor, "batch seq_q heads value_dim"], Statistic[Tensor, "batch heads seq_q"]]:
    """Compute `attention` and the log-sum-exp of its scores.

    ``lse[i] = log(exp(sinks) + sum_j exp(s[i, j]))``, over the scores ``s`` that `attention` defines, scaled,
    capped and masked. With it, two results over disjoint keys can be merged (`merge_attention_states`), and
    the backward can recompute the probabilities. Accumulates in float32 (float64 for float64), rounds once,
    at the end.

    Returns:
        The averaged values, ``(batch, seq_q, heads, value_dim)``, in q's dtype; the lse in natural log,
        ``(batch, heads, seq_q)``, in float32 (float64 for float64). A query that attends to nothing has
        output 0 and lse -inf, or the sink where there is one.

    Raises:
        InvalidArgument: If ``heads`` is not a multiple of ``kv_heads``, a window side is below -1, or softcap is
            negative.

    Source:
        Dao, FlashAttention-2 (2023), section 3.1.
    """
    out, lse = forward(q, k, v, sinks, Scoring(**options))
    return out.to(q.dtype), lse


@define_op(
    outputs=("grad_q", "grad_k", "grad_v", "grad_sinks"),
    out_dtype={"grad_q": "q", "grad_k": "k", "grad_v": "v", "grad_sinks": "sinks"},
    same_dtype=(("grad_out", "q", "k", "v", "out"), ("lse", "grad_lse")),
    require=REQUIRED,
    flops="2 * batch * heads * seq_q * seq_k * (3 * head_dim + 2 * value_dim)",
    caveats=(Caveat.MASKED_NONFINITE, Caveat.NONFINITE_KIND),
)
def attention_backward(
    grad_out: Real[Tensor, "batch seq_q heads value_dim"],
    q: Real[Tensor, "batch seq_q heads head_dim"],
    k: Real[Tensor, "batch seq_k kv_heads head_dim"],
    v: Real[Tensor, "batch seq_k kv_heads value_dim"],
    out: Real[Tensor, "batch seq_q heads value_dim"],
    lse: Statistic[Tensor, "batch heads seq_q"],
    sinks: Real[Tensor, "heads"] | None = None,
    grad_lse: Statistic[Tensor, "batch heads seq_q"] | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    output_mask: tuple[bool, ...] = (True, True, True, True),
) -> tuple[
    Real[Tensor, "batch seq_q heads head_dim"],
    Real[Tensor, "batch seq_k kv_heads head_dim"],
    Real[Tensor, "batch seq_k kv_heads value_dim"],
    Real[Tensor, "heads"],
]:
    """Compute the gradients of `attention_lse`, recomputing the probabilities from the lse.

    With the scores ``s`` of `attention` and ``t`` the scores before the cap:

        p[i, j] = exp(s[i, j] - lse[i]),  0 where masked out
        shift[i] = grad_lse[i] - grad_out[i] . out[i]
        ds[i, j] = p[i, j] * (grad_out[i] . v[j] + shift[i])
        dt[i, j] = ds[i, j] * (1 - (s[i, j] / softcap)**2)        if softcap > 0, else ds[i, j]
        grad_q[i] = scale * sum_j dt[i, j] * k[j]
        grad_k[j] = scale * sum_i dt[i, j] * q[i]
        grad_v[j] = sum_i p[i, j] * grad_out[i]
        grad_sinks = sum_i exp(sinks - lse[i]) * shift[i]

    The sums over ``i`` run over the query heads that share a kv head too; grad_sinks sums over the batch. Whether a
    NaN or infinity on one side of a masked-out pair, in k, v, q or grad_out, reaches the gradients of that query and
    key is unspecified, as in `attention`. Accumulates in float32 (float64 for float64) and rounds once, at the end.

    Args:
        grad_out: Gradient of the output, ``(batch, seq_q, heads, value_dim)``, q's dtype.
        q: Queries, ``(batch, seq_q, heads, head_dim)``.
        k: Keys, ``(batch, seq_k, kv_heads, head_dim)``, q's dtype.
        v: Values, ``(batch, seq_k, kv_heads, value_dim)``, q's dtype.
        out: The forward's output, ``(batch, seq_q, heads, value_dim)``, q's dtype.
        lse: The forward's lse, ``(batch, heads, seq_q)``, float32 (float64 for float64).
        sinks: The forward's sinks, ``(heads,)``.
        grad_lse: Gradient of the lse, ``(batch, heads, seq_q)``, lse's dtype; None is zero.
        scale: The forward's scale.
        causal: The forward's causal.
        window: The forward's window.
        softcap: The forward's softcap.
        output_mask: Which of the four gradients are wanted; the others are not computed.

    Returns:
        grad_q, grad_k, grad_v and grad_sinks, each in the shape and dtype of its argument. An unwanted one,
        and grad_sinks without sinks, is an empty tensor of shape ``(0,)``.

    Raises:
        InvalidArgument: If ``heads`` is not a multiple of ``kv_heads``, a window side is below -1, or softcap is
            negative.

    Source:
        Dao, FlashAttention-2 (2023), section 3.1.2.
    """
    scoring = Scoring(scale, causal, window, softcap)
    grads = backward(grad_out, q, k, v, out, lse, sinks, grad_lse, scoring, output_mask)
    return rounded(grads, (q, k, v, sinks), q)


@define_op(
    outputs=("out", "lse"),
    out_dtype={"lse": Accumulated("out_a")},
    same_dtype=(("out_a", "out_b"), ("lse_a", "lse_b")),
    require=(("value_dim > 0", "a head has at least one dim"),),
    gradient=GENERATED,
)
def merge_attention_states(
    out_a: Real[Tensor, "*batch seq heads value_dim"],
    lse_a: Statistic[Tensor, "*batch heads seq"],
    out_b: Real[Tensor, "*batch seq heads value_dim"],
    lse_b: Statistic[Tensor, "*batch heads seq"],
) -> tuple[Real[Tensor, "*batch seq heads value_dim"], Statistic[Tensor, "*batch heads seq"]]:
    """Merge attention results of the same queries over two disjoint sets of keys.

        lse = log(exp(lse_a) + exp(lse_b))
        out = exp(lse_a - lse) * out_a + exp(lse_b - lse) * out_b

    A side whose lse is -inf attended to nothing: it has no weight, whatever its output holds. Where both are
    -inf, out is 0 and lse -inf. Include a sink in only one of the two sides, or it is counted twice.
    Accumulates in float32 (float64 for float64) and rounds once, at the end.

    Args:
        out_a: Output over the first keys, ``(*batch, seq, heads, value_dim)``; ragged:
            ``(tokens, heads, value_dim)``.
        lse_a: Its lse in natural log, ``(*batch, heads, seq)``; ragged: ``(heads, tokens)``. float32 (float64
            for float64).
        out_b: Output over the other keys, out_a's shape and dtype.
        lse_b: Its lse, lse_a's shape and dtype.

    Returns:
        The merged output, in out_a's shape and dtype; the merged lse, in lse_a's shape, in float32 (float64
        for float64).

    Source:
        Juravsky et al., Hydragen (2024), section 3.1; Ye et al., Cascade Inference (FlashInfer, 2024).
    """
    accumulate = accumulation_dtype(out_a.dtype)
    lse_a, lse_b = lse_a.to(accumulate), lse_b.to(accumulate)
    top = torch.maximum(lse_a, lse_b).detach()
    top = torch.where(top == -INF, 0.0, top)  # -inf - -inf is NaN
    weight_a, weight_b = torch.exp(lse_a - top), torch.exp(lse_b - top)
    nothing = (lse_a == -INF) & (lse_b == -INF)
    # 1, not 0: its logarithm and its reciprocal must have finite gradients
    total = torch.where(nothing, 1.0, weight_a + weight_b)
    lse = torch.where(nothing, -INF, top + torch.log(total))

    def share(out: Tensor, side: Tensor, weight: Tensor) -> Tensor:
        attended = (side != -INF).mT.unsqueeze(-1)
        return torch.where(attended, out.to(accumulate), 0.0) * (weight / total).mT.unsqueeze(-1)

    out = share(out_a, lse_a, weight_a) + share(out_b, lse_b, weight_b)
    return out.to(out_a.dtype).contiguous(), lse.contiguous()
