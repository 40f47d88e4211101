"""The attention function that transformers' registry calls for patched models, under the name ``opmux``.

It uses dense attention if nothing is padded, ragged attention if rows are padded, and paged attention if the cache is
opmux's own. What opmux's ops do not support (masks that are not a band, and dropout of the probabilities) is computed
by torch in `whole_mask_attention`.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import opmux
from opmux.errors import UnsupportedCall
from opmux_transformers.masks import bounds_in, in_both_directions, sees_all, segments
from opmux_transformers.paged_states import PagedStates

NAME = "opmux"
"""What a patched model's configuration calls its attention."""

NAMED = "_attn_implementation_internal"
"""The attribute of a configuration that names its attention."""

PASSED_OVER = frozenset(
    {
        "position_ids", "use_cache", "output_attentions", "output_hidden_states", "output_router_logits",
        "return_dict", "num_items_in_batch", "cache_position", "layer_idx", "logits_to_keep", "deterministic",
    }
)  # fmt: skip
"""Keywords that every attention function receives and that do not concern attention."""

TAKEN = frozenset(
    {
        "dropout", "scaling", "sliding_window", "softcap", "s_aux", "is_causal",
        "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k",
    }
)  # fmt: skip
"""Keywords that `opmux_attention` understands."""


def opmux_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor | PagedStates,
    value: Tensor | PagedStates,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend, as transformers' attention functions do.

    Args:
        module: The attention module that calls.
        query: ``(batch, heads, queries, head_dim)``.
        key: ``(batch, kv_heads, keys, head_dim)``, or what `PagedCache` gave.
        value: ``(batch, kv_heads, keys, value_dim)``, or what `PagedCache` gave.
        attention_mask: What `opmux_mask` returns, or a mask of the user's own with four dims.
        dropout: Fraction of the probabilities to drop.
        scaling: Factor on the scores.
        sliding_window: How many keys a query sees in each direction that it sees, including its own; None means all.
        softcap: Bound on the absolute value of the scores.
        s_aux: One sink for each head.
        is_causal: Whether a query sees no later key; None takes the module's attribute.

    Returns:
        The averaged values, ``(batch, queries, heads, value_dim)``, and None for the probabilities, which no op
        returns.
    """
    causal = bool(getattr(module, "is_causal", True)) if is_causal is None else bool(is_causal)
    if attention_mask is not None and in_both_directions(attention_mask):
        causal = False
        attention_mask = None if sees_all(attention_mask) else attention_mask
    left = -1 if sliding_window is None else sliding_window - 1
    options: dict[str, Any] = {
        "scale": scaling,
        "causal": causal,
        "window": (left, -1 if causal else left),
        "softcap": 0.0 if softcap is None else float(softcap),
    }
    bounds = None if attention_mask is None else bounds_in(attention_mask)
    if isinstance(key, PagedStates):
        assert isinstance(value, PagedStates)
        if attention_mask is None and dropout == 0.0:
            return key.attend(query, value, s_aux, options), None
        q = query.transpose(1, 2)
        if bounds is not None and dropout == 0.0:
            return _padded(q, key.in_rows(), value.in_rows(), bounds, s_aux, options, key.length()), None
        keys = None
        if attention_mask is not None and attention_mask.ndim == 4 and bounds is None:
            keys = attention_mask.shape[-1]
        key, value = (states.dense(keys) for states in (key, value))
    assert isinstance(value, Tensor)
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    if dropout == 0.0:
        if kwargs.get("cu_seq_lens_q") is not None and kwargs.get("cu_seq_lens_k") is not None:
            return _packed(q, k, v, s_aux, options, **kwargs), None
        if attention_mask is None:
            return opmux.attention(q, k, v, s_aux, **options), None
        if bounds is not None:
            return _padded(q, k, v, bounds, s_aux, options, k.shape[1]), None
    return whole_mask_attention(query, key, value, attention_mask, s_aux, dropout, options), None


def _padded(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, sinks: Tensor | None, options: Any, keys: int) -> Tensor:
    """Ragged attention over padded rows; the rows of ``k`` and ``v`` may be longer than ``keys``."""
    batch, queries = q.shape[:2]
    cu_q, cu_k = segments(bounds, queries, keys, k.shape[1])
    longest: dict[str, Any] = {"max_seqlen_q": queries, "max_seqlen_k": k.shape[1]}
    out = opmux.attention_varlen(
        q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), cu_q, cu_k, sinks, **longest, **options
    )
    return out.view(batch, queries, *out.shape[1:])


def _packed(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, options: Any, **kwargs: Any) -> Tensor:
    """Ragged attention over sequences that the caller packed into one row, with the caller's offsets."""
    out = opmux.attention_varlen(
        q.flatten(0, 1),
        k.flatten(0, 1),
        v.flatten(0, 1),
        kwargs["cu_seq_lens_q"].to(torch.int32),
        kwargs["cu_seq_lens_k"].to(torch.int32),
        sinks,
        max_seqlen_q=int(kwargs.get("max_length_q") or q.shape[1]),
        max_seqlen_k=int(kwargs.get("max_length_k") or k.shape[1]),
        **options,
    )
    return out.view(*q.shape[:2], *out.shape[1:])


