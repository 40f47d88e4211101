"""What the core calls for attention."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from opmux_cutile import launching
from opmux_cutile.attention.configs import AttentionConfig, ForwardConfig
from opmux_cutile.launching import TileKernel, launch
from opmux_cutile.parameters import Array, Constant, Parameter, Scalar
from opmux_cutile.tiles import power_of_two

MODULE = "opmux_cutile.attention.kernels"
OPEN = 1 << 29
"""Keys that a side without a bound sees: more than any sequence has."""
MOST_GRID = 65535
"""Blocks of a grid in its second and third dim."""
Maker = Callable[..., TileKernel]
"""Makes the kernel of an op, given its kind, config, dtype, sizes of heads, and what `kernel_of_tiles` has then."""


def attention(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, *, config: ForwardConfig, **scoring: Any
) -> Tensor:
    """The op `attention`."""
    return dense("attention", q, k, v, sinks, False, config, scoring)[0]


def attention_lse(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, *, config: ForwardConfig, **scoring: Any
) -> tuple[Tensor, Tensor]:
    """The op `attention_lse`."""
    return dense("attention_lse", q, k, v, sinks, True, config, scoring)


def attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, sinks: Tensor | None, *,
    max_seqlen_q: int, max_seqlen_k: int, config: ForwardConfig, **scoring: Any,
) -> Tensor:  # fmt: skip
    """The op `attention_varlen`."""
    offsets = cu_seqlens_q, cu_seqlens_k
    return ragged("attention_varlen", q, k, v, offsets, sinks, max_seqlen_q, False, config, scoring)[0]


def attention_varlen_lse(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, sinks: Tensor | None, *,
    max_seqlen_q: int, max_seqlen_k: int, config: ForwardConfig, **scoring: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The op `attention_varlen_lse`."""
    offsets = cu_seqlens_q, cu_seqlens_k
    return ragged("attention_varlen_lse", q, k, v, offsets, sinks, max_seqlen_q, True, config, scoring)


def kernel_of_tiles(
    op: str, name: str, config: AttentionConfig, dtype: str, head_dim: int, value_dim: int, *traits: Any
) -> TileKernel:
    """The kernel whose operands are loaded as tiles."""
    return _kernel(op, name, config, dtype, tile_columns(head_dim), tile_columns(value_dim), *traits)


