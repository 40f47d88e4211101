"""What the core calls for an op of heads."""

import torch
from torch import Tensor

from opmux_asm.dtypes import short
from opmux_asm.kernels import cache, rope
from opmux_asm.launching import launch


def apply_rope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, *, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """The op `apply_rope`."""
    q_out, k_out = torch.empty_like(q), torch.empty_like(k)
    _rotate(q, k, q_out, k_out, cos, sin, positions, interleaved)
    return q_out, k_out


def apply_rope_(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, *, interleaved: bool) -> None:
    """The op `apply_rope_`; a thread has read its pairs when it overwrites them."""
    _rotate(q, k, q, k, cos, sin, positions, interleaved)


def _rotate(
    q: Tensor, k: Tensor, q_out: Tensor, k_out: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None,
    interleaved: bool,
) -> None:  # fmt: skip
    seq, head_dim = q.shape[-3], q.shape[-1]
    batch = q.shape[:-3].numel()
    if not seq * batch:
        return
    name = rope.name_of(short(q), head_dim // 2, interleaved)
    accesses = 1 if interleaved else 2
    sizes = [t.shape[-2] * head_dim * t.element_size() for t in (q, k)]
    steps = [max(1, -(-size // (16 * accesses * rope.THREADS))) for size in sizes]
    where = None if positions is None else positions.contiguous()
    launch(
        rope.FAMILY, name, (seq, batch, 1), q, k, cos, sin, where, q_out, k_out, seq, *sizes, *steps,
        0 if where is None else where.element_size(),
    )  # fmt: skip


def write_kv_cache(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor, k_scale: Tensor | None = None,
    v_scale: Tensor | None = None, *, layout: str,
) -> None:  # fmt: skip
    """The op `write_kv_cache`."""
    slots = slot_mapping.contiguous()
    for given, kept in ((k, k_cache), (v, v_cache)):
        tokens, heads, head_dim = given.shape
        if not tokens * heads:
            continue
        size, (pages, page_size) = given.element_size(), kept.shape[:2]
        chunks = head_dim * size // 16
        launch(
            cache.FAMILY, cache.NAME, (tokens, 1, 1), given, kept, slots, *(s * size for s in given.stride()[:2]),
            *(s * size for s in kept.stride()[:3]), pages * page_size, heads, page_size.bit_length() - 1,
            chunks.bit_length() - 1, -(-heads * chunks // cache.THREADS),
        )  # fmt: skip
