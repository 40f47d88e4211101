"""The calls to time: for each op, the arguments that a layer of a real model passes to it."""

import math
from typing import Any

import torch
from torch import Tensor

from opmux.bench import quantised_cases
from opmux.bench.data import Arguments, Data, Maker
from opmux.bench.shapes import Shape
from opmux.callpath.op import OPS
from opmux.dtypes import accumulation_dtype


def _rms_norm(data: Data, s: Shape) -> Arguments:
    return Arguments((data.normal(s.tokens, s.hidden), data.gain(s.hidden)), {"eps": 1e-5})


def _rms_norm_backward(data: Data, s: Shape) -> Arguments:
    grad, x = data.normal(s.tokens, s.hidden), data.normal(s.tokens, s.hidden)
    return Arguments((grad, x, data.gain(s.hidden)), {"eps": 1e-5})


def _add_rms_norm(data: Data, s: Shape) -> Arguments:
    x, residual = data.normal(s.tokens, s.hidden), data.normal(s.tokens, s.hidden)
    return Arguments((x, residual, data.gain(s.hidden)), {"eps": 1e-5})


def _add_norm_backward(data: Data, s: Shape) -> Arguments:
    rows = [data.normal(s.tokens, s.hidden) for _ in range(3)]
    return Arguments((*rows, data.gain(s.hidden)), {"eps": 1e-5})


def _layer_norm(data: Data, s: Shape) -> Arguments:
    return Arguments((data.normal(s.tokens, s.hidden), data.gain(s.hidden), data.normal(s.hidden)))


def _add_layer_norm(data: Data, s: Shape) -> Arguments:
    x, residual = data.normal(s.tokens, s.hidden), data.normal(s.tokens, s.hidden)
    return Arguments((x, residual, data.gain(s.hidden), data.normal(s.hidden)))


def _rows(count: int, packed: bool = False) -> Maker:
    """Tensors of a feed-forward layer; ``packed``: the last one holds gate and up side by side."""

    def make(data: Data, s: Shape) -> Arguments:
        widths = [s.intermediate] * (count - 1) + [s.intermediate * (1 + packed)]
        return Arguments(tuple(data.normal(s.tokens, width) for width in widths))

    return make


def _apply_rope(data: Data, s: Shape) -> Arguments:
    q, k = data.normal(s.tokens, s.heads, s.head_dim), data.normal(s.tokens, s.kv_heads, s.head_dim)
    positions = [s.context - s.new + i for _ in range(s.batch) for i in range(s.new)]
    return Arguments((q, k, *data.angles(s.context, s.head_dim), data.ints(positions)), moved=_rope_bytes(q, k, s))


def _rope_bytes(q: Tensor, k: Tensor, s: Shape) -> int:
    """q and k read and written, the angles of each token's position (float32) and its position (int32) read."""
    return 2 * (_bytes(q) + _bytes(k)) + s.tokens * (s.head_dim * 4 + 4)


def _linear(data: Data, s: Shape) -> Arguments:
    return Arguments((data.normal(s.tokens, s.hidden), data.weight(s.intermediate, s.hidden), None))


def _linear_backward(data: Data, s: Shape) -> Arguments:
    grad, x = data.normal(s.tokens, s.intermediate), data.normal(s.tokens, s.hidden)
    return Arguments((grad, x, data.weight(s.intermediate, s.hidden)), {"output_mask": (True, True, False)})


def _visible(s: Shape) -> float:
    """The share of all scores that remain under a causal mask aligned bottom-right."""
    return 1.0 if not s.causal else 1 - (s.new - 1) / (2 * s.context)


def _dense(data: Data, s: Shape) -> tuple[Tensor, Tensor, Tensor]:
    kv = (s.batch, s.context, s.kv_heads, s.head_dim)
    return data.normal(s.batch, s.new, s.heads, s.head_dim), data.normal(*kv), data.normal(*kv)


