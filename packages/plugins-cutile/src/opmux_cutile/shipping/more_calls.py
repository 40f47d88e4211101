"""Calls whose kernels CI compiles beside the wheel's: other ops, other dtypes, codes, blocks and biases.

A wheel has room for the kernels that models need; a session without a GPU holds these to the same.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from opmux.testing.model_shapes import MODELS, ModelShape
from opmux_cutile.shipping.calls import BATCHES, BF16, FP8, FP32, GROUPS, ROWS, Call, meta

FP16, E5M2, INT8, INT32 = torch.float16, torch.float8_e5m2, torch.int8, torch.int32
SIDE = 4096
"""Of a weight: what other sizes get is in the heuristics' choice of a tile, which goes by the rows."""
TANH = {"approximate": "tanh"}
HEADS = ((8, 8), (8, 64), (32, 8), (32, 32), (24, 40), (72, 72), (128, 16), (16, 128), (256, 8), (136, 200), (64, 64))
"""Sizes of heads of keys and of values that models do not have: narrow ones, of two widths, and no whole vectors."""
WIDTHS = (77, 8192)
"""Of rows: read number by number, and the widest that gradients of norms take."""


def more_calls() -> Iterator[Call]:
    """Every call; some have a kernel in common."""
    for dtype in (FP16, FP32):
        for width in (*WIDTHS, 2048 if dtype == FP32 else SIDE):
            yield from _rows(width, dtype)
    yield from _rows(WIDTHS[0], BF16)
    yield from _added(WIDTHS[1], BF16)
    yield from _quantised()
    for rows in ROWS:
        yield from _gradients_of_products(rows, BF16)
        yield from _products_of_codes(rows, FP8)
    yield from _halves()
    yield from _products_of_codes(SIDE, E5M2)
    for shape in _heads():
        yield from _gradients_of_attention(shape)
        yield from _paged(shape)
    yield from _gradients_of_two_widths()
    yield from _capped()
    yield from _wide_pages()
    yield from _codes_of_other_heads()


def _rows(width: int, dtype: torch.dtype) -> Iterator[Call]:
    """Norms and gates, forward and backward."""
    x, w, packed = meta(512, width, dtype=dtype), meta(width, dtype=dtype), meta(512, 2 * width, dtype=dtype)
    yield "rms_norm", (x, w), {}
    yield "add_rms_norm", (x, x, w), {}
    yield "add_rms_norm_", (x, x.clone(), w), {}
    yield "layer_norm", (x, w, w), {}
    yield "layer_norm", (x, w, None), {}
    yield "rms_norm_backward", (x, x, w), {}
    yield "add_rms_norm_backward", (x, x, x, w), {}
    yield from _added(width, dtype)
    if width <= 2048 or dtype.itemsize == 2:
        yield "layer_norm_backward", (x, x, w), {}
    for gate, options in (("silu", {}), ("gelu", TANH)):
        yield f"{gate}_and_mul", (packed,), options
        yield f"{gate}_mul", (x, x), options
        yield f"{gate}_and_mul_backward", (x, packed), options
        yield f"{gate}_mul_backward", (x, x, x), options


def _added(width: int, dtype: torch.dtype) -> Iterator[Call]:
    """Norms around the mean of a sum."""
    x, w = meta(512, width, dtype=dtype), meta(width, dtype=dtype)
    yield "add_layer_norm", (x, x, w, w), {}
    yield "add_layer_norm", (x, x, w, None), {}
    if width <= 2048 or dtype.itemsize == 2:  # wider ones spill registers, and are refused
        yield "add_layer_norm_backward", (x, x, x, w), {}


def _quantised() -> Iterator[Call]:
    """All codes and all blocks."""
    for codes in (FP8, E5M2, INT8):
        for block in ((1, 128), (1, 32), (1, -1), (128, 128), (-1, -1)):
            options = {"dtype": codes, "block": block}
            for width in (SIDE, 4099):
                yield "quantize", (meta(512, width),), options
            if block[0] == 1:
                x, w = meta(512, SIDE), meta(SIDE)
                yield "rms_norm_quantize", (x, w), options
                yield "add_rms_norm_quantize", (x, x, w), options
                yield "silu_and_mul_quantize", (meta(512, 2 * SIDE),), options


def _gradients_of_products(rows: int, dtype: torch.dtype) -> Iterator[Call]:
    """Of a layer, and of groups."""
    x, w = meta(rows, SIDE, dtype=dtype), meta(SIDE, SIDE, dtype=dtype)
    weights, offsets = meta(GROUPS, SIDE, SIDE, dtype=dtype), meta(GROUPS + 1, dtype=INT32)
    yield "linear_backward", (x, x, w), {}
    yield "grouped_linear_backward", (x, x, weights, offsets), {}
    yield "grouped_linear_backward", (x, x, weights, offsets, offsets[1:]), {}
    yield "grouped_weight_grad", (weights.to(FP32), x, x, offsets), {}


