"""Attention over a paged KV cache: prefill, chunked prefill and decode in one op."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from opmux.definition import REFUSED, Accumulated, Widened, define_op
from opmux.dtypes import Float32, Int32, Real, RealOrFp8, Statistic, Stored, accumulation_dtype
from opmux.ops._blockwise import INF, REQUIRED, Scoring, forward
from opmux.ops._sequences import check_block_table, count_pairs, read_lengths, read_offsets
from opmux.ops._variants import variant

_REQUIRED = (
    *REQUIRED,
    ("page_size == 1 or (page_size > 0 and page_size % 16 == 0)", "a page holds 1 token or a multiple of 16"),
    ("layout == 'nhd'", "the caches are (pages, page_size, kv_heads, head_dim)"),
)


def _read(
    op: str,
    q: Tensor,
    k_cache: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
) -> list[tuple[slice, int]]:
    """Each sequence's new tokens and its total length."""
    pages, page_size = k_cache.shape[:2]
    starts = read_offsets(op, "q", cu_seqlens_q, tokens=q.shape[0], longest=max_seqlen_q)
    capacity = block_table.shape[1] * page_size
    lengths = read_lengths(op, seq_lens, starts, capacity=capacity, longest=max_seqlen_k)
    check_block_table(op, block_table, lengths, pages=pages, page_size=page_size)
    return [(slice(*new), length) for new, length in zip(pairwise(starts), lengths, strict=True)]


def _check(op: str) -> Callable[..., None]:
    """Make the check of an op's index data; it takes the op's arguments by name."""

    def check(
        *,
        q: Tensor,
        k_cache: Tensor,
        cu_seqlens_q: Tensor,
        seq_lens: Tensor,
        block_table: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        **_: object,
    ) -> None:
        _read(op, q, k_cache, cu_seqlens_q, seq_lens, block_table, max_seqlen_q, max_seqlen_k)

    return check


def _count(
    *,
    q: Tensor,
    v_cache: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    **_: object,
) -> float:
    """The flop count: two products for each pair of a new token and a token of its sequence."""
    pairs = count_pairs(cu_seqlens_q.diff(), seq_lens, max_seqlen_q, max_seqlen_k)
    return 2.0 * pairs * q.shape[1] * (q.shape[2] + v_cache.shape[3])


def _restored(stored: Tensor, scale: Tensor | None, acc: torch.dtype) -> Tensor:
    """Return the values of 8-bit codes ``(..., heads, dim)``, whose scale is for each head or for all."""
    if stored.dtype.itemsize > 1 and scale is None:
        return stored
    return stored.to(acc) if scale is None else stored.to(acc) * scale.to(acc)[:, None]


