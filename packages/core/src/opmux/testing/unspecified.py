"""Results that a declared caveat leaves unspecified, element by element.

`Caveat.MASKED_NONFINITE` leaves whole elements open. A (query, key) pair that is masked out has weight 0; if one side
of it holds a NaN or an infinity, an implementation that multiplies by that weight gives NaN. This leaves open:

- the results of a query that masks out a key or value that is not finite;
- the gradients of such a key;
- the gradients of a key that is masked out for a query whose q or grad_out is not finite.

Everything else is compared: a query that attends to the value must show it, and one of another sequence or kv head must
not. `Caveat.NONFINITE_KIND` leaves open which of NaN and the infinities an element is.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from opmux.callpath.op import Op
from opmux.declared.caveats import Caveat
from opmux.declared.implementation import Implementation
from opmux.testing.making import Arguments

OF_KEYS = ("grad_k", "grad_v")
OF_QUERIES = ("out", "lse", "grad_q")


def unspecified_results(
    op: Op, arguments: Arguments, implementation: Implementation | None
) -> tuple[Tensor | None, ...]:
    """For each output, which elements an implementation's caveats leave open: a mask that broadcasts, or None."""
    names = [o.name for o in op.signature.outputs]
    if implementation is None or Caveat.MASKED_NONFINITE not in implementation.caveats:
        return (None,) * len(names)
    queries, keys = _touched(arguments)
    masks = dict.fromkeys(OF_QUERIES, queries.unsqueeze(-1)) | dict.fromkeys(OF_KEYS, keys.unsqueeze(-1))
    masks["lse"] = queries.mT
    return tuple(masks.get(name) for name in names)


def kinds_are_open(implementation: Implementation | None) -> bool:
    """Whether an implementation's caveats leave open which of NaN and the infinities a result is."""
    return implementation is not None and Caveat.NONFINITE_KIND in implementation.caveats


def _touched(arguments: Arguments) -> tuple[Tensor, Tensor]:
    """The queries, ``(..., tokens_q, heads)``, and keys, ``(..., tokens_k, kv_heads)``, with an open result."""
    tensors, options = arguments.tensors, arguments.options
    bad_keys = _nonfinite(tensors, ("k", "v"))
    by_head = _nonfinite(tensors, ("q", "grad_out"))
    groups = by_head.shape[-1] // bad_keys.shape[-1]
    bad_queries = by_head.unflatten(-1, (-1, groups)).any(-1)
    queries, keys = torch.zeros_like(bad_queries), torch.zeros_like(bad_keys)
    for of_q, of_k in _sequences(tensors):
        bad_q, bad_k = bad_queries[of_q], bad_keys[of_k]
        masked = _masked_out(bad_q.shape[0], bad_k.shape[0], options["causal"], options["window"], bad_q.device)
        # (queries, keys, kv heads): the pairs that are masked out, with something that is not finite
        by_key, by_query = masked.unsqueeze(-1) & bad_k, masked.unsqueeze(-1) & bad_q.unsqueeze(1)
        queries[of_q] = by_key.any(1)
        keys[of_k] = (by_key | by_query).any(0)
    return queries.repeat_interleave(groups, -1), keys


def _masked_out(queries: int, keys: int, causal: bool, window: tuple[int, int], device: torch.device) -> Tensor:
    """Which (query, key) pairs of a sequence the mask hides; positions are counted from the last key."""
    position = torch.arange(queries, device=device).unsqueeze(1) + keys - queries
    key = torch.arange(keys, device=device)
    left, right = window[0], 0 if causal else window[1]
    masked = torch.zeros(queries, keys, dtype=torch.bool, device=device)
    if left != -1:
        masked |= key < position - left
    if right != -1:
        masked |= key > position + right
    return masked


def _nonfinite(tensors: Mapping[str, Any], names: tuple[str, ...]) -> Tensor:
    """Whether some of these tensors holds a NaN or infinity, for each token and head."""
    given = [tensors[name] for name in names if tensors.get(name) is not None]
    return torch.stack([~tensor.isfinite().all(-1) for tensor in given]).any(0)


def _sequences(tensors: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """The index of each sequence's tokens in q and in k."""
    starts_q, starts_k = tensors.get("cu_seqlens_q"), tensors.get("cu_seqlens_k")
    if starts_q is None or starts_k is None:
        yield from ((b, b) for b in range(tensors["q"].shape[0]))
        return
    pairs = zip(pairwise(starts_q.tolist()), pairwise(starts_k.tolist()), strict=True)
    yield from ((slice(*of_q), slice(*of_k)) for of_q, of_k in pairs)