def _products_of_codes(rows: int, codes: torch.dtype) -> Iterator[Call]:
    """With scales of rows, and of blocks for 128 rows of w and for one: of a layer, with a bias, and of groups."""
    x, w = meta(rows, SIDE, dtype=codes), meta(SIDE, SIDE, dtype=codes)
    weights, offsets = w.expand(GROUPS, SIDE, SIDE), meta(GROUPS + 1, dtype=INT32)
    masked = x.expand(GROUPS, rows, SIDE)
    for blocks, w_rows in ((1, SIDE), (SIDE // 128, SIDE // 128), (SIDE // 128, SIDE)):
        of_x, of_w = meta(rows, blocks, dtype=FP32), meta(w_rows, blocks, dtype=FP32)
        options: dict[str, Any] = {"out_dtype": BF16}
        for bias in (None, meta(SIDE)):
            yield "scaled_linear", (x, w, of_x, of_w, bias), options
        each = of_w.expand(GROUPS, w_rows, blocks)
        yield "scaled_grouped_linear", (x, weights, offsets, of_x, each), options
        of_groups = of_x.expand(GROUPS, rows, blocks)
        tensors = masked, weights, offsets[1:], of_groups, each
        yield "scaled_masked_grouped_linear", tensors, {**options, "expected_m": rows}


def _halves() -> Iterator[Call]:
    """Products, rotary embedding and attention in float16, and results of codes in it and in float32."""
    x, w, offsets = meta(SIDE, SIDE, dtype=FP16), meta(SIDE, SIDE, dtype=FP16), meta(GROUPS + 1, dtype=INT32)
    weights = w.expand(GROUPS, SIDE, SIDE)
    for bias in (None, meta(SIDE, dtype=FP16)):
        yield "linear", (x, w, bias), {}
    yield "grouped_linear", (x, weights, offsets), {}
    yield "masked_grouped_linear", (x.expand(GROUPS, SIDE, SIDE), weights, offsets[1:]), {"expected_m": SIDE}
    yield from _gradients_of_products(SIDE, FP16)
    codes, one = meta(SIDE, SIDE, dtype=FP8), meta(SIDE, 1, dtype=FP32)
    for out, bias in ((FP16, meta(SIDE, dtype=FP16)), (FP32, meta(SIDE, dtype=FP32)), (FP32, None)):
        yield "scaled_linear", (codes, codes, one, one, bias), {"out_dtype": out}
    for dtype in (FP16, FP32):
        q, k, table = meta(512, 32, 128, dtype=dtype), meta(512, 8, 128, dtype=dtype), meta(4096, 64, dtype=FP32)
        for interleaved in (False, True):
            options = {"interleaved": interleaved}
            yield "apply_rope", (q, k, table, table, None), options
            yield "apply_rope_", (q, k.clone(), table, table, None), options
            yield "apply_rope_backward", (q, k, table, table, None), options
    q, k, starts = meta(512, 32, 128, dtype=FP16), meta(512, 8, 128, dtype=FP16), meta(9, dtype=INT32)
    yield "attention", (q[None], k[None], k[None], None), {"causal": True}
    bounds = {"max_seqlen_q": 512, "max_seqlen_k": 512}
    yield "attention_varlen_lse", (q, k, k, starts, starts, None), {"causal": True, **bounds}


def _heads() -> Iterator[ModelShape]:
    """A model for each kind of heads, caps, windows and sinks."""
    seen = set()
    for shape in MODELS.values():
        kind = shape.head_dim, shape.softcap, shape.window, shape.sinks
        if kind not in seen:
            seen.add(kind)
            yield shape


def _options(shape: ModelShape) -> dict[str, Any]:
    return {"causal": True, "softcap": shape.softcap, "window": (shape.window, 0 if shape.window >= 0 else -1)}


def _gradients_of_attention(shape: ModelShape) -> Iterator[Call]:
    tokens, dim = 512, shape.head_dim
    q, k, lse = meta(tokens, shape.heads, dim), meta(tokens, shape.kv_heads, dim), meta(shape.heads, tokens, dtype=FP32)
    sinks, starts = meta(shape.heads) if shape.sinks else None, meta(9, dtype=INT32)
    dense: tuple[Tensor | None, ...] = (q[None], q[None], k[None], k[None], q[None], lse[None], sinks, lse[None])
    yield "attention_backward", dense, _options(shape)
    bounds = {"max_seqlen_q": tokens, "max_seqlen_k": tokens}
    tensors = q, q, k, k, q, lse, starts, starts, sinks, None
    yield "attention_varlen_backward", tensors, {**_options(shape), **bounds}


def _paged(shape: ModelShape) -> Iterator[Call]:
    """With the lse, and scales where there are codes; caches of each kind; writes to them."""
    heads, kv_heads, dim = shape.heads, shape.kv_heads, shape.head_dim
    sinks, size = meta(heads) if shape.sinks else None, 64
    for stored in (BF16, FP8, E5M2, INT8):
        cache = meta(100, size, kv_heads, dim, dtype=stored)
        scale = None if stored == BF16 else meta(kv_heads, dtype=FP32)
        for batch, new in BATCHES:
            ends, lengths = (meta(batch + more, dtype=INT32) for more in (1, 0))
            ints = ends, lengths, meta(batch, 64, dtype=INT32)
            paged = meta(batch * new, heads, dim), cache, cache, *ints, sinks, None, scale, scale
            yield "paged_attention_lse", paged, {**_options(shape), "max_seqlen_q": new, "max_seqlen_k": 4096}
        new_keys = meta(512, kv_heads, dim)
        slots = meta(512, dtype=torch.int64)
        yield "write_kv_cache", (new_keys, new_keys, cache, cache.clone(), slots, scale, scale), {}


def _gradients_of_two_widths() -> Iterator[Call]:
    """Where keys are narrower than values, and wider."""
    lse, starts = meta(8, 512, dtype=FP32), meta(9, dtype=INT32)
    for dim, width in ((64, 128), (128, 64)):
        (q, k), (out, v) = ((meta(512, heads, size) for heads in (8, 2)) for size in (dim, width))
        dense = out[None], q[None], k[None], v[None], out[None], lse[None], None, None
        yield "attention_backward", dense, {"causal": True}
        bounds = {"max_seqlen_q": 512, "max_seqlen_k": 512}
        ragged = out, q, k, v, out, lse, starts, starts, None, None
        yield "attention_varlen_backward", ragged, {"softcap": 30.0, **bounds}


def _capped() -> Iterator[Call]:
    """Scores that are capped where no window leaves keys out."""
    starts, bounds = meta(9, dtype=INT32), {"max_seqlen_q": 512, "max_seqlen_k": 512}
    for dim in (32, 64, 128):
        q, k = meta(512, 8, dim), meta(512, 2, dim)
        yield "attention", (q[None], k[None], k[None], None), {"causal": True, "softcap": 30.0}
        yield "attention_lse", (q[None], k[None], k[None], meta(8)), {"softcap": 30.0}
        yield "attention_varlen_lse", (q, k, k, starts, starts, None), {"causal": True, "softcap": 30.0, **bounds}


def _wide_pages() -> Iterator[Call]:
    """Heads over 128 in tiles of 17 to 32 rows, as in the last part of a prefill, and codes without a causal mask."""
    for dim in (160, 256):
        for stored in (BF16, FP8, INT8):
            cache, coded = meta(100, 16, 8, dim, dtype=stored), stored != BF16
            scale = meta(8, dtype=FP32) if coded else None
            new = 64 if coded else 12
            ints = meta(9, dtype=INT32), meta(8, dtype=INT32), meta(8, 64, dtype=INT32)
            tensors = meta(8 * new, 16, dim), cache, cache, *ints, None, None, scale, scale
            for cap in (0.0,) if coded else (0.0, 30.0):
                options = {"causal": not coded, "softcap": cap, "max_seqlen_q": new, "max_seqlen_k": 4096}
                yield "paged_attention", tensors, options


def _codes_of_other_heads() -> Iterator[Call]:
    """Caches of codes whose keys are looked up one by one, with all that a call may ask for and with little."""
    heads, kv_heads, size = 32, 8, 1
    for dims in HEADS:
        for stored in (FP8, INT8) if dims == HEADS[0] else (FP8,):
            scale = meta(kv_heads, dtype=FP32)
            caches = [meta(100, size, kv_heads, dim, dtype=stored) for dim in dims]
            for batch, new in ((1, 1), (64, 1), (8, 8), (8, 512)):
                ends, lengths = (meta(batch + more, dtype=INT32) for more in (1, 0))
                q, table = meta(batch * new, heads, dims[0]), meta(batch, 64, dtype=INT32)
                tensors = q, *caches, ends, lengths, table, meta(heads), None, scale, scale
                bounds = {"max_seqlen_q": new, "max_seqlen_k": 4096, "causal": True}
                yield "paged_attention_lse", tensors, bounds
                yield "paged_attention_lse", tensors, {**bounds, "softcap": 30.0, "window": (128, 0)}
