"""What the core calls for attention's backward: makes the results that are wanted, and launches."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from opmux_triton.arithmetic import padded
from opmux_triton.attention.backward import kernels
from opmux_triton.attention.backward.configs import BackwardConfig, TileConfig
from opmux_triton.attention.backward.shares import Parts, add_parts, parts_for, shares_for
from opmux_triton.devices import units
from opmux_triton.interpreter import INTERPRETED
from opmux_triton.launch import launch
from opmux_triton.repeats import kept, repeated, scratch
from opmux_triton.scoring.options import Scoring

Gradients = tuple[Tensor, Tensor, Tensor, Tensor]
Noted = tuple[Tensor | None, int]
"""(notes, size): for every ``size`` keys or queries of a head whether their gradients must be computed again."""

_NAME = "attention backward"
_PARTS = 1024
"""How many parts of a sink's gradient are summed at a time."""


def attention_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    sinks: Tensor | None,
    grad_lse: Tensor | None,
    *,
    scale: float | None,
    causal: bool,
    window: tuple[int, int],
    softcap: float,
    output_mask: tuple[bool, ...],
    config: BackwardConfig,
) -> Gradients:
    """The op `attention_backward`."""
    tensors = (grad_out, q, k, v, out, lse, sinks, grad_lse)
    return dense(_NAME, _fill, tensors, Scoring(scale, causal, window, softcap), output_mask, config)


def attention_varlen_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    sinks: Tensor | None,
    grad_lse: Tensor | None,
    *,
    max_seqlen_q: int,
    max_seqlen_k: int,
    scale: float | None,
    causal: bool,
    window: tuple[int, int],
    softcap: float,
    output_mask: tuple[bool, ...],
    config: BackwardConfig,
) -> Gradients:
    """The op `attention_varlen_backward`."""
    dense = [None if t is None else t.unsqueeze(0) for t in (grad_out, q, k, v, out, lse)]
    tensors = (*dense, sinks, None if grad_lse is None else grad_lse.unsqueeze(0))
    lengths = (min(max_seqlen_q, q.shape[0]), min(max_seqlen_k, k.shape[0]))
    scoring = Scoring(scale, causal, window, softcap)
    found = _results(tensors, output_mask, ragged=True)
    portable(tensors, found, (cu_seqlens_q, cu_seqlens_k), lengths, scoring, config)
    grad_q, grad_k, grad_v = (g.squeeze(0) if g.dim() == 4 else g for g in found[:3])
    return grad_q, grad_k, grad_v, found[3]


def dense(
    name: str, fill: Callable[..., None], tensors: tuple[Any, ...], scoring: Scoring, output_mask: tuple[bool, ...],
    config: Any,
) -> Gradients:  # fmt: skip
    """Make the gradients of a dense batch and have ``fill`` write those that are wanted.

    Args:
        name: tells kept launches apart.
        fill: called like `_fill`; apart from launching it may only take scratch memory.
        tensors: those of the op, the absent ones None.
        scoring, output_mask: its options.
        config: what ``fill`` launches with.
    """
    found = _results(tensors, output_mask, ragged=False)
    _, q, k, *_, sinks, grad_lse = tensors
    given = tuple(tensor for tensor in tensors if tensor is not None)
    key = (name, id(config), q.shape, k.shape, scoring, output_mask, sinks is None, grad_lse is None)
    if not repeated(key, given, found):
        with kept(key, given, found, config):
            fill(tensors, found, scoring, config)
    return found


def _results(tensors: tuple[Any, ...], output_mask: tuple[bool, ...], ragged: bool) -> Gradients:
    """The gradients, unwritten; empty where they are not wanted.

    Of a ragged batch they are 0: the kernels write whole sequences, and what lies outside of them stays so.
    """
    _, q, k, v, _, _, sinks, _ = tensors
    make = torch.zeros if ragged else torch.empty
    grad_q, grad_k, grad_v = (
        make(x.shape if wanted else (0,), dtype=x.dtype, device=x.device)
        for x, wanted in zip((q, k, v), output_mask, strict=False)
    )
    like_sinks = q if sinks is None else sinks
    # Of a batch without queries nothing is launched.
    make = torch.empty if q.numel() and not ragged else torch.zeros
    shape = sinks.shape if sinks is not None and output_mask[3] else (0,)
    return grad_q, grad_k, grad_v, make(shape, dtype=like_sinks.dtype, device=q.device)