def _attention(data: Data, s: Shape) -> Arguments:
    return Arguments((*_dense(data, s), None), {"causal": s.causal}, share=_visible(s))


def _attention_backward(data: Data, s: Shape) -> Arguments:
    q, k, v = _dense(data, s)
    out, lse = OPS["attention_lse"].public(q, k, v, causal=s.causal, backend="reference")
    return Arguments(
        (data.normal(*out.shape), q, k, v, out, lse, None, None),
        {"causal": s.causal, "output_mask": (True, True, True, False)},
        share=_visible(s),
    )


def _merge_attention_states(data: Data, s: Shape) -> Arguments:
    halves = [(data.normal(s.batch, s.new, s.heads, s.head_dim), data.lse(s.batch, s.heads, s.new)) for _ in range(2)]
    return Arguments((*halves[0], *halves[1]))


def _merge_attention_states_backward(data: Data, s: Shape) -> Arguments:
    forward = _merge_attention_states(data, s).tensors
    grads = (data.normal(s.batch, s.new, s.heads, s.head_dim), data.lse(s.batch, s.heads, s.new))
    return Arguments((*grads, *forward))


def _attention_flops(s: Shape, factor: int) -> float:
    """The flop count of ``factor`` matrix products over the visible scores."""
    return 2.0 * factor * s.batch * s.heads * s.new * s.context * s.head_dim * _visible(s)


def _ragged(data: Data, s: Shape) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    kv = (s.batch * s.context, s.kv_heads, s.head_dim)
    tensors = (data.normal(s.tokens, s.heads, s.head_dim), data.normal(*kv), data.normal(*kv))
    offsets = (data.offsets(s.batch, s.new), data.offsets(s.batch, s.context))
    return (*tensors, *offsets), {"max_seqlen_q": s.new, "max_seqlen_k": s.context, "causal": s.causal}


def _attention_varlen(data: Data, s: Shape) -> Arguments:
    tensors, options = _ragged(data, s)
    return Arguments((*tensors, None), options, flops=_attention_flops(s, 2))


def _attention_varlen_backward(data: Data, s: Shape) -> Arguments:
    (q, k, v, *offsets), options = _ragged(data, s)
    out, lse = OPS["attention_varlen_lse"].public(q, k, v, *offsets, **options, backend="reference")
    return Arguments(
        (data.normal(*out.shape), q, k, v, out, lse, *offsets, None, None),
        {**options, "output_mask": (True, True, True, False)},
        flops=_attention_flops(s, 5),
    )


def _pages(data: Data, s: Shape) -> tuple[Tensor, Tensor, Tensor]:
    """Two caches and a block table with pages scattered over them."""
    each = math.ceil(s.context / s.page_size)
    order = torch.randperm(s.batch * each, generator=data.generator, device=data.device).to(torch.int32)
    cache = (s.batch * each, s.page_size, s.kv_heads, s.head_dim)
    return data.normal(*cache), data.normal(*cache), order.reshape(s.batch, each)


