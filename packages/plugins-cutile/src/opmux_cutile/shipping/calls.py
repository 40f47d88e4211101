"""The calls of models whose kernels the wheel has: their shapes, in bfloat16 and the codes of quantised models."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from opmux.testing.model_shapes import MODELS, ModelShape

Call = tuple[str, tuple[Tensor | None, ...], dict[str, Any]]
"""An op, its tensors, which have no memory, and its options."""

ROWS = (1, 16, 32, 64, 128, 512, 4096)
"""Of products, so that each tile of the heuristics is there."""
GROUPS = 8
BF16, FP32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
PAGES = ((16, BF16), (64, BF16), (64, FP8))
"""Page size and dtype of caches."""
BATCHES = ((1, 1), (8, 1), (64, 1), (8, 512))
"""Sequences, and new tokens of each: few sequences have their keys split between blocks."""


def calls() -> Iterator[Call]:
    """Every call; some have a kernel in common."""
    for shape in MODELS.values():
        yield from _norms(shape)
        yield from _gates(shape)
        yield from _products(shape)
        yield from _heads(shape)


def meta(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    """A tensor without memory."""
    return torch.empty(*shape, dtype=dtype, device="meta")


def _norms(shape: ModelShape) -> Iterator[Call]:
    x, w = meta(512, shape.hidden), meta(shape.hidden)
    heads = meta(512, shape.heads, shape.head_dim)
    yield "rms_norm", (x, w), {}
    yield "rms_norm", (heads, meta(shape.head_dim)), {}
    yield "add_rms_norm", (x, x, w), {}
    yield "add_rms_norm_", (x, x.clone(), w), {}
    yield "layer_norm", (x, w, w), {}
    yield "rms_norm_backward", (x, x, w), {}
    yield "add_rms_norm_backward", (x, x, x, w), {}
    yield "layer_norm_backward", (x, x, w), {}
    for block in ((1, 128), (1, -1)):
        options = {"dtype": FP8, "block": block}
        yield "quantize", (x,), options
        yield "rms_norm_quantize", (x, w), options
        yield "add_rms_norm_quantize", (x, x, w), options
        yield "silu_and_mul_quantize", (meta(512, 2 * shape.intermediate),), options


def _gates(shape: ModelShape) -> Iterator[Call]:
    packed, half = meta(512, 2 * shape.intermediate), meta(512, shape.intermediate)
    for gate, options in (("silu", {}), ("gelu", {"approximate": "tanh"})):
        yield f"{gate}_and_mul", (packed,), options
        yield f"{gate}_mul", (half, half), options
        yield f"{gate}_and_mul_backward", (half, packed), options
        yield f"{gate}_mul_backward", (half, half, half), options


def _products(shape: ModelShape) -> Iterator[Call]:
    n, k = shape.intermediate, shape.hidden
    groups, weights = meta(GROUPS + 1, dtype=torch.int32), meta(GROUPS, n, k)
    codes = meta(n, k, dtype=FP8)
    of_w = meta(n, 1, dtype=FP32), meta(-(-n // 128), -(-k // 128), dtype=FP32)
    for rows in ROWS:
        x = meta(rows, k)
        yield "linear", (x, meta(n, k), None), {}
        yield "linear", (x, meta(n, k), meta(n)), {}
        yield "grouped_linear", (x, weights, groups), {}
        yield "masked_grouped_linear", (x.expand(GROUPS, rows, k), weights, groups[1:]), {"expected_m": rows}
        for blocks, scale in ((1, of_w[0]), (-(-k // 128), of_w[1])):
            tensors = meta(rows, k, dtype=FP8), codes, meta(rows, blocks, dtype=FP32), scale, None
            yield "scaled_linear", tensors, {"out_dtype": BF16}


def _heads(shape: ModelShape) -> Iterator[Call]:
    tokens, heads, kv_heads, dim = 512, shape.heads, shape.kv_heads, shape.head_dim
    q, k = meta(tokens, heads, dim), meta(tokens, kv_heads, dim)
    table = meta(4096, dim // 2, dtype=FP32)
    ints = meta(9, dtype=torch.int32)
    for positions in (None, meta(tokens, dtype=torch.int64)):
        yield "apply_rope", (q, k, table, table, positions), {}
        yield "apply_rope_", (q, k.clone(), table, table, positions), {}
        yield "apply_rope_backward", (q, k, table, table, positions), {}
    masked: dict[str, Any] = {"causal": True, "softcap": shape.softcap}
    for window in {-1, shape.window}:
        options = {**masked, "window": (window, 0 if window >= 0 else -1)}
        bounds = {"max_seqlen_q": tokens, "max_seqlen_k": tokens}
        sinks = meta(heads) if shape.sinks else None
        for op in ("attention", "attention_lse"):
            yield op, (q[None], k[None], k[None], sinks), options
        for op in ("attention_varlen", "attention_varlen_lse"):
            yield op, (q, k, k, ints, ints, sinks), options | bounds
        for page_size, stored in PAGES:
            cache = meta(100, page_size, kv_heads, dim, dtype=stored)
            for batch, new in BATCHES:
                ends, lengths = (meta(batch + more, dtype=torch.int32) for more in (1, 0))
                pages = meta(batch, 64, dtype=torch.int32)
                paged = meta(batch * new, heads, dim), cache, cache, ends, lengths, pages, sinks
                yield "paged_attention", paged, {**options, "max_seqlen_q": new, "max_seqlen_k": 4096}
            yield "write_kv_cache", (k, k, cache, cache.clone(), meta(tokens, dtype=torch.int64)), {}