def _gathered(cache: Tensor, pages: Tensor, length: int) -> Tensor:
    """A sequence's part of a cache, ``(1, length, kv_heads, dim)``; only the pages it needs are read."""
    used = pages[: -(-length // cache.shape[1])]
    return cache.index_select(0, used).flatten(0, 1)[None, :length]


def _attend(
    op: str,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    sinks: Tensor | None,
    q_scale: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    *,
    max_seqlen_q: int,
    max_seqlen_k: int,
    layout: str,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Compute (out, lse) for one of the two ops; errors name that op. There is only one layout."""
    sequences = _read(op, q, k_cache, cu_seqlens_q, seq_lens, block_table, max_seqlen_q, max_seqlen_k)
    scoring = Scoring(**options)
    tokens, heads, _ = q.shape
    acc = accumulation_dtype(q.dtype)
    out = q.new_zeros((tokens, heads, v_cache.shape[3]), dtype=torch.bfloat16 if q.dtype.itemsize == 1 else q.dtype)
    lse = q.new_full((heads, tokens), -INF, dtype=acc)
    if q_scale is not None and q_scale.shape[0] > 1:
        q_scale = q_scale.repeat_interleave(heads // k_cache.shape[2])
    q = _restored(q, q_scale, acc)
    for (new, length), pages in zip(sequences, block_table, strict=True):
        if new.start == new.stop:
            continue
        keys, values = _gathered(k_cache, pages, length), _gathered(v_cache, pages, length)
        keys, values = _restored(keys, k_scale, acc), _restored(values, v_scale, acc)
        one_out, one_lse = forward(q[None, new], keys, values, sinks, scoring)
        out[new], lse[:, new] = one_out[0], one_lse[0]
    return out, lse


@define_op(
    outputs=("out",),
    out_dtype={"out": Widened("q")},
    same_dtype=(("q", "k_cache", "v_cache"),),
    scales={"q": "q_scale", "k_cache": "k_scale", "v_cache": "v_scale"},
    require=_REQUIRED,
    gradient=REFUSED,
    check_data=_check("paged_attention"),
    flops=_count,
    flops_bound="2 * tokens * max_seqlen_k * heads * (head_dim + value_dim)",
    touched={
        "k_cache": "batch * max_seqlen_k * kv_heads * head_dim",
        "v_cache": "batch * max_seqlen_k * kv_heads * value_dim",
        "block_table": "batch * (max_seqlen_k // page_size + 1)",
    },
    capturable=False,
)
def paged_attention(
    q: RealOrFp8[Tensor, "tokens heads head_dim"],
    k_cache: Stored[Tensor, "pages page_size kv_heads head_dim"],
    v_cache: Stored[Tensor, "pages page_size kv_heads value_dim"],
    cu_seqlens_q: Int32[Tensor, "batch+1"],
    seq_lens: Int32[Tensor, "batch"],
    block_table: Int32[Tensor, "batch max_pages"],
    sinks: Real[Tensor, "heads"] | None = None,
    q_scale: Float32[Tensor, "kv_heads|1"] | None = None,
    k_scale: Float32[Tensor, "kv_heads|1"] | None = None,
    v_scale: Float32[Tensor, "kv_heads|1"] | None = None,
    *,
    max_seqlen_q: int,
    max_seqlen_k: int,
    scale: float | None = None,
    causal: bool = True,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    layout: str = "nhd",
) -> Real[Tensor, "tokens heads value_dim"]:
    """Attend from the new tokens of each sequence to all of its tokens in a paged KV cache.

    Key ``j`` of sequence ``b`` is ``k_cache[block_table[b, j // page_size], j % page_size]``, for ``j`` below
    ``seq_lens[b]``; its queries are ``q[cu_seqlens_q[b]]`` to ``q[cu_seqlens_q[b + 1]]``, the last positions
    of the sequence. Each sequence is computed as in `attention` (bottom-right). The keys and values of
    the new tokens are read from the cache too: write them first (`write_kv_cache`). One query per sequence is
    decode, ``seq_lens`` queries is prefill, anything in between is chunked prefill; a batch may mix them.
    Table entries past the end of a sequence are never read, and the contents of a page past that end never
    affect the result, even if they are NaN.

    The caches may hold 8-bit codes: fp8 or int8, beside queries of real numbers or, if both are of one dtype, of fp8.
    A real value is then the code times its scale, which is the same for all tokens; nothing else changes, and the
    queries are not rounded to 8 bits. Accumulates in float32 (float64 for float64) and rounds once, at the end.

    Args:
        q: Queries of the new tokens, ``(tokens, heads, head_dim)``.
        k_cache: Keys, ``(pages, page_size, kv_heads, head_dim)``, in q's dtype or an 8-bit one, any strides.
            ``page_size`` is a multiple of 16, or 1. Query head ``h`` reads kv head ``h // (heads / kv_heads)``.
        v_cache: Values, ``(pages, page_size, kv_heads, value_dim)``, in k_cache's dtype, any strides.
        cu_seqlens_q: Offsets of the sequences in q in tokens, int32 ``(batch + 1,)``: starts with 0, does not
            decrease.
        seq_lens: Length of each sequence in tokens, including the new ones, int32 ``(batch,)``.
        block_table: The pages of each sequence in order, int32 ``(batch, max_pages)``.
        sinks: One logit per head, ``(heads,)``, of any real dtype, neither scaled nor capped: it joins the
            denominator of every query of that head, and carries no value.
        q_scale: What one unit of fp8 queries is worth, float32, for the query heads of each kv head, ``(kv_heads,)``,
            or for all, ``(1,)``. Positive and finite. None is 1, and the only choice for queries of real numbers.
        k_scale: The same for 8-bit keys.
        v_scale: The same for 8-bit values.
        max_seqlen_q: Upper bound of the number of new tokens of a sequence.
        max_seqlen_k: Upper bound of ``seq_lens``.
        scale: Factor on the scores; None is ``1 / sqrt(head_dim)``.
        causal: Whether a query sees no key past its own position.
        window: How many keys (left, right) of its own position a query sees, both ends included; -1 is open.
        softcap: Bound on the absolute value of the scores; 0.0 is off.
        layout: Order of the caches' dims; ``"nhd"`` is the one above.

    Returns:
        The averaged values, ``(tokens, heads, value_dim)``, in q's dtype, or in bfloat16 if that is fp8. A query that
        attends to nothing, and a token past the last sequence, gives 0.

    Raises:
        InvalidArgument: If the caches differ in dtype, or have neither q's nor, with q of real numbers, an 8-bit one;
            if a scale is given for what is not 8-bit; if ``heads`` is not a multiple of ``kv_heads``, the page size is
            neither 1 nor a multiple of 16, a window side is below -1, softcap is negative, or the layout is unknown;
            where the data is checked: if the offsets are invalid, if a sequence has fewer tokens than new ones, or more
            than its row of the table can hold or the bounds allow, or if a required entry is not a page.

    Source:
        Kwon et al., Efficient Memory Management for LLM Serving with PagedAttention (2023).
    """
    out, _ = _attend(
        "paged_attention",
        q,
        k_cache,
        v_cache,
        cu_seqlens_q,
        seq_lens,
        block_table,
        sinks,
        q_scale,
        k_scale,
        v_scale,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        layout=layout,
        scale=scale,
        causal=causal,
        window=window,
        softcap=softcap,
    )
    return out


@variant(
    paged_attention,
    outputs=("out", "lse"),
    out_dtype={"out": Widened("q"), "lse": Accumulated("q")},
    gradient=REFUSED,
    check_data=_check("paged_attention_lse"),
)
def paged_attention_lse(
    *tensors: Any, **options: Any
) -> tuple[Real[Tensor, "tokens heads value_dim"], Statistic[Tensor, "heads tokens"]]:
    """Compute `paged_attention` and the log-sum-exp of its scores.

    ``lse[i] = log(exp(sinks) + sum_j exp(s[i, j]))``, over the scaled, capped and masked scores ``s`` of
    query ``i`` with the cached keys of its own sequence, as in `attention_lse`; `merge_attention_states`
    merges it with a result over other keys (a shared prefix, say). Accumulates in float32 (float64 for
    float64) and rounds once, at the end.

    Returns:
        The averaged values, ``(tokens, heads, value_dim)``, in q's dtype, or in bfloat16 if that is fp8; the
        lse in natural log, ``(heads, tokens)``, in float32 (float64 for float64). A query that attends to nothing has
        output 0 and lse -inf, or the sink where there is one. A token past the last sequence has output 0 and lse
        -inf, sink or not.

    Raises:
        InvalidArgument: As `paged_attention`.

    Source:
        Kwon et al., Efficient Memory Management for LLM Serving with PagedAttention (2023).
    """
    return _attend("paged_attention_lse", *tensors, **options)