def _write_kv_cache(data: Data, s: Shape) -> Arguments:
    k, v = (data.normal(s.tokens, s.kv_heads, s.head_dim) for _ in range(2))
    k_cache, v_cache, table = _pages(data, s)
    at = torch.arange(s.context - s.new, s.context, device=data.device)
    slots = table[:, at // s.page_size].to(torch.int64) * s.page_size + at % s.page_size
    moved = 2 * (_bytes(k) + _bytes(v)) + 8 * s.tokens
    return Arguments((k, v, k_cache, v_cache, slots.flatten(), None, None), moved=moved)


def _paged_attention(data: Data, s: Shape) -> Arguments:
    q = data.normal(s.tokens, s.heads, s.head_dim)
    k_cache, v_cache, table = _pages(data, s)
    lengths = data.ints([s.context] * s.batch)
    return Arguments(
        (q, k_cache, v_cache, data.offsets(s.batch, s.new), lengths, table, None, None, None, None),
        {"max_seqlen_q": s.new, "max_seqlen_k": s.context},
        flops=_attention_flops(s, 2),
    )


def _targets(data: Data, tokens: int, vocab: int) -> Tensor:
    return torch.randint(vocab, (tokens,), generator=data.generator, device=data.device)


def _vocab(s: Shape) -> int:
    """About as many classes as Llama 3 has, for its own sizes."""
    return 9 * s.intermediate


def _cross_entropy(data: Data, s: Shape) -> Arguments:
    return Arguments((data.normal(s.tokens, _vocab(s)), _targets(data, s.tokens, _vocab(s))))


def _cross_entropy_backward(data: Data, s: Shape) -> Arguments:
    logits, target = _cross_entropy(data, s).tensors
    assert logits is not None
    lse = torch.logsumexp(logits.to(accumulation_dtype(data.dtype)), -1)
    return Arguments((data.lse(s.tokens), logits, target, lse, None), {"reduction": "none"})


def _fused_cross_entropy(data: Data, s: Shape) -> Arguments:
    weight = data.weight(_vocab(s), s.hidden)
    return Arguments((data.normal(s.tokens, s.hidden), weight, _targets(data, s.tokens, _vocab(s))))


def _fused_cross_entropy_backward(data: Data, s: Shape) -> Arguments:
    tensors = (data.lse(s.tokens), *_fused_cross_entropy(data, s).tensors, None, None)
    return Arguments(tensors, {"reduction": "none"}, flops=6.0 * s.tokens * _vocab(s) * s.hidden)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


MAKERS: dict[str, Maker] = {
    "rms_norm": _rms_norm,
    "rms_norm_backward": _rms_norm_backward,
    "add_rms_norm": _add_rms_norm,
    "add_rms_norm_": _add_rms_norm,
    "add_rms_norm_backward": _add_norm_backward,
    "layer_norm": _layer_norm,
    "layer_norm_backward": lambda data, s: Arguments(_rms_norm_backward(data, s).tensors),
    "add_layer_norm": _add_layer_norm,
    "add_layer_norm_backward": lambda data, s: Arguments(_add_norm_backward(data, s).tensors),
    "silu_and_mul": _rows(1, packed=True),
    "silu_and_mul_backward": _rows(2, packed=True),
    "gelu_and_mul": _rows(1, packed=True),
    "gelu_and_mul_backward": _rows(2, packed=True),
    "silu_mul": _rows(2),
    "silu_mul_backward": _rows(3),
    "gelu_mul": _rows(2),
    "gelu_mul_backward": _rows(3),
    "apply_rope": _apply_rope,
    "apply_rope_": _apply_rope,
    "apply_rope_backward": _apply_rope,
    "linear": _linear,
    "linear_backward": _linear_backward,
    "attention": _attention,
    "attention_lse": _attention,
    "attention_backward": _attention_backward,
    "merge_attention_states": _merge_attention_states,
    "merge_attention_states_backward": _merge_attention_states_backward,
    "attention_varlen": _attention_varlen,
    "attention_varlen_lse": _attention_varlen,
    "attention_varlen_backward": _attention_varlen_backward,
    "write_kv_cache": _write_kv_cache,
    "paged_attention": _paged_attention,
    "paged_attention_lse": _paged_attention,
    "cross_entropy": _cross_entropy,
    "cross_entropy_lse": _cross_entropy,
    "cross_entropy_backward": _cross_entropy_backward,
    "fused_linear_cross_entropy": _fused_cross_entropy,
    "fused_linear_cross_entropy_gradients": lambda data, s: Arguments(
        _fused_cross_entropy(data, s).tensors, {"reduction": "sum"}
    ),
    "fused_linear_cross_entropy_backward": _fused_cross_entropy_backward,
    **quantised_cases.MAKERS,
}
"""Every op that has cases; a test compares it with the core's ops."""
