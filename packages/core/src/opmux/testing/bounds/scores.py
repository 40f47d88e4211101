"""Attention written out in float64 for the derivation of bounds: all scores, no blocks, no running sums."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from opmux.testing.bounds.exponentials import exponential_errors, softmax_errors

SCORES_AT_A_TIME = 1 << 24


@dataclass(frozen=True)
class Scores:
    """The scores of some query heads of one batch entry, ``(heads, seq_q, seq_k)`` unless stated otherwise.

    Attributes:
        q, k, v: ``(heads, seq, dim)``, keys and values repeated for the query heads that share them.
        p: the probabilities, 0 where masked out.
        p_error: the error of each probability, in unit roundoffs, that of the row's lse included unless it is given.
        lse_error: the error of each lse, in unit roundoffs, ``(heads, seq_q, 1)``; 0 if it is given.
        slope: the derivative of the cap; 1 without one.
        slope_error: its roundings.
        lse: ``(heads, seq_q, 1)``; 0 for -inf.
        sink_p: the probability of the sink, ``(heads, seq_q, 1)``.
        scale: the factor on the scores.
        alike: how often each key is among the keys, ``(seq_k,)``; 1 where each has a place of its own.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    p: Tensor
    p_error: Tensor
    lse_error: Tensor
    slope: Tensor | float
    slope_error: Tensor | float
    lse: Tensor
    sink_p: Tensor | float
    scale: float
    alike: Tensor

    @classmethod
    def of(
        cls,
        tensors: Mapping[str, Any],
        options: Mapping[str, Any],
        batch: int,
        heads: slice,
        saved: bool = False,
        unit: float = 2.0**-24,
        smallest: float = torch.finfo(torch.float32).tiny,
    ) -> "Scores":
        """Score the queries of these heads; ``saved`` takes the lse from the tensors, as a backward does.

        ``unit`` and ``smallest`` are the unit roundoff and the smallest normal number of the accumulation dtype.
        """
        groups = tensors["q"].shape[2] // tensors["k"].shape[2]
        one = attended(tensors, batch, heads, groups)
        q, k, v = one["q"], one["k"], one["v"]
        scale = 1 / math.sqrt(max(1, q.shape[-1])) if options["scale"] is None else options["scale"]
        s = scale * (q @ k.mT)
        # One rounding for each term of the product, plus those of the scale and of the conversion to base 2.
        error = (4 + math.sqrt(q.shape[-1])) * abs(scale) * (q.abs() @ k.abs().mT) + 4 * s.abs()
        slope: Tensor | float = 1.0
        slope_error: Tensor | float = 0.0
        cap = options["softcap"]
        if cap > 0:
            s = cap * torch.tanh(s / cap)
            slope = 1 - (s / cap).square()
            slope_error = 2 * s.abs() / cap**2 * (error * slope + 4 * s.abs()) + 4
            error = error * slope + 4 * s.abs()
        allowed = _allowed(s.shape[-2], s.shape[-1], options["causal"], options["window"], s.device)
        masked = s.masked_fill(~allowed, -math.inf)
        sinks = None if one["sinks"] is None else one["sinks"].expand(-1, s.shape[-2], 1)
        joined = masked if sinks is None else torch.cat((masked, sinks), -1)
        lse = one["lse"] if saved else torch.logsumexp(joined, -1, keepdim=True)
        lse = torch.where(lse == -math.inf, 0.0, lse)
        # What the argument of the exponential is off by: the score, the difference, the conversion to base 2.
        error = (error + 2 * (s - lse).abs() + 4).masked_fill(~allowed, 0.0) * unit
        if saved:
            p_error, lse_error = exponential_errors(masked - lse, error, smallest), torch.zeros_like(lse)
        else:
            if sinks is not None:
                of_sinks = (2 * (sinks.abs() + (sinks - lse).abs()) + 4) * unit
                error = torch.cat((error, of_sinks.nan_to_num(0.0, 0.0, 0.0)), -1)
            p_error, lse_error = softmax_errors(joined - lse, error, smallest)
        return cls(
            q,
            k,
            v,
            torch.exp(masked - lse),
            p_error[..., : s.shape[-1]] / unit,
            lse_error / unit,
            slope,
            slope_error,
            lse,
            0.0 if sinks is None else torch.exp(sinks - lse),
            abs(scale),
            one["alike"],
        )


