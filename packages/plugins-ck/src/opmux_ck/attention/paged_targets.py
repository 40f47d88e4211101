"""What the core calls for attention over pages."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from opmux_ck.attention.paged_configs import PagedConfig
from opmux_ck.attention.paged_instances import CombinedParts, PagedAttention
from opmux_ck.attention.targets import MOST_WORKGROUPS, Scoring, addressable, empty_like_heads, limits
from opmux_ck.building.instances import Instance
from opmux_ck.dtypes import SHORT
from opmux_ck.launching import MOST_BYTES, launch


@dataclass(frozen=True)
class PagedCall:
    """The tensors of a call, and its bounds.

    Attributes:
        q: the new tokens' queries.
        k: the cache of keys.
        v: the cache of values.
        starts: the first query of each sequence, and the end of the last.
        lengths: of the sequences.
        table: the pages of each sequence.
        most_queries: of a sequence.
        scoring: what becomes of scores.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    starts: Tensor
    lengths: Tensor
    table: Tensor
    most_queries: int
    scoring: Scoring


def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, cu_seqlens_q: Tensor, seq_lens: Tensor, block_table: Tensor,
    sinks: Tensor | None, q_scale: Tensor | None, k_scale: Tensor | None, v_scale: Tensor | None, *,
    max_seqlen_q: int, max_seqlen_k: int, scale: float | None, causal: bool, window: tuple[int, int], softcap: float,
    layout: str, config: PagedConfig,
) -> Tensor:  # fmt: skip
    """The op `paged_attention`, without sinks and scales."""
    scoring = scoring_of_pages(scale, softcap, causal, window, max_seqlen_q)
    tensors = q, k_cache, v_cache, cu_seqlens_q, seq_lens, block_table
    return _attend(PagedCall(*tensors, max_seqlen_q, scoring), config, lse=None)


