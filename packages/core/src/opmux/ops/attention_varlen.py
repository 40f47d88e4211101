"""Attention over ragged batches: sequences of different lengths, concatenated."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from torch import Tensor

from opmux.definition import Accumulated, Caveat, define_op
from opmux.dtypes import Int32, Real, Statistic, accumulation_dtype
from opmux.ops._blockwise import INF, REQUIRED, Scoring, backward, forward, rounded
from opmux.ops._sequences import count_pairs, read_offsets
from opmux.ops._variants import variant


def _read(
    op: str,
    q: Tensor,
    k: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
) -> list[tuple[slice, slice]]:
    """The tokens of q and of k that belong to each sequence."""
    starts_q = read_offsets(op, "q", cu_seqlens_q, tokens=q.shape[0], longest=max_seqlen_q)
    starts_k = read_offsets(op, "k", cu_seqlens_k, tokens=k.shape[0], longest=max_seqlen_k)
    pairs = zip(pairwise(starts_q), pairwise(starts_k), strict=True)
    return [(slice(*of_q), slice(*of_k)) for of_q, of_k in pairs]


def _check(op: str) -> Callable[..., None]:
    """Make the check of an op's offsets; it takes the op's arguments by name."""

    def check(
        *,
        q: Tensor,
        k: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        **_: object,
    ) -> None:
        _read(op, q, k, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)

    return check


def _count(of_head_dim: int, of_value_dim: int) -> Callable[..., float]:
    """The flop count of an op that does this many products of each width per (query, key) pair."""

    def flops(
        *,
        q: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        **_: object,
    ) -> float:
        pairs = count_pairs(cu_seqlens_q.diff(), cu_seqlens_k.diff(), max_seqlen_q, max_seqlen_k)
        return 2.0 * pairs * q.shape[1] * (of_head_dim * q.shape[2] + of_value_dim * v.shape[2])

    return flops


def _attend(
    op: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    sinks: Tensor | None,
    *,
    max_seqlen_q: int,
    max_seqlen_k: int,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Compute (out, lse) for one of the two forward ops; errors name that op."""
    sequences = _read(op, q, k, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    scoring = Scoring(**options)
    tokens, heads, _ = q.shape
    out = q.new_zeros((tokens, heads, v.shape[2]))
    lse = q.new_full((heads, tokens), -INF, dtype=accumulation_dtype(q.dtype))
    for of_q, of_k in sequences:
        one_out, one_lse = forward(q[None, of_q], k[None, of_k], v[None, of_k], sinks, scoring)
        out[of_q], lse[:, of_q] = one_out[0], one_lse[0]
    return out, lse


@define_op(
    outputs=("out",),
    same_dtype=(("q", "k", "v"),),
    require=REQUIRED,
    gradient="attention_varlen_backward",
    gradient_through="attention_varlen_lse",
    check_data=_check("attention_varlen"),
    flops=_count(1, 1),
    flops_bound="2 * tokens_q * max_seqlen_k * heads * (head_dim + value_dim)",
    caveats=(Caveat.MASKED_NONFINITE,),
    capturable=False,
)
def attention_varlen(
    q: Real[Tensor, "tokens_q heads head_dim"],
    k: Real[Tensor, "tokens_k kv_heads head_dim"],
    v: Real[Tensor, "tokens_k kv_heads value_dim"],
    cu_seqlens_q: Int32[Tensor, "batch+1"],
    cu_seqlens_k: Int32[Tensor, "batch+1"],
    sinks: Real[Tensor, "heads"] | None = None,
    *,
    max_seqlen_q: int,
    max_seqlen_k: int,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
) -> Real[Tensor, "tokens_q heads value_dim"]:
    """Attend within each sequence of a ragged batch.

    Sequence ``b`` has the queries ``cu_seqlens_q[b]`` to ``cu_seqlens_q[b + 1]`` and the keys
    ``cu_seqlens_k[b]`` to ``cu_seqlens_k[b + 1]``; each sequence is computed as in `attention`, with
    ``causal`` and ``window`` aligned to its last query and last key (bottom-right). Tokens past the last sequence are
    ignored: their output is 0. Accumulates in float32 (float64 for float64) and rounds once, at the end.

    Args:
        q: Queries, ``(tokens_q, heads, head_dim)``.
        k: Keys, ``(tokens_k, kv_heads, head_dim)``, q's dtype. Query head ``h`` reads kv head
            ``h // (heads / kv_heads)``.
        v: Values, ``(tokens_k, kv_heads, value_dim)``, q's dtype. ``value_dim`` may differ from ``head_dim``.
        cu_seqlens_q: Offsets of the sequences in q in tokens, int32 ``(batch + 1,)``: starts with 0, does not
            decrease.
        cu_seqlens_k: Offsets of the sequences in k and v in tokens, int32 ``(batch + 1,)``.
        sinks: One logit per head, ``(heads,)``, of any real dtype, neither scaled nor capped: it joins the
            denominator of every query of that head, and carries no value.
        max_seqlen_q: Upper bound of the number of queries of a sequence.
        max_seqlen_k: Upper bound of the number of keys of a sequence.
        scale: Factor on the scores; None is ``1 / sqrt(head_dim)``.
        causal: Whether a query sees no key past its own position.
        window: How many keys (left, right) of its own position a query sees, both ends included; -1 is open.
        softcap: Bound on the absolute value of the scores; 0.0 is off.

    Returns:
        The averaged values, ``(tokens_q, heads, value_dim)``, in q's dtype. A query that attends to nothing
        gives 0.

    Raises:
        InvalidArgument: If ``heads`` is not a multiple of ``kv_heads``, a window side is below -1, or softcap is
            negative; where the data is checked: if offsets do not start with 0, decrease, or end past the
            tokens, or if a sequence is longer than ``max_seqlen_q`` or ``max_seqlen_k``.

    Source:
        As `attention`; the ragged form is that of Dao's flash-attn (``flash_attn_varlen_func``).
    """
    out, _ = _attend(
        "attention_varlen",
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        sinks,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        scale=scale,
        causal=causal,
        window=window,
        softcap=softcap,
    )
    return out


@variant(
    attention_varlen,
    outputs=("out", "lse"),
    out_dtype={"lse": Accumulated("q")},
    gradient="attention_varlen_backward",
    check_data=_check("attention_varlen_lse"),
)
def attention_varlen_lse(
    *tensors: Any, **options: Any
) -> tuple[Real[Tensor, "tokens_q heads value_dim"], Statistic[Tensor, "heads tokens_q"]]:
    """Compute `attention_varlen` and the log-sum-exp of its scores.

    ``lse[i] = log(exp(sinks) + sum_j exp(s[i, j]))``, over the scaled, capped and masked scores ``s`` of
    query ``i`` with the keys of its own sequence, as in `attention_lse`. Accumulates in float32 (float64 for
    float64) and rounds once, at the end.

    Returns:
        The averaged values, ``(tokens_q, heads, value_dim)``, in q's dtype; the lse in natural log,
        ``(heads, tokens_q)``, in float32 (float64 for float64). A query that attends to nothing has output 0
        and lse -inf, or the sink where there is one. A token past the last sequence has output 0 and lse
        -inf, sink or not.

    Raises:
        InvalidArgument: As `attention_varlen`.

    Source:
        Dao, FlashAttention-2 (2023), section 3.1.
    """
    return _attend("attention_varlen_lse", *tensors, **options)


@define_op(
    outputs=("grad_q", "grad_k", "grad_v", "grad_sinks"),
    out_dtype={"grad_q": "q", "grad_k": "k", "grad_v": "v", "grad_sinks": "sinks"},
    same_dtype=(("grad_out", "q", "k", "v", "out"), ("lse", "grad_lse")),
    require=REQUIRED,
    check_data=_check("attention_varlen_backward"),
    flops=_count(3, 2),
    flops_bound="2 * tokens_q * max_seqlen_k * heads * (3 * head_dim + 2 * value_dim)",
    caveats=(Caveat.MASKED_NONFINITE, Caveat.NONFINITE_KIND),
    capturable=False,
)
def attention_varlen_backward(
    grad_out: Real[Tensor, "tokens_q heads value_dim"],
    q: Real[Tensor, "tokens_q heads head_dim"],
    k: Real[Tensor, "tokens_k kv_heads head_dim"],
    v: Real[Tensor, "tokens_k kv_heads value_dim"],
    out: Real[Tensor, "tokens_q heads value_dim"],
    lse: Statistic[Tensor, "heads tokens_q"],
    cu_seqlens_q: Int32[Tensor, "batch+1"],
    cu_seqlens_k: Int32[Tensor, "batch+1"],
    sinks: Real[Tensor, "heads"] | None = None,
    grad_lse: Statistic[Tensor, "heads tokens_q"] | None = None,
    *,
    max_seqlen_q: int,
    max_seqlen_k: int,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    output_mask: tuple[bool, ...] = (True, True, True, True),
) -> tuple[
    Real[Tensor, "tokens_q heads head_dim"],
    Real[Tensor, "tokens_k kv_heads head_dim"],
    Real[Tensor, "tokens_k kv_heads value_dim"],
    Real[Tensor, "heads"],
]:
    """Compute the gradients of `attention_varlen_lse`, recomputing the probabilities from the lse.

    In each sequence the formulas are those of `attention_backward`; grad_sinks is the sum over the sequences.
    Tokens outside every sequence have gradient 0, whatever grad_out and grad_lse hold there. Accumulates in
    float32 (float64 for float64) and rounds once, at the end.

    Args:
        grad_out: Gradient of the output, ``(tokens_q, heads, value_dim)``, q's dtype.
        q: Queries, ``(tokens_q, heads, head_dim)``.
        k: Keys, ``(tokens_k, kv_heads, head_dim)``, q's dtype.
        v: Values, ``(tokens_k, kv_heads, value_dim)``, q's dtype.
        out: The forward's output, ``(tokens_q, heads, value_dim)``, q's dtype.
        lse: The forward's lse, ``(heads, tokens_q)``, float32 (float64 for float64).
        cu_seqlens_q: The forward's offsets of the sequences in q, int32 ``(batch + 1,)``.
        cu_seqlens_k: The forward's offsets of the sequences in k and v, int32 ``(batch + 1,)``.
        sinks: The forward's sinks, ``(heads,)``.
        grad_lse: Gradient of the lse, ``(heads, tokens_q)``, lse's dtype; None is zero.
        max_seqlen_q: Upper bound of the number of queries of a sequence.
        max_seqlen_k: Upper bound of the number of keys of a sequence.
        scale: The forward's scale.
        causal: The forward's causal.
        window: The forward's window.
        softcap: The forward's softcap.
        output_mask: Which of the four gradients are wanted; the others are not computed.

    Returns:
        grad_q, grad_k, grad_v and grad_sinks, each in the shape and dtype of its argument. An unwanted one,
        and grad_sinks without sinks, is an empty tensor of shape ``(0,)``.

    Raises:
        InvalidArgument: As `attention_varlen`.

    Source:
        Dao, FlashAttention-2 (2023), section 3.1.2.
    """
    op = "attention_varlen_backward"
    sequences = _read(op, q, k, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    scoring = Scoring(scale, causal, window, softcap)
    dtype = accumulation_dtype(q.dtype)
    totals = [
        None if x is None or not wanted else x.new_zeros(x.shape, dtype=dtype)
        for x, wanted in zip((q, k, v, sinks), output_mask, strict=True)
    ]
    for of_q, of_k in sequences:
        of_grad_lse = None if grad_lse is None else grad_lse[None, :, of_q]
        tensors = grad_out[None, of_q], q[None, of_q], k[None, of_k], v[None, of_k], out[None, of_q]
        grads = backward(*tensors, lse[None, :, of_q], sinks, of_grad_lse, scoring, output_mask)
        for total, grad, tokens in zip(totals, grads, (of_q, of_k, of_k, None), strict=True):
            if total is None or grad is None:
                continue
            if tokens is None:  # grad_sinks: every sequence adds to it
                total.add_(grad)
            else:
                total[tokens] = grad[0]
    return rounded(totals, (q, k, v, sinks), q)
