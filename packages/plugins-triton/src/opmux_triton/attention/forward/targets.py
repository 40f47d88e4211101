"""What the core calls for attention forward: makes the results, sets the order of the tiles, and launches."""

from collections.abc import Callable

import torch
from torch import Tensor

from opmux_triton.arithmetic import padded
from opmux_triton.attention.forward import kernels
from opmux_triton.attention.forward.configs import ForwardConfig, HopperConfig
from opmux_triton.descriptors import descriptor, has_descriptor
from opmux_triton.interpreter import INTERPRETED
from opmux_triton.launch import launch
from opmux_triton.repeats import kept, repeated
from opmux_triton.scoring.options import Scoring

_NAME = "attention"


def attention(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, *,
    scale: float | None, causal: bool, window: tuple[int, int], softcap: float, config: ForwardConfig,
) -> Tensor:  # fmt: skip
    """The op `attention`."""
    scoring = Scoring(scale, causal, window, softcap)
    return dense(_NAME, run_dense, q, k, v, sinks, scoring, config, wants_lse=False)[0]


def attention_lse(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, *,
    scale: float | None, causal: bool, window: tuple[int, int], softcap: float, config: ForwardConfig,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The op `attention_lse`."""
    scoring = Scoring(scale, causal, window, softcap)
    out, lse = dense(_NAME, run_dense, q, k, v, sinks, scoring, config, wants_lse=True)
    assert lse is not None
    return out, lse


def attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, sinks: Tensor | None = None, *,
    max_seqlen_q: int, max_seqlen_k: int,
    scale: float | None, causal: bool, window: tuple[int, int], softcap: float, config: ForwardConfig,
) -> Tensor:  # fmt: skip
    """The op `attention_varlen`."""
    scoring, longest = Scoring(scale, causal, window, softcap), (max_seqlen_q, max_seqlen_k)
    return _ragged(q, k, v, (cu_seqlens_q, cu_seqlens_k), longest, sinks, scoring, config, wants_lse=False)[0]


def attention_varlen_lse(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, sinks: Tensor | None = None, *,
    max_seqlen_q: int, max_seqlen_k: int,
    scale: float | None, causal: bool, window: tuple[int, int], softcap: float, config: ForwardConfig,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The op `attention_varlen_lse`."""
    scoring, longest = Scoring(scale, causal, window, softcap), (max_seqlen_q, max_seqlen_k)
    out, lse = _ragged(q, k, v, (cu_seqlens_q, cu_seqlens_k), longest, sinks, scoring, config, wants_lse=True)
    assert lse is not None
    return out, lse


def results(q: Tensor, v: Tensor, rows: tuple[int, ...] | None) -> tuple[Tensor, Tensor | None]:
    """The output, and the lse of that shape, unwritten."""
    if q.shape[-1] == v.shape[-1]:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    else:
        out = torch.empty((*q.shape[:-1], v.shape[-1]), dtype=q.dtype, device=q.device)
    return out, None if rows is None else torch.empty(rows, dtype=torch.float32, device=q.device)


def pairs_at_a_time(pairs: int, groups: int, keys: int, k: Tensor, v: Tensor, cache: int) -> int:
    """How many (batch, head) pairs have keys and values that fit into the cache together: whole groups of heads."""
    each = max(1, keys * (k.shape[-1] + v.shape[-1]) * k.element_size())
    return max(1, min(pairs, groups * max(1, cache // each)))


def dense(
    name: str, run: Callable[..., None], q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, scoring: Scoring,
    config: ForwardConfig | HopperConfig, *, wants_lse: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Make the results of a dense batch and have ``run`` fill them; ``name`` tells kept launches apart.

    ``run`` is called like `run_dense`.
    """
    batch, queries, heads, _ = q.shape
    out, lse = results(q, v, (batch, heads, queries) if wants_lse else None)
    given, made = (q, k, v) if sinks is None else (q, k, v, sinks), (out,) if lse is None else (out, lse)
    key = (name, id(config), q.shape, k.shape, scoring, sinks is None, wants_lse)
    if batch and queries and not repeated(key, given, made):
        with kept(key, given, made, config):
            run(out, lse, q, k, v, sinks, scoring, config)
    return out, lse


def run_dense(
    out: Tensor, lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, scoring: Scoring,
    config: ForwardConfig,
) -> None:  # fmt: skip
    """Launch the portable kernel over a dense batch, see `run`."""
    sizes = (q.shape[1], k.shape[1])
    run(out, lse, q, k, v, sinks, None, sizes, sizes, scoring, config)


def _ragged(
    q: Tensor, k: Tensor, v: Tensor, offsets: tuple[Tensor, Tensor], longest: tuple[int, int], sinks: Tensor | None,
    scoring: Scoring, config: ForwardConfig, *, wants_lse: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    tokens, heads, _ = q.shape
    out, lse = results(q, v, (heads, tokens) if wants_lse else None)
    if tokens:
        q, k, v = q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)
        run(out, lse, q, k, v, sinks, offsets, (tokens, k.shape[1]), longest, scoring, config)
    return out, lse


def run(
    out: Tensor, lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None,
    offsets: tuple[Tensor, Tensor] | None, sizes: tuple[int, int], longest: tuple[int, int],
    scoring: Scoring, config: ForwardConfig,
) -> None:  # fmt: skip
    """Launch the portable kernel.

    Args:
        out, lse: where the results go; without an lse, none is written.
        q, k, v: ``(batch, seq, heads, dim)``; of a ragged batch, with a batch dim of 1.
        sinks: as the ops have them.
        offsets: where a ragged batch's sequences of q and of k begin; None for a dense batch.
        sizes: the number of queries and of keys; of a ragged batch, of all tokens.
        longest: the bounds of a sequence's queries and keys.
        scoring: the options.
        config: the launch parameters.
    """
    heads, head_dim, value_dim = q.shape[2], q.shape[3], v.shape[3]
    groups = heads // k.shape[2]
    batch = q.shape[0] if offsets is None else offsets[0].shape[0] - 1
    queries, keys = sizes
    rows, block = config.rows, config.block
    tiles = max(1, -(-longest[0] // rows))
    pairs = (batch + (offsets is not None)) * heads
    section = pairs_at_a_time(pairs, groups, longest[1], k, v, config.cache)
    fold, scale, cap = scoring.factors(head_dim)
    bounded_left, bounded_right, left, right = scoring.band(*longest)
    head_block, value_block = padded(head_dim), padded(value_dim)
    k_tma = v_tma = None
    if config.tma and has_descriptor(k) and has_descriptor(v):
        k_tma, v_tma = descriptor(k, [1, block, 1, head_block]), descriptor(v, [1, block, 1, value_block])
    arguments = (
        out, lse, q, k, v, k_tma, v_tma, sinks, *(offsets or (None, None)),
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        batch, heads, groups, queries, keys, tiles, section, scale, cap, left, right,
    )  # fmt: skip
    meta = {
        "HEAD_DIM": head_dim,
        "VALUE_DIM": value_dim,
        "RAGGED": offsets is not None,
        "LEFT": bounded_left,
        "RIGHT": bounded_right,
        "FOLD": fold,
        "SOFTCAP": scoring.softcap > 0,
        "ROWS": rows,
        "BLOCK": block,
        "HEAD_BLOCK": head_block,
        "VALUE_BLOCK": value_block,
        "CAREFUL_BLOCK": min(32, block),
        "TMA": k_tma is not None,
        "FAST": True,
        # Descriptors read values past the end of a sequence, up to the end of all tokens.
        "CAREFUL": bounded_left or bounded_right or (offsets is not None and k_tma is not None),
        "STAGES": config.num_stages,
        "UPCAST": INTERPRETED,
    } | config.compiler_options()
    passes = [meta]
    if meta["CAREFUL"] and config.apart:
        passes = [meta | {"CAREFUL": False}, meta | {"FAST": False}]
    for each in passes:
        launch(kernels.attention_forward, (tiles * pairs,), arguments, each)