def paged_attention_lse(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, cu_seqlens_q: Tensor, seq_lens: Tensor, block_table: Tensor,
    sinks: Tensor | None, q_scale: Tensor | None, k_scale: Tensor | None, v_scale: Tensor | None, *,
    max_seqlen_q: int, max_seqlen_k: int, scale: float | None, causal: bool, window: tuple[int, int], softcap: float,
    layout: str, config: PagedConfig,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The op `paged_attention_lse`, without sinks and scales."""
    scoring = scoring_of_pages(scale, softcap, causal, window, max_seqlen_q)
    lse = torch.full((q.shape[1], len(q)), -math.inf, dtype=torch.float32, device=q.device)
    tensors = q, k_cache, v_cache, cu_seqlens_q, seq_lens, block_table
    return _attend(PagedCall(*tensors, max_seqlen_q, scoring), config, lse), lse


def scoring_of_pages(
    scale: float | None, softcap: float, causal: bool, window: tuple[int, int], most_queries: int
) -> Scoring:
    """What the options of a call say of scores: the only query of a sequence is its last, with no key to its right."""
    left, right = limits(causal, window)
    return Scoring(scale, softcap, (left, -1 if most_queries <= 1 else right))


def parts_of(config: PagedConfig, tokens: int, heads: int, value_dim: int) -> int:
    """Parts of the keys: those of the config, or one where a launch cannot address the results of several."""
    return 1 if config.parts * tokens * heads * value_dim * 4 > MOST_BYTES else config.parts


def paged_instances(
    dtype: torch.dtype, sizes: tuple[int, int, int, int], scoring: Scoring, config: PagedConfig, *, lse: bool,
) -> Iterator[Instance]:  # fmt: skip
    """The instances that a call launches for queries of these tokens, heads and elements, and values of the last."""
    tokens, heads, head_dim, value_dim = sizes
    several = parts_of(config, tokens, heads, value_dim) > 1
    known = replace(config, parts=2 if several else 1)  # their number is an argument
    x = SHORT[dtype]
    yield PagedAttention(x, head_dim, value_dim, known, scoring.masked, scoring.cap > 0, several or lse)
    if several:
        yield CombinedParts(x, value_dim, lse)


def _attend(call: PagedCall, config: PagedConfig, lse: Tensor | None) -> Tensor:
    """Attend within each sequence; tokens of no sequence keep 0, and -inf in ``lse``."""
    tokens, heads, _ = call.q.shape
    value_dim = call.v.shape[-1]
    out = empty_like_heads(call.q, value_dim, call.most_queries).zero_()
    if not (call.most_queries and out.numel()):
        return out
    parts = parts_of(config, tokens, heads, value_dim)
    if parts == 1:
        _launch(call, out[None], None if lse is None else lse[None], config)
        return out.contiguous()
    of_parts = torch.empty((parts, tokens, heads, value_dim), dtype=torch.float32, device=out.device)
    lse_of_parts = torch.empty((parts, heads, tokens), dtype=torch.float32, device=out.device)
    _launch(call, of_parts, lse_of_parts, config)
    _combine(call, of_parts, lse_of_parts, out, lse)
    return out.contiguous()


def _launch(call: PagedCall, out: Tensor, lse: Tensor | None, config: PagedConfig) -> None:
    """Attend to each part of the keys; ``out`` and ``lse`` begin with the parts."""
    tokens, heads, head_dim = call.q.shape
    page, kv_heads, value_dim = call.v.shape[1:]
    sizes = tokens, heads, head_dim, value_dim
    instance = next(paged_instances(call.q.dtype, sizes, call.scoring, config, lse=lse is not None))
    assert isinstance(instance, PagedAttention)
    q = addressable(call.q, call.most_queries)
    k, v = (addressable_pages(cache) for cache in (call.k, call.v))
    parts, group = len(out), heads // kv_heads
    rows, columns = (call.most_queries, heads) if instance.masked else (call.most_queries * group, kv_heads)
    tiles = -(-rows // config.queries)
    starts, lengths = call.starts.contiguous(), call.lengths.contiguous()
    table = call.table if call.table.stride(-1) == 1 else call.table.contiguous()
    for first in range(0, len(lengths), MOST_WORKGROUPS):
        part = slice(first, first + MOST_WORKGROUPS)
        launch(
            instance,
            (tiles * parts, columns, len(lengths[part])),
            q,
            k,
            v,
            out,
            out if lse is None else lse,
            starts[first:],
            lengths[part],
            table[part],
            call.scoring.factor(head_dim),
            call.scoring.cap,
            call.most_queries,
            page,
            heads,
            group,
            parts,
            *(tensor.stride(-3) for tensor in (q, k, v, out)),
            *(tensor.stride(-2) for tensor in (q, k, v, out)),
            0 if lse is None else lse.stride(-2),
            k.stride(0),
            v.stride(0),
            table.stride(0),
            out.stride(0) if parts > 1 else 0,
            lse.stride(0) if lse is not None and parts > 1 else 0,
            *call.scoring.seen,
        )


def _combine(call: PagedCall, of_parts: Tensor, lse_of_parts: Tensor, out: Tensor, lse: Tensor | None) -> None:
    """Combine the parts of each query, in their order."""
    instance = CombinedParts(SHORT[out.dtype], out.shape[-1], lse is not None)
    blocks = -(-call.most_queries // instance.rows) * (out.shape[-1] // instance.columns)
    starts = call.starts.contiguous()
    for first in range(0, len(call.lengths), MOST_WORKGROUPS):
        launch(
            instance,
            (blocks, out.shape[1], min(len(call.lengths) - first, MOST_WORKGROUPS)),
            out,
            out if lse is None else lse,
            of_parts,
            lse_of_parts,
            starts[first:],
            len(of_parts),
            out.stride(0),
            out.stride(1),
            0 if lse is None else lse.stride(0),
            of_parts.stride(1),
            of_parts.stride(2),
            lse_of_parts.stride(1),
            of_parts.stride(0),
            lse_of_parts.stride(0),
        )


def addressable_pages(cache: Tensor) -> Tensor:
    """A cache of which a launch can address each page; copied where tokens, heads or pages lie too far apart."""
    if cache.numel() and (cache.shape[1] * cache.stride(1) * 2 > MOST_BYTES or max(cache.stride()) > MOST_BYTES):
        return cache.contiguous()
    return cache