def _fill(tensors: tuple[Any, ...], grads: Gradients, scoring: Scoring, config: BackwardConfig) -> None:
    portable(tensors, grads, None, (tensors[1].shape[1], tensors[2].shape[1]), scoring, config)


def portable(
    tensors: tuple[Any, ...], grads: Gradients, offsets: tuple[Tensor, Tensor] | None, longest: tuple[int, int],
    scoring: Scoring, config: BackwardConfig,
) -> None:  # fmt: skip
    """Launch the portable kernels.

    Args:
        tensors: those of the op; of a ragged batch, with a batch dim of 1.
        grads: where the gradients go; empty ones are not wanted.
        offsets: where a ragged batch's sequences of q and of k begin; None for a dense batch.
        longest: the bounds of a sequence's queries and keys.
        scoring: the options.
        config: the launch parameters.
    """
    statistics = statistics_of(tensors, None if offsets is None else offsets[0], grads, config, tensors[1].shape[1])
    products(tensors, statistics, grads, offsets, longest, scoring, config)


def products(
    tensors: tuple[Any, ...], statistics: Tensor, grads: Gradients, offsets: tuple[Tensor, Tensor] | None,
    longest: tuple[int, int], scoring: Scoring, config: BackwardConfig, computed: tuple[Noted, Noted] | None = None,
) -> None:  # fmt: skip
    """Launch the kernels of keys and values, and of queries, and under a mask their repairs.

    Args:
        tensors, grads, offsets, longest, scoring, config: see `portable`.
        statistics: what `statistics_of` returned.
        computed: where other kernels have computed the gradients of a dense batch already, their notes of tiles of
            keys and of queries; only the repairs are launched then.
    """
    grad_out, q, k, v = tensors[:4]
    cu_q, cu_k = offsets or (None, None)
    grad_q, grad_k, grad_v, _ = grads
    ragged = cu_q is not None
    batch, queries, heads, head_dim = q.shape
    keys, kv_heads, value_dim = k.shape[1], k.shape[2], v.shape[3]
    row = statistics.shape[3]
    bounded_left, bounded_right, *sides = scoring.declared_band(queries, keys)
    batches = batch if cu_q is None else cu_q.shape[0] - 1
    strides = [s for x in (grad_out, q, k, v) for s in x.stride()[:3]]
    scalars = (row, *strides, scoring.scale_for(head_dim), float(scoring.softcap), *sides)
    common: dict[str, Any] = {
        "HEAD_DIM": head_dim,
        "VALUE_DIM": value_dim,
        "BLOCK_D": padded(head_dim),
        "BLOCK_V": padded(value_dim),
    }
    flags: dict[str, Any] = {
        "VARLEN": ragged, "LEFT": bounded_left, "RIGHT": bounded_right, "SOFTCAP": scoring.softcap > 0,
    }  # fmt: skip
    # Offsets within a tile of a few hundred rows fit into 32 bits, unless rows are very far apart.
    wide = max(x.stride(1) for x in (grad_out, q, k, v)) >= 1 << 22
    last: dict[str, Any] = {"WIDE": wide, "PRECISION": config.precision, "UPCAST": INTERPRETED}
    inputs = (grad_out, q, k, v, statistics[0], statistics[1])

    # Capped scores also need their slopes, for which the best tiles have no registers.
    capped = scoring.softcap > 0
    keys_values = config.keys_values_capped if capped else config.keys_values
    of_queries = config.queries_capped if capped else config.queries
    # Without a mask nothing can leak: what lies past the ends of a sequence is loaded as zero.
    masked = bounded_left or bounded_right
    noted_keys, noted_queries = computed or (None, None)
    passes = (False, True)[computed is not None : 1 + masked]
    if (grad_k.numel() or grad_v.numel()) and batches and longest[1]:
        meta = {"KV_HEADS": kv_heads, "GROUPS": heads // kv_heads, **common}
        wants = {"WANTS_K": grad_k.numel() > 0, "WANTS_V": grad_v.numel() > 0}
        noted = keys_values.block_n
        blocks = -(-longest[1] // noted)
        shares = 1
        if computed is None:
            shares = config.shares or _shares_for(q, blocks * batches * kv_heads, longest[0], keys_values, meta, masked)
        notes = notes_for(q, blocks * batches * kv_heads * shares) if masked and computed is None else None
        notes, noted = noted_keys or (notes, noted)
        results = Parts(grad_k, grad_v) if shares == 1 else parts_for(grad_k, grad_v, shares, zero=ragged)
        arguments = (*inputs, *results, notes, cu_q, cu_k, queries, keys, batches, shares, *scalars)
        for repair in passes:
            chosen = config.repair_keys_values if repair else keys_values
            blocks = -(-longest[1] // chosen.block_n)
            repairs = {"NOTED": noted if masked else 0, "REPAIR": repair}
            constants = {**meta, **_tile(chosen), **flags, **wants, **last, **repairs, **chosen.compiler_options()}
            launch(kernels.keys_values, (blocks * batches * kv_heads * shares,), arguments, constants)
        if shares > 1:
            add_parts(results, grad_k, grad_v, shares)
    if grad_q.numel() and batches and longest[0]:
        meta = {"HEADS": heads, "GROUPS": heads // kv_heads, **common}
        noted = of_queries.block_m
        notes = notes_for(q, -(-longest[0] // noted) * batches * heads) if masked and computed is None else None
        notes, noted = noted_queries or (notes, noted)
        for repair in passes:
            chosen = config.repair_queries if repair else of_queries
            blocks = -(-longest[0] // chosen.block_m)
            repairs = {"NOTED": noted if masked else 0, "REPAIR": repair}
            constants = {**meta, **_tile(chosen), **flags, **last, **repairs, **chosen.compiler_options()}
            arguments = (*inputs, grad_q, notes, cu_q, cu_k, queries, keys, batches, blocks, *scalars)
            launch(kernels.queries_of, (blocks * batches * heads,), arguments, constants)


def _shares_for(q: Tensor, programs: int, queries: int, tile: TileConfig, meta: dict[str, Any], masked: bool) -> int:
    """Shares of the kernel of keys and values: a multiprocessor runs one program of eight warps, or two of four."""
    steps = meta["GROUPS"] * -(-queries // tile.block_m)
    return shares_for(programs, steps, units(q) * max(1, 8 // tile.num_warps), masked)


def statistics_of(
    tensors: tuple[Any, ...], cu_q: Tensor | None, grads: Gradients, config: BackwardConfig, row: int,
    sums: Tensor | None = None, notes: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """What the other kernels read of each row, log_sum and shift; computes the gradient of the sinks too.

    Args:
        tensors, grads: see `portable`.
        cu_q: where the sequences of a ragged batch begin.
        config: the launch parameters.
        row: numbers for each head, at least as many as queries.
        sums: float32 numbers to be set to 0, at most `padded` head_dim for each number of statistics; or None.
        notes: notes to be set to 0; or None.

    Returns:
        ``(2, batch, heads, row)`` float32; 0 past the last query.
    """
    grad_out, q, _, _, out, lse, sinks, grad_lse = tensors
    *_, grad_sinks = grads
    batch, queries, heads, value_dim = grad_out.shape
    found = scratch((2, batch, heads, row), q)
    c = config.statistics
    blocks = -(-row // c.rows) if queries else 0
    if not blocks * batch or not any(grad.numel() for grad in grads):
        return found
    parts = scratch((heads, blocks * batch), q) if grad_sinks.numel() else None
    strides = [*grad_out.stride()[:3], *out.stride()[:3], *lse.stride()]
    strides += (0, 0, 0) if grad_lse is None else grad_lse.stride()
    cleared = (sums, 0 if sums is None else sums.numel(), notes, 0 if notes is None else notes.numel())
    meta = {
        "HEADS": heads,
        "VALUE_DIM": value_dim,
        "BLOCK_V": padded(value_dim),
        "BLOCK": c.rows,
        "VARLEN": cu_q is not None,
        "GRAD_LSE": grad_lse is not None,
        "SINKS": parts is not None,
        "CLEAR": 0 if sums is None else c.rows * padded(q.shape[3]),
        "num_warps": c.num_warps,
    }
    end = None if cu_q is None else cu_q[-1:]
    arguments = (
        grad_out, out, lse, grad_lse, sinks, found[0], found[1], parts, end, queries, row, batch, *strides, *cleared
    )  # fmt: skip
    launch(kernels.row_statistics, (blocks * batch * heads,), arguments, meta)
    if parts is not None:
        launch(
            kernels.sum_of_sinks,
            (heads,),
            (parts, grad_sinks, blocks * batch),
            {"BLOCK": _PARTS, "num_warps": meta["num_warps"]},
        )
    return found


def notes_for(like: Tensor, count: int) -> Tensor:
    """Memory for the notes of which tiles must be repaired."""
    return scratch((count,), like, torch.int32)


def _tile(chosen: TileConfig) -> dict[str, Any]:
    return {"BLOCK_M": chosen.block_m, "BLOCK_N": chosen.block_n}
