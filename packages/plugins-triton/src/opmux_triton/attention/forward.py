"""What the core calls for attention forward: makes the results, finds the order of the tiles, launches."""

import math
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from opmux_triton.attention import forward_kernels as kernels
from opmux_triton.launch import launch
from opmux_triton.repeats import kept, repeated

Config = dict[str, Any]
LOG2_E = 1 / math.log(2)
_INTERPRETED = triton.knobs.runtime.interpret
_OPTIONS = ("matrix_instr_nonkdim", "waves_per_eu", "maxnreg")
"""What a config may hold for the compiler beside warps and stages."""


class Scoring(NamedTuple):
    """The options that say how queries score keys, as the ops have them."""

    scale: float | None
    causal: bool
    window: tuple[int, int]
    softcap: float

    def factors(self, head_dim: int) -> tuple[bool, float, float]:
        """(fold, scale, cap) as the kernel takes them; ``fold`` where a fused multiply-add gives the exponent."""
        scale = 1 / math.sqrt(max(1, head_dim)) if self.scale is None else self.scale
        if self.softcap > 0:
            return False, scale / self.softcap, self.softcap * LOG2_E
        return 0 < scale < math.inf, scale * LOG2_E, 0.0

    def band(self, queries: int, keys: int) -> tuple[bool, bool, int, int]:
        """(bounded left, bounded right, left, right); a side that hides no key is not bounded."""
        left, right = self.window[0], 0 if self.causal else self.window[1]
        bounded_left, bounded_right = 0 <= left < keys - 1, 0 <= right < queries - 1
        return bounded_left, bounded_right, left if bounded_left else 0, right if bounded_right else 0


def attention(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, *,
    scale: float | None, causal: bool, window: tuple[int, int], softcap: float, config: Config,
) -> Tensor:  # fmt: skip
    """The op `attention`."""
    return _dense(q, k, v, sinks, Scoring(scale, causal, window, softcap), config, wants_lse=False)[0]


def attention_lse(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, *,
    scale: float | None, causal: bool, window: tuple[int, int], softcap: float, config: Config,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The op `attention_lse`."""
    out, lse = _dense(q, k, v, sinks, Scoring(scale, causal, window, softcap), config, wants_lse=True)
    assert lse is not None
    return out, lse


def attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, sinks: Tensor | None = None, *,
    max_seqlen_q: int, max_seqlen_k: int,
    scale: float | None, causal: bool, window: tuple[int, int], softcap: float, config: Config,
) -> Tensor:  # fmt: skip
    """The op `attention_varlen`."""
    scoring, longest = Scoring(scale, causal, window, softcap), (max_seqlen_q, max_seqlen_k)
    return _ragged(q, k, v, (cu_seqlens_q, cu_seqlens_k), longest, sinks, scoring, config, wants_lse=False)[0]


def attention_varlen_lse(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, sinks: Tensor | None = None, *,
    max_seqlen_q: int, max_seqlen_k: int,
    scale: float | None, causal: bool, window: tuple[int, int], softcap: float, config: Config,
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


def _dense(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, scoring: Scoring, config: Config, *, wants_lse: bool
) -> tuple[Tensor, Tensor | None]:
    batch, queries, heads, _ = q.shape
    out, lse = results(q, v, (batch, heads, queries) if wants_lse else None)
    given, made = (q, k, v) if sinks is None else (q, k, v, sinks), (out,) if lse is None else (out, lse)
    key = ("attention", id(config), q.shape, k.shape, scoring, sinks is None, wants_lse)
    if batch and queries and not repeated(key, given, made):
        sizes = (queries, k.shape[1])
        with kept(key, given, made, config):
            run(out, lse, q, k, v, sinks, None, sizes, sizes, scoring, config)
    return out, lse


def _ragged(
    q: Tensor, k: Tensor, v: Tensor, offsets: tuple[Tensor, Tensor], longest: tuple[int, int], sinks: Tensor | None,
    scoring: Scoring, config: Config, *, wants_lse: bool,
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
    scoring: Scoring, config: Config,
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
    rows, block = config["rows"], config["block"]
    tiles = max(1, -(-longest[0] // rows))
    pairs = (batch + (offsets is not None)) * heads
    section = pairs_at_a_time(pairs, groups, longest[1], k, v, config["cache"])
    fold, scale, cap = scoring.factors(head_dim)
    bounded_left, bounded_right, left, right = scoring.band(*longest)
    head_block, value_block = padded(head_dim), padded(value_dim)
    k_tma = v_tma = None
    if config["tma"] and has_descriptor(k) and has_descriptor(v):
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
        "STAGES": config["num_stages"],
        "UPCAST": _INTERPRETED,
        "num_warps": config["num_warps"],
        "num_stages": config["num_stages"],
    } | {name: config[name] for name in _OPTIONS if name in config}
    passes = [meta]
    if meta["CAREFUL"] and config["apart"]:
        passes = [meta | {"CAREFUL": False}, meta | {"FAST": False}]
    for each in passes:
        launch(kernels.attention_forward, (tiles * pairs,), arguments, each)


def padded(size: int) -> int:
    """The power of two, 16 or more, that holds a head dim."""
    return max(16, 1 << (size - 1).bit_length()) if size > 1 else 16


def has_descriptor(x: Tensor) -> bool:
    """Whether a tensor ``(batch, seq, heads, dim)`` can be read by a tensor descriptor."""
    size = x.element_size()
    aligned = x.data_ptr() % 16 == 0 and x.numel() > 0 and x.stride(3) == 1
    return aligned and all(
        n == 1 or (s > 0 and s * size % 16 == 0) for n, s in zip(x.shape[:3], x.stride()[:3], strict=True)
    )


def descriptor(x: Tensor, block: list[int]) -> TensorDescriptor:
    """A descriptor of a tensor ``(batch, seq, heads, dim)``, made on the host; it goes into the launch by value."""
    return TensorDescriptor(x, list(x.shape), descriptor_strides(x), block)


def descriptor_strides(x: Tensor) -> list[int]:
    """A tensor's strides, with one that descriptors take for a dim of size 1, whose stride means nothing."""
    return [*(16 if n == 1 else s for n, s in zip(x.shape[:3], x.stride()[:3], strict=True)), 1]
