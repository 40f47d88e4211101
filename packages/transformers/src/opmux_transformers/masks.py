"""The mask that a patched model's attention gets: None, the bounds of the padding, or a full mask.

Registered with transformers as the mask function of the attention ``opmux``. It returns

- None if attention is causal, with the window that the layer names, and nothing is padded;
- in both directions (encoders), ``int32 (1, 1, 0, 1)`` if nothing is padded (`sees_all`): a user's mask has queries;
- ``int32 (2, batch, 1, 1)`` if sequences are padded on the left or right: the index of each sequence's first real key,
  and one past its last; in both directions ``int32 (1, 1, 2, batch)``. That becomes ragged attention. It has four dims
  because transformers treats such a tensor as a finished mask;
- the boolean mask ``(batch, 1, queries, keys)`` for everything else: custom and packed masks, static caches, padding on
  the right outside of training, padding under ``torch.compile`` (whose values a graph cannot read). There torch
  computes attention, not opmux.

Called without mask, positions and cache, transformers searches the positions for packed sequences: it waits for the
device, and under ``torch.compile`` it always makes a full mask. But the positions are then its own 0, 1, 2, ..., so a
patched model gets a mask whose strides tell that nothing is padded (`says_nothing`).
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import causal_mask_function, sdpa_mask

from opmux_transformers.foreign import mark

_MAKES_MASKS = ("input_ids", "attention_mask", "position_ids", "past_key_values", "inputs_embeds")
"""Parameters of the forward of a model that makes its layers' masks."""


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

    if attention_mask is not None and says_nothing(attention_mask):
        attention_mask = None
    if torch.compiler.is_compiling() and attention_mask is not None and attention_mask.shape[1] > kv_length + kv_offset:
        # opmux's paged cache: its length is unknown in a graph, but the mask has it
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

    def nothing_hidden() -> Tensor | None:
        if not both_ways:
            return None
        return torch.empty(1, 1, 0, 1, dtype=torch.int32, device=kwargs["device"])

    both_ways = allow_is_bidirectional_skip
    chunk = getattr(config, "attention_chunk_size", None)
    # of such a configuration, only the masks of chunked layers name a size; within the first chunk they are causal
    chunked = chunk is not None and kwargs.get("local_size") == chunk and kv_offset + kv_length > chunk
    if allow_is_causal_skip == allow_is_bidirectional_skip or chunked:  # a mask of the model's or the user's own
        return whole()
    if isinstance(q_offset, Tensor) or q_offset + q_length != kv_offset + kv_length:
        return whole()  # a static cache: keys past the last query exist
    if attention_mask is None:
        return nothing_hidden()
    if torch.compiler.is_compiling():
        return whole()
    kept = attention_mask[:, kv_offset : kv_offset + kv_length].bool()
    if kept.shape[1] == kv_length and bool(kept.all()):  # nothing is padded: read this once and remember it
        return nothing_hidden()
    if kept.shape[1] < kv_length:
        kept = torch.nn.functional.pad(kept, (0, kv_length - kept.shape[1]))
    found = bounds_of(kept)
    if found is None:
        return whole()
    padded, behind = torch.stack([found[1] - found[0] < kv_length, found[1] < kv_length]).any(1).tolist()
    if not padded:
        return nothing_hidden()
    if both_ways:
        return found[None, None]
    if behind and not torch.is_grad_enabled():
        return whole()  # queries after the last real key see those before it, and may be asked for a token
    return found[:, :, None, None]


def says_nothing(mask: Tensor) -> bool:
    """Whether a mask is one value expanded to many: every key counts, and no value needs to be read.

    The value is assumed to be True: a mask that hides every key from every query would leave nothing to compute.
    """
    seen_as_many = (size == 1 or stride == 0 for size, stride in zip(mask.shape, mask.stride(), strict=True))
    return mask.ndim == 2 and mask.numel() > 1 and all(seen_as_many)


def sees_all(mask: Tensor) -> bool:
    """Whether a finished mask is opmux's own for: every query sees every key, later ones too, and nothing is padded."""
    return mask.dtype == torch.int32 and mask.ndim == 4 and mask.shape[2] == 0


def makes_masks(module: nn.Module) -> bool:
    """Whether a module's forward has the parameters of a model that makes its layers' masks."""
    return all(name in inspect.signature(module.forward).parameters for name in _MAKES_MASKS)


def with_own_positions(module: nn.Module) -> Callable[..., Any]:
    """The forward of a model that makes masks; without one from the caller, it states that nothing is padded."""
    own = type(module).forward
    order = list(inspect.signature(own).parameters)[1:]

    @functools.wraps(own)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(order, args, strict=False)), **kwargs}
        if all(given.get(name) is None for name in ("attention_mask", "position_ids", "past_key_values")):
            ids, embeds = given.get("input_ids"), given.get("inputs_embeds")
            tokens = embeds[..., 0] if ids is None and embeds is not None else ids
            if isinstance(tokens, Tensor) and tokens.ndim == 2:
                given["attention_mask"] = torch.ones(1, 1, dtype=torch.bool, device=tokens.device).expand(tokens.shape)
                args, kwargs = (), given
        return own(self, *args, **kwargs)

    return mark(forward)


def bounds_in(mask: Tensor) -> Tensor | None:
    """The bounds ``int32 (2, batch)`` in a finished mask; None if it is another mask."""
    if mask.dtype != torch.int32 or mask.ndim != 4 or sees_all(mask):
        return None
    if in_both_directions(mask):
        return mask[0, 0]
    return mask[:, :, 0, 0] if mask.shape[0] == 2 and mask.shape[2:] == (1, 1) else None


def in_both_directions(mask: Tensor) -> bool:
    """Whether a finished mask lets queries see later keys, whatever their module says: bounds, or no mask at all."""
    return sees_all(mask) or (mask.dtype == torch.int32 and mask.ndim == 4 and mask.shape[:3] == (1, 1, 2))


def bounds_of(kept: Tensor) -> Tensor | None:
    """The bounds of what is kept in each row, ``int32 (2, batch)``; None if a row has holes."""
    count = kept.sum(1)
    start = kept.int().argmax(1)
    last = kept.shape[1] - kept.flip(1).int().argmax(1)
    if not bool(torch.where(count > 0, last - start == count, True).all()):
        return None
    end = torch.where(count > 0, last, start)
    return torch.stack((start, end)).to(torch.int32)


def segments(bounds: Tensor, queries: int, keys: int, row_of_keys: int) -> tuple[Tensor, Tensor]:
    """Offsets that cut padded rows into ragged sequences: the parts of each row before, within and after the bounds.

    Padding becomes separate sequences, so nothing needs to be packed. The queries of a row are the last positions of
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