def dense(
    op: str, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, wants_lse: bool, config: ForwardConfig,
    scoring: dict[str, Any], make: Maker = kernel_of_tiles,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention of sequences of equal lengths, and its lse, which is empty where nobody wants it."""
    batch, seq_q, heads, _ = q.shape
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    lse = q.new_empty((batch, heads, seq_q), dtype=torch.float32) if wants_lse else q.new_empty(0, dtype=torch.float32)
    tiles = config.tiles(-(-seq_q // config.block_m) * heads * batch, _plain(scoring, sinks, wants_lse))
    for first in range(0, batch if out.numel() else 0, MOST_GRID):
        q_part, k_part, v_part, out_part = (x[first : first + MOST_GRID] for x in (q, k, v, out))
        rows = lse[first : first + MOST_GRID] if wants_lse else out_part[..., 0]
        _launch(op, "dense", (q_part, k_part, v_part), (), sinks, out_part, rows, wants_lse, seq_q, len(q_part), tiles,
                scoring, make)  # fmt: skip
    return out, lse


def ragged(
    op: str, q: Tensor, k: Tensor, v: Tensor, offsets: tuple[Tensor, Tensor], sinks: Tensor | None, longest: int,
    wants_lse: bool, config: ForwardConfig, scoring: dict[str, Any], make: Maker = kernel_of_tiles,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention of sequences one after the other, and its lse, which is empty where nobody wants it."""
    tokens, heads, _ = q.shape
    out = q.new_zeros((*q.shape[:-1], v.shape[-1]))  # of tokens past the last sequence
    size = (heads, tokens) if wants_lse else (0,)
    lse = q.new_full(size, -float("inf"), dtype=torch.float32)
    batch = len(offsets[0]) - 1
    if out.numel() and longest:
        rows = lse[None] if wants_lse else out[None, ..., 0]
        starts = tuple(offset.contiguous() for offset in offsets)
        tiles = config.tiles(-(-longest // config.block_m) * heads * batch, _plain(scoring, sinks, wants_lse))
        for first in range(0, batch, MOST_GRID):
            part = tuple(s[first : first + MOST_GRID + 1] for s in starts)
            _launch(op, "ragged", (q[None], k[None], v[None]), part, sinks, out[None], rows, wants_lse, longest,
                    len(part[0]) - 1, tiles, scoring, make)  # fmt: skip
    return out, lse


def _plain(scoring: dict[str, Any], sinks: Tensor | None, wants_lse: bool) -> bool:
    return not wants_lse and sinks is None and scoring["softcap"] <= 0.0 and scoring["window"][0] < 0


def _launch(
    op: str, name: str, given: tuple[Tensor, ...], offsets: tuple[Tensor, ...], sinks: Tensor | None, out: Tensor,
    lse: Tensor, wants_lse: bool, queries: int, sequences: int, tiles: Sequence[AttentionConfig],
    scoring: dict[str, Any], make: Maker,
) -> None:  # fmt: skip
    """Launch the kernel in the first of some tiles; those in the others are what calls like it launch."""
    q, k, v = map(apart, given)
    left, right = scoring["window"]
    right = 0 if scoring["causal"] else right
    cap = scoring["softcap"]
    scale = q.shape[-1] ** -0.5 if scoring["scale"] is None else scoring["scale"]
    heads = q.shape[2]
    traits = cap > 0.0, left >= 0 or right >= 0, left >= 0, None if sinks is None else _name(sinks), wants_lse
    kernel = make(op, name, tiles[0], _name(q), q.shape[-1], v.shape[-1], *traits)
    if (others := launching.others()) is not None:
        others += [make(op, name, tile, _name(q), q.shape[-1], v.shape[-1], *traits) for tile in tiles[1:]]
    grid = -(-queries // tiles[0].block_m), heads, sequences
    logits = lse.as_strided((1,), (1,)) if sinks is None else sinks
    bounds = (OPEN if left < 0 else min(left, OPEN)), (OPEN if right < 0 else min(right, OPEN))
    launch(kernel, grid, q, k, v, *offsets, logits, out, lse, scale, cap or 1.0, *bounds, heads // k.shape[2])


def packed_where_single(x: Tensor) -> Tensor:
    """A tensor whose dims of one element have the stride of a packed one: their own may be anything."""
    steps = list(x.stride())
    packed = 1
    for dim in reversed(range(x.dim())):
        steps[dim] = packed if x.shape[dim] == 1 else steps[dim]
        packed = max(packed, steps[dim] * x.shape[dim])
    return x if tuple(steps) == x.stride() else x.as_strided(x.shape, steps)


def apart(x: Tensor) -> Tensor:
    """Heads that do not overlap, copied where they do; a dim of one element gets the stride of a packed one."""
    overlap = any(step == 0 and size > 1 for step, size in zip(x.stride(), x.shape, strict=True))
    return packed_where_single(x.contiguous() if overlap else x)


def tile_of(x: Tensor) -> int:
    """Columns of the tile for a tensor's heads: a step of the matrix units at least."""
    return tile_columns(x.shape[-1])


def tile_columns(dim: int) -> int:
    """Columns of the tile for heads of a size."""
    return max(power_of_two(dim), 16)


def _name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


@lru_cache(maxsize=1024)
def _kernel(
    op: str, name: str, config: AttentionConfig, dtype: str, dim: int, width: int, capped: bool, banded: bool,
    windowed: bool, sinks: str | None, wants_lse: bool,
) -> TileKernel:  # fmt: skip
    """The kernel for heads up to a size. Without an lse, its place is taken by a tensor that is not written."""
    heads = Array(dtype, (None,) * 4, (None, None, None, 1), True)
    offsets = [Array("int32", (None,), (1,), False)] * (2 if name == "ragged" else 0)
    logits = Array(sinks or "float32", (None,), (1,), False)
    lse = Array("float32", (None,) * 3, (None,) * 3, False)
    numbers = [Scalar("float32")] * 2 + [Scalar("int32")] * 3
    sizes = (config.block_m, config.block_n, dim, width, capped, banded, windowed, sinks is not None, wants_lse)
    parameters: tuple[Parameter, ...] = (
        heads, heads, heads, *offsets, logits, heads, lse, *numbers, *map(Constant, sizes),
    )  # fmt: skip
    return TileKernel(op, MODULE, name, parameters, config.hints)