def whole_mask_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    sinks: Tensor | None,
    dropout: float,
    options: dict[str, Any],
) -> Tensor:
    """Attention under any mask, computed by torch: the fallback of a patched model.

    Args:
        query: ``(batch, heads, queries, head_dim)``.
        key: ``(batch, kv_heads, keys, head_dim)``.
        value: ``(batch, kv_heads, keys, value_dim)``.
        mask: boolean (True counts) or added to the scores, broadcast over heads; bounds as `opmux_mask` gives them;
            None for the band that the options name.
        sinks: one for each head.
        dropout: share of the probabilities to drop.
        options: those of `opmux.attention`.

    Raises:
        UnsupportedCall: if the mask has another rank, or holds integers.
    """
    bounds = None if mask is None else bounds_in(mask)
    if bounds is not None:
        kept = torch.arange(key.shape[2], device=key.device)
        kept = (kept >= bounds[0].unsqueeze(1)) & (kept < bounds[1].unsqueeze(1))
        mask = kept[:, None, None, :] & band(query.shape[2], key.shape[2], options, query.device)
    elif mask is None:
        mask = band(query.shape[2], key.shape[2], options, query.device)[None, None]
    elif mask.ndim != 4:
        raise UnsupportedCall(
            "opmux_transformers: `attention_mask` expected four dims (batch, heads, queries, keys), got"
            f" {list(mask.shape)}; pass the model a mask (batch, keys), which transformers turns into the form that"
            " attention takes"
        )
    elif mask.dtype != torch.bool and not mask.is_floating_point():
        raise UnsupportedCall(
            "opmux_transformers: `attention_mask` of four dims expected bool (True counts) or floating numbers (added"
            f" to the scores), got {str(mask.dtype).removeprefix('torch.')}; call .bool() on it if 1 stands for what"
            " counts"
        )
    mask = mask[..., : key.shape[2]]
    if sinks is None and options["softcap"] == 0.0:
        out = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, scale=options["scale"], enable_gqa=True
        )
        return out.transpose(1, 2).contiguous()
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scale = query.shape[-1] ** -0.5 if options["scale"] is None else options["scale"]
    scores = (query @ key.mT).float() * scale
    if options["softcap"] > 0.0:
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    if sinks is not None:
        column = sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, column), dim=-1)
    weights = scores.softmax(-1)[..., : key.shape[2]].nan_to_num(0.0)  # a row that attends to nothing gives 0
    weights = functional.dropout(weights, dropout).to(value.dtype)
    return (weights @ value).transpose(1, 2).contiguous()


def band(queries: int, keys: int, options: dict[str, Any], device: torch.device) -> Tensor:
    """The boolean mask (queries, keys) of the options: causal and window, aligned bottom-right."""
    at = torch.arange(queries, device=device).unsqueeze(1) + (keys - queries)
    key = torch.arange(keys, device=device)
    left, right = options["window"]
    kept = torch.ones(queries, keys, dtype=torch.bool, device=device)
    if options["causal"]:
        kept &= key <= at
    if left >= 0:
        kept &= key >= at - left
    if right >= 0:
        kept &= key <= at + right
    return kept