def _allowed(queries: int, keys: int, causal: bool, window: tuple[int, int], device: torch.device) -> Tensor:
    """Which keys each query attends to: aligned bottom-right."""
    position = torch.arange(queries, device=device).unsqueeze(1) + keys - queries
    key = torch.arange(keys, device=device)
    allowed = torch.ones((queries, keys), dtype=torch.bool, device=device)
    if causal:
        allowed &= key <= position
    if window[0] != -1:
        allowed &= key >= position - window[0]
    if window[1] != -1:
        allowed &= key <= position + window[1]
    return allowed


def per_head(q: Tensor, k: Tensor) -> Iterator[tuple[int, slice]]:
    """Batch entries and slices of query heads (whole groups), so that the scores of each slice fit in memory."""
    batch, seq, heads, _ = q.shape
    groups = heads // max(1, k.shape[2])
    fitting = max(1, SCORES_AT_A_TIME // max(1, seq * k.shape[1] * groups)) * groups
    for entry in range(batch):
        for start in range(0, heads, fitting):
            yield entry, slice(start, min(start + fitting, heads))


def attended(tensors: Mapping[str, Any], batch: int, heads: slice, groups: int) -> dict[str, Any]:
    """The tensors of these heads as ``(heads, seq, dim)``; per-row tensors and sinks have a last dim of one."""
    shared = slice(heads.start // groups, -(-heads.stop // groups))
    found: dict[str, Any] = {}
    for name in ("q", "out", "grad_out"):
        if name in tensors:
            found[name] = tensors[name][batch][:, heads].transpose(0, 1)
    for name in ("k", "v"):
        found[name] = tensors[name][batch][:, shared].repeat_interleave(groups, 1).transpose(0, 1)
    for name in ("lse", "grad_lse"):
        value = tensors.get(name)
        found[name] = found["q"].new_zeros(()) if value is None else value[batch][heads].unsqueeze(-1)
    sinks = tensors.get("sinks")
    found["sinks"] = None if sinks is None else sinks[heads].reshape(-1, 1, 1)
    found["alike"] = tensors.get("alike", found["k"].new_ones(found["k"].shape[-2]))
    return found


def by_sequence(tensors: Mapping[str, Any]) -> Iterator[tuple[slice, slice, dict[str, Any]]]:
    """The sequences of a ragged or paged batch: tokens of q, tokens of k, and the tensors as a dense batch of one."""
    starts = tensors["cu_seqlens_q"].tolist()
    paged = "block_table" in tensors
    starts_k = starts if paged else tensors["cu_seqlens_k"].tolist()
    for place, (of_q, of_k) in enumerate(zip(pairwise(starts), pairwise(starts_k), strict=True)):
        queries, keys = slice(*of_q), slice(*of_k)
        one = {name: tensors.get(name) for name in ("sinks",)}
        for name in ("q", "out", "grad_out"):
            if name in tensors:
                one[name] = tensors[name][None, queries]
        for name in ("lse", "grad_lse"):
            if tensors.get(name) is not None:
                one[name] = tensors[name][None, :, queries]
        for name in ("k", "v"):
            one[name] = tensors[name][None, keys] if not paged else None
        if paged:
            one |= _cached(tensors, place)
        yield queries, keys, one


def _cached(tensors: Mapping[str, Any], place: int) -> dict[str, Tensor]:
    """A sequence's keys and values, gathered from its pages, and how often each key is among them."""
    length, size = int(tensors["seq_lens"][place]), tensors["k_cache"].shape[1]
    pages = tensors["block_table"][place, : -(-length // size)].to(torch.int64)
    found = {n: tensors[f"{n}_cache"].index_select(0, pages).flatten(0, 1)[None, :length] for n in ("k", "v")}
    _, page, uses = pages.unique(return_inverse=True, return_counts=True)
    found["alike"] = uses[page].repeat_interleave(size)[:length].to(found["k"].dtype)
    return found
