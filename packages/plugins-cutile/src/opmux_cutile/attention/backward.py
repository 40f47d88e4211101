"""What the core calls for the gradients of attention."""

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from opmux_cutile.attention.backward_configs import AttentionBackwardConfig
from opmux_cutile.attention.configs import AttentionConfig
from opmux_cutile.attention.targets import MOST_GRID, OPEN, apart, tile_of
from opmux_cutile.launching import TileKernel, launch
from opmux_cutile.parameters import Array, Constant, Parameter, Scalar

MODULE = "opmux_cutile.attention.backward_kernels"
ELEMENTS = 4096
"""Of a tile of the kernel that computes statistics."""


class Part(NamedTuple):
    """Sequences of a launch: tensors with a first dim of batch, which in a ragged batch is 1, and the grids' sizes.

    Attributes:
        results: the gradients of q, k and v, or what stands for those that are not wanted.
        starts: where the sequences begin and end in q and in k; none where they are of equal lengths.
        sequences, longest_q, longest_k: how many there are, and the most queries and keys of one.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor
    base: Tensor
    shift: Tensor
    results: tuple[Tensor, ...]
    starts: tuple[Tensor, ...]
    sequences: int
    longest_q: int
    longest_k: int


def attention_backward(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, sinks: Tensor | None,
    grad_lse: Tensor | None, *, output_mask: tuple[bool, ...], config: AttentionBackwardConfig, **scoring: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The op `attention_backward`."""
    op = "attention_backward"
    wanted = output_mask[:3]
    of_sinks = sinks if output_mask[3] else None
    base, shift, grad_sinks = _statistics(op, grad_out, out, lse, grad_lse, of_sinks, None)
    # Where one side has no tokens, the other's gradients are sums of nothing.
    make = torch.empty_like if q.numel() and k.numel() else torch.zeros_like
    made = [_like(x, make) if want else x.new_empty(0) for x, want in zip((q, k, v), wanted, strict=True)]
    if q.numel() and k.numel():
        given = (q, k, v, grad_out, base, shift, *_results(made, (q, k, v), wanted, config.apart))
        for first in range(0, len(q), MOST_GRID):
            a, b, c, grad, low, moved, *results = (x[first : first + MOST_GRID] for x in given)
            part = Part(a, b, c, grad, low, moved, tuple(results), (), len(a), q.shape[1], k.shape[1])
            _run(op, part, wanted, config, scoring)
    return made[0], made[1], made[2], grad_sinks if grad_sinks is not None else _no_sinks(sinks, q)


