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
from opmux_triton.scoring.options import Scoring

Gradients = tuple[Tensor, Tensor, Tensor, Tensor]
Noted = tuple[Tensor | None, int]
"""(notes, size): for every ``size`` keys or queries of a head whether their gradients must be computed again."""
Fast = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Noted, Noted]]
"""Another kernel for the gradients of keys, values and queries: fills them in, and returns notes for each kind of tile.

Called with the statistics, ``(2, batch, heads, row)`` float32, and the gradients of q, k and v.
"""

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
    lengths = (q.shape[1], k.shape[1])
    return run(tensors, None, None, lengths, Scoring(scale, causal, window, softcap), output_mask, config)


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
    found = run(tensors, cu_seqlens_q, cu_seqlens_k, lengths, scoring, output_mask, config)
    grad_q, grad_k, grad_v = (g.squeeze(0) if g.dim() == 4 else g for g in found[:3])
    return grad_q, grad_k, grad_v, found[3]


def run(
    tensors: tuple[Any, ...],
    cu_q: Tensor | None,
    cu_k: Tensor | None,
    longest: tuple[int, int],
    scoring: Scoring,
    output_mask: tuple[bool, ...],
    config: BackwardConfig,
    fast: Fast | None = None,
    row_multiple: int = 1,
) -> Gradients:
    """Both forms: a ragged batch comes as a dense batch of one entry, with the offsets of its sequences.

    ``fast`` replaces both kernels, but not their repairs. It requires a dense batch, all gradients wanted, and rows of
    statistics whose length is a multiple of ``row_multiple``.
    """
    grad_out, q, k, v, _, _, sinks, _ = tensors
    ragged = cu_q is not None
    batch, queries, heads, head_dim = q.shape
    keys, kv_heads, value_dim = k.shape[1], k.shape[2], v.shape[3]
    wants_q, wants_k, wants_v, wants_sinks = (*output_mask[:3], output_mask[3] and sinks is not None)
    # The kernels write whole sequences; what lies outside of them is zero.
    make = torch.zeros if ragged else torch.empty
    grad_q, grad_k, grad_v = (
        make(x.shape if wanted else (0,), dtype=x.dtype, device=x.device)
        for x, wanted in ((q, wants_q), (k, wants_k), (v, wants_v))
    )
    like_sinks = q if sinks is None else sinks
    grad_sinks = torch.zeros(sinks.shape if wants_sinks else (0,), dtype=like_sinks.dtype, device=q.device)

    row = -(-queries // row_multiple) * row_multiple
    statistics = _statistics(
        tensors, cu_q, grad_sinks if wants_sinks else None, wants_q or wants_k or wants_v, config, row
    )
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
    noted_keys = noted_queries = None
    if fast is not None:
        noted_keys, noted_queries = fast(statistics, grad_q, grad_k, grad_v)
    passes = (False, True)[fast is not None : 1 + masked]
    if (grad_k.numel() or grad_v.numel()) and batches and longest[1]:
        meta = {"KV_HEADS": kv_heads, "GROUPS": heads // kv_heads, **common}
        wants = {"WANTS_K": grad_k.numel() > 0, "WANTS_V": grad_v.numel() > 0}
        noted = keys_values.block_n
        blocks = -(-longest[1] // noted)
        shares = 1
        if fast is None:
            shares = config.shares or _shares_for(q, blocks * batches * kv_heads, longest[0], keys_values, meta, masked)
        notes = notes_for(q, blocks * batches * kv_heads * shares) if masked and fast is None else None
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
        notes = notes_for(q, -(-longest[0] // noted) * batches * heads) if masked and fast is None else None
        notes, noted = noted_queries or (notes, noted)
        for repair in passes:
            chosen = config.repair_queries if repair else of_queries
            blocks = -(-longest[0] // chosen.block_m)
            repairs = {"NOTED": noted if masked else 0, "REPAIR": repair}
            constants = {**meta, **_tile(chosen), **flags, **last, **repairs, **chosen.compiler_options()}
            arguments = (*inputs, grad_q, notes, cu_q, cu_k, queries, keys, batches, blocks, *scalars)
            launch(kernels.queries_of, (blocks * batches * heads,), arguments, constants)
    return grad_q, grad_k, grad_v, grad_sinks


def _shares_for(q: Tensor, programs: int, queries: int, tile: TileConfig, meta: dict[str, Any], masked: bool) -> int:
    """Shares of the kernel of keys and values: a multiprocessor runs one program of eight warps, or two of four."""
    steps = meta["GROUPS"] * -(-queries // tile.block_m)
    return shares_for(programs, steps, units(q) * max(1, 8 // tile.num_warps), masked)


def _statistics(
    tensors: tuple[Any, ...],
    cu_q: Tensor | None,
    grad_sinks: Tensor | None,
    wanted: bool,
    config: BackwardConfig,
    row: int,
) -> Tensor:
    """What both kernels read of each row, log_sum and shift; computes the gradient of the sinks too."""
    grad_out, q, _, _, out, lse, sinks, grad_lse = tensors
    batch, queries, heads, value_dim = grad_out.shape
    make = torch.empty if row == queries else torch.zeros
    found = make((2, batch, heads, row), dtype=torch.float32, device=q.device)
    blocks = -(-queries // config.statistics.rows)
    if not blocks * batch or not (wanted or grad_sinks is not None):
        return found
    parts = (
        torch.empty((heads, blocks * batch), dtype=torch.float32, device=q.device) if grad_sinks is not None else None
    )
    strides = [*grad_out.stride()[:3], *out.stride()[:3], *lse.stride()]
    strides += (0, 0, 0) if grad_lse is None else grad_lse.stride()
    meta = {
        "HEADS": heads,
        "VALUE_DIM": value_dim,
        "BLOCK_V": padded(value_dim),
        "BLOCK": config.statistics.rows,
        "VARLEN": cu_q is not None,
        "GRAD_LSE": grad_lse is not None,
        "SINKS": parts is not None,
        "num_warps": config.statistics.num_warps,
    }
    end = None if cu_q is None else cu_q[-1:]
    arguments = (grad_out, out, lse, grad_lse, sinks, found[0], found[1], parts, end, queries, row, batch, *strides)
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
    return torch.empty((count,), dtype=torch.int32, device=like.device)


def _tile(chosen: TileConfig) -> dict[str, Any]:
    return {"BLOCK_M": chosen.block_m, "BLOCK_N": chosen.block_n}
