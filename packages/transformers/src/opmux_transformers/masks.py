"""The mask that a patched model's attention gets: None, the bounds of the padding, or a whole mask.

Registered with transformers as the mask function of the attention ``opmux``. It returns

- None where attention is causal, with the window that the layer names, and nothing is padded;
- ``int32 (2, batch)`` where sequences are padded on the left or right: the first key of each that counts, and the one
  after the last. That becomes ragged attention;
- the boolean mask ``(batch, 1, queries, keys)`` for everything else: custom and packed masks, static caches, padding
  under ``torch.compile`` (whose values a graph cannot look at). There attention is computed by torch, not by opmux.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import causal_mask_function, sdpa_mask


def opmux_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Any = causal_mask_function,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    config: Any = None,
    **kwargs: Any,
) -> Tensor | None:
    """Make the mask of a forward; the arguments are those of transformers' mask functions."""

    if torch.compiler.is_compiling() and attention_mask is not None and attention_mask.shape[1] > kv_length + kv_offset:
        # opmux's paged cache, whose length a graph does not know: the mask knows it
        q_offset, kv_length, kv_offset = attention_mask.shape[1] - q_length, attention_mask.shape[1], 0

    def whole() -> Tensor | None:
        mask: Tensor | None = sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            allow_is_causal_skip=False,
            allow_is_bidirectional_skip=False,
            **kwargs,
        )
        return mask

    chunked = getattr(config, "attention_chunk_size", None) is not None
    if not allow_is_causal_skip or allow_is_bidirectional_skip or chunked:
        return whole()
    if isinstance(q_offset, Tensor) or q_offset + q_length != kv_offset + kv_length:
        return whole()  # a static cache: keys past the last query exist
    if attention_mask is None:
        return None
    if torch.compiler.is_compiling():
        return whole()
    kept = attention_mask[:, kv_offset : kv_offset + kv_length].bool()
    if kept.shape[1] < kv_length:
        kept = torch.nn.functional.pad(kept, (0, kv_length - kept.shape[1]))
    found = bounds_of(kept)
    if found is None:
        return whole()
    return found if bool((found[1] - found[0] < kv_length).any()) else None


def bounds_of(kept: Tensor) -> Tensor | None:
    """The bounds of what is kept in each row, ``int32 (2, batch)``; None where a row has holes in between."""
    count = kept.sum(1)
    start = kept.int().argmax(1)
    last = kept.shape[1] - kept.flip(1).int().argmax(1)
    if not bool(torch.where(count > 0, last - start == count, True).all()):
        return None
    end = torch.where(count > 0, last, start)
    return torch.stack((start, end)).to(torch.int32)


def segments(bounds: Tensor, queries: int, keys: int, row_of_keys: int) -> tuple[Tensor, Tensor]:
    """Offsets that cut padded rows into ragged sequences: in each row what lies before, in and after the bounds.

    Padding becomes sequences of its own, so nothing needs to be packed. The queries of a row are the last positions of
    its keys.

    Args:
        bounds: ``int32 (2, batch)``, counted in keys.
        queries: queries of a row.
        keys: keys of a row.
        row_of_keys: keys that a row takes up in memory, ``keys`` or more.

    Returns:
        ``cu_seqlens_q`` and ``cu_seqlens_k``, ``int32 (3 * batch + 1,)``.
    """
    past = keys - queries

    def offsets(inner: Tensor, row: int) -> Tensor:
        rows = torch.arange(bounds.shape[1], device=bounds.device, dtype=torch.int32) * row
        starts = torch.stack((rows, rows + inner[0], rows + inner[1]), dim=1).flatten()
        return torch.nn.functional.pad(starts, (0, 1), value=bounds.shape[1] * row)

    return offsets((bounds - past).clamp(0, queries), queries), offsets(bounds, row_of_keys)