def attention_varlen_backward(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor, sinks: Tensor | None, grad_lse: Tensor | None, *, max_seqlen_q: int, max_seqlen_k: int,
    output_mask: tuple[bool, ...], config: AttentionBackwardConfig, **scoring: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The op `attention_varlen_backward`. Gradients of tokens past the last sequence are 0."""
    op = "attention_varlen_backward"
    wanted = output_mask[:3]
    starts = cu_seqlens_q.contiguous(), cu_seqlens_k.contiguous()
    of_sinks = sinks if output_mask[3] else None
    base, shift, grad_sinks = _statistics(
        op, grad_out[None], out[None], lse[None], None if grad_lse is None else grad_lse[None], of_sinks, starts[0]
    )
    made = [_like(x, torch.zeros_like) if want else x.new_empty(0) for x, want in zip((q, k, v), wanted, strict=True)]
    if q.numel() and k.numel() and max_seqlen_q and max_seqlen_k:
        results = tuple(x[None] for x in _results(made, (q, k, v), wanted, config.apart))
        for first in range(0, len(starts[0]) - 1, MOST_GRID):
            of_part = tuple(s[first : first + MOST_GRID + 1] for s in starts)
            part = Part(q[None], k[None], v[None], grad_out[None], base, shift, results, of_part, len(of_part[0]) - 1,
                        max_seqlen_q, max_seqlen_k)  # fmt: skip
            _run(op, part, wanted, config, scoring)
    return made[0], made[1], made[2], grad_sinks if grad_sinks is not None else _no_sinks(sinks, q)


def _like(x: Tensor, make: Any) -> Tensor:
    found: Tensor = make(x, memory_format=torch.contiguous_format)
    return found


def _results(made: list[Tensor], given: tuple[Tensor, ...], wanted: tuple[bool, ...], apart: bool) -> list[Tensor]:
    """What kernels write to; in the place of what is not wanted something that they leave alone.

    Gradients of keys and values that are computed together are so even if only one is wanted, by the same kernel.
    """
    together = not apart and (wanted[1] or wanted[2])
    room = (False, together, together)
    return [
        m if want else torch.empty_like(x, memory_format=torch.contiguous_format) if needed else x
        for m, x, want, needed in zip(made, given, wanted, room, strict=True)
    ]


def _no_sinks(sinks: Tensor | None, q: Tensor) -> Tensor:
    return (q if sinks is None else sinks).new_empty(0)


def _statistics(
    op: str, grad: Tensor, out: Tensor, lse: Tensor, grad_lse: Tensor | None, sinks: Tensor | None,
    starts: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """The lse to the base 2 and the shift of each query, ``(batch, heads, queries)``, and the gradient of the sinks."""
    batch, queries, heads, _ = grad.shape
    base, shift = (grad.new_empty((batch, heads, queries), dtype=torch.float32) for _ in range(2))
    width = tile_of(out)
    rows = max(16, min(64, ELEMENTS // width))
    blocks = -(-queries // rows)
    parts = grad.new_empty((heads, batch, blocks) if sinks is not None else (1, 1, 1), dtype=torch.float32)
    if out.numel():
        logits = lse.as_strided((1,), (1,)) if sinks is None else sinks
        numbers = base.as_strided((1,), (1,)) if starts is None else starts
        kernel = _statistics_kernel(
            op, rows, width, _name(grad), None if sinks is None else _name(sinks), grad_lse is not None,
            starts is not None,
        )  # fmt: skip
        count = 0 if starts is None else len(starts) - 1
        for first in range(0, batch, MOST_GRID):
            cut = slice(first, first + MOST_GRID)
            of_lse = (base if grad_lse is None else grad_lse)[cut]
            launch(kernel, (blocks, heads, len(grad[cut])), apart(grad[cut]), apart(out[cut]), lse[cut], of_lse, logits,
                   numbers, base[cut], shift[cut], parts[:, cut] if sinks is not None else parts, count)  # fmt: skip
    return base, shift, None if sinks is None else parts.sum((1, 2)).to(sinks.dtype)


def _run(
    op: str, part: Part, wanted: tuple[bool, ...], config: AttentionBackwardConfig, scoring: dict[str, Any]
) -> None:
    """Launch the kernels of the gradients that are wanted."""
    q, k, v, grad = map(apart, part[:4])
    left, right = scoring["window"]
    right = 0 if scoring["causal"] else right
    cap = scoring["softcap"]
    scale = q.shape[-1] ** -0.5 if scoring["scale"] is None else scoring["scale"]
    banded = left >= 0 or right >= 0
    bounds = (OPEN if left < 0 else min(left, OPEN)), (OPEN if right < 0 else min(right, OPEN))
    heads, kv_heads = q.shape[2], k.shape[2]
    numbers = scale, cap or 1.0, *bounds, heads // kv_heads
    kind = "ragged" if part.starts else "dense"
    tiles = tile_of(q), tile_of(v)
    tiles = (max(*tiles, config.columns),) * 2 if config.columns else tiles
    # Where registers are scarce, with wide heads or capped scores, tiles of two widths need local memory, of one none.
    of_both = (max(tiles),) * 2 if config.apart or cap > 0.0 else tiles
    of_keys = config.of_keys_capped if cap > 0.0 else config.of_keys
    whole, masked = config.whole_keys and cap <= 0.0, banded or config.masked
    either = wanted[1] or wanted[2]
    for which in ((wanted[1], False), (False, wanted[2])) if config.apart else ((either, either),):
        if any(which):
            kernel = _kernel(op, f"keys_{kind}", of_keys, _name(q), *of_both, cap > 0.0, masked, (whole, *which))
            grid = -(-part.longest_k // of_keys.block_n), kv_heads, part.sequences
            launch(kernel, grid, q, k, v, grad, part.base, part.shift, *part.results[1:], *part.starts, *numbers)
    if wanted[0]:
        kernel = _kernel(
            op, f"queries_{kind}", config.of_queries, _name(q), *tiles, cap > 0.0, banded, (config.whole_queries,)
        )
        grid = -(-part.longest_q // config.of_queries.block_m), heads, part.sequences
        launch(kernel, grid, q, k, v, grad, part.base, part.shift, part.results[0], *part.starts, *numbers)


def _name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


@lru_cache(maxsize=1024)
def _statistics_kernel(
    op: str, rows: int, width: int, dtype: str, sinks: str | None, grad_lse: bool, ragged: bool
) -> TileKernel:
    heads = Array(dtype, (None,) * 4, (None, None, None, 1), True)
    numbers = Array("float32", (None,) * 3, (None,) * 3, False)
    logits = Array(sinks or "float32", (None,), (1,), False)
    starts = Array("int32" if ragged else "float32", (None,), (1,), False)
    sizes = (rows, width, grad_lse, sinks is not None, ragged)
    parameters: tuple[Parameter, ...] = (
        heads, heads, numbers, numbers, logits, starts, numbers, numbers, numbers, Scalar("int32"),
        *map(Constant, sizes),
    )  # fmt: skip
    return TileKernel(op, MODULE, "statistics", parameters)


@lru_cache(maxsize=1024)
def _kernel(
    op: str, name: str, config: AttentionConfig, dtype: str, dim: int, width: int, capped: bool, banded: bool,
    flags: tuple[bool, ...],
) -> TileKernel:  # fmt: skip
    """A kernel for heads up to a size: of keys and values, or of queries, with flags of its own."""
    heads = Array(dtype, (None,) * 4, (None, None, None, 1), True)
    statistic = Array("float32", (None,) * 3, (None, None, 1), False)
    starts = [Array("int32", (None,), (1,), False)] * (2 if name.endswith("ragged") else 0)
    numbers = [Scalar("float32")] * 2 + [Scalar("int32")] * 3
    results = [heads] * (2 if name.startswith("keys") else 1)
    sizes = (config.block_m, config.block_n, dim, width, capped, banded, *flags)
    parameters: tuple[Parameter, ...] = (
        heads, heads, heads, heads, statistic, statistic, *results, *starts, *numbers, *map(Constant, sizes),
    )  # fmt: skip
    return TileKernel(op, MODULE, name, parameters, config.hints)
