"""The ops as a PyTorch user would write them: the baseline that a backend has to beat.

Each takes the op's own arguments. They are written for the benchmark's cases and check nothing: an op is defined by
its reference.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from opmux.dtypes import accumulation_dtype

Formulation = Callable[..., Any]


def rms_norm(x: Tensor, weight: Tensor, *, eps: float, weight_offset: float) -> Tensor:
    """PyTorch's own norm."""
    return F.rms_norm(x, weight.shape, weight + weight_offset if weight_offset else weight, eps)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, weight_offset: float
) -> tuple[Tensor, Tensor]:
    """A sum and a norm."""
    total = x + residual
    return rms_norm(total, weight, eps=eps, weight_offset=weight_offset), total


def add_rms_norm_(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, weight_offset: float) -> None:
    """A sum in place, a norm and a copy."""
    residual.add_(x)
    x.copy_(rms_norm(residual, weight, eps=eps, weight_offset=weight_offset))


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, eps: float) -> Tensor:
    """PyTorch's own norm."""
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None = None, *, eps: float
) -> tuple[Tensor, Tensor]:
    """A sum and a norm."""
    total = x + residual
    return layer_norm(total, weight, bias, eps=eps), total


def silu_and_mul(x: Tensor) -> Tensor:
    """SiLU and product of the halves of each row."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def gelu_and_mul(x: Tensor, *, approximate: str) -> Tensor:
    """GELU and product of the halves of each row."""
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(gate, approximate=approximate) * up


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """SiLU and product."""
    return F.silu(gate) * up


def gelu_mul(gate: Tensor, up: Tensor, *, approximate: str) -> Tensor:
    """GELU and product."""
    return F.gelu(gate, approximate=approximate) * up


def apply_rope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, *, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As Hugging Face's models write it: halves rotated, over whole heads."""
    cos, sin = (torch.cat((t[positions], t[positions]), -1)[..., None, :].to(q.dtype) for t in (cos, sin))

    def rotated(x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-b, a), -1) * sin

    return rotated(q), rotated(k)


def apply_rope_(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, *, interleaved: bool) -> None:
    """The same, then copies."""
    rotated = apply_rope(q, k, cos, sin, positions, interleaved=interleaved)
    q.copy_(rotated[0])
    k.copy_(rotated[1])


def apply_rope_backward(
    grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, *, interleaved: bool, **_: Any
) -> tuple[Tensor, Tensor]:
    """The rotation back."""
    return apply_rope(grad_q, grad_k, cos, -sin, positions, interleaved=interleaved)


def linear(x: Tensor, w: Tensor, bias: Tensor | None, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """PyTorch's own linear: cuBLAS, hipBLAS or oneDNN."""
    if out_dtype in (None, x.dtype):
        return F.linear(x, w, bias)
    return F.linear(x.to(out_dtype), w.to(out_dtype), None if bias is None else bias.to(out_dtype))


def linear_backward(grad: Tensor, x: Tensor, w: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
    """The two products of its gradient."""
    return grad @ w, grad.T @ x


def attention(q: Tensor, k: Tensor, v: Tensor, sinks: None = None, *, causal: bool, **_: Any) -> Tensor:
    """PyTorch's own attention, with whichever kernel it chooses."""
    seq_q, seq_k = q.shape[1], k.shape[1]
    mask = None
    if causal and 1 < seq_q < seq_k:  # PyTorch's is_causal is aligned top-left
        mask = torch.ones(seq_q, seq_k, dtype=torch.bool, device=q.device).tril(seq_k - seq_q)
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    square = causal and seq_q == seq_k
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=square, enable_gqa=True)
    return out.transpose(1, 2)


def attention_lse(q: Tensor, k: Tensor, v: Tensor, sinks: None = None, *, causal: bool, **_: Any) -> tuple[
    Tensor, Tensor
]:  # fmt: skip
    """Scores, log-sum-exp, softmax and product: PyTorch's own attention does not return the log-sum-exp."""
    groups = q.shape[2] // k.shape[2]
    q, k, v = q.transpose(1, 2), *(t.transpose(1, 2).repeat_interleave(groups, 1) for t in (k, v))
    scores = (q @ k.transpose(-1, -2)).to(torch.promote_types(q.dtype, torch.float32)) / math.sqrt(q.shape[-1])
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril(k.shape[2] - q.shape[2])
        scores = scores.masked_fill(~seen, -math.inf)
    return (scores.softmax(-1).to(v.dtype) @ v).transpose(1, 2), scores.logsumexp(-1)


def merge_attention_states(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Two results, weighted by their log-sum-exps."""
    lse = torch.logaddexp(lse_a, lse_b)
    weight_a, weight_b = ((part - lse).exp().transpose(-1, -2)[..., None] for part in (lse_a, lse_b))
    return (out_a * weight_a + out_b * weight_b).to(out_a.dtype), lse


def each_sequence(offsets_q: Sequence[int], offsets_k: Sequence[int], attend: Formulation) -> Formulation:
    """Attention within each sequence of a ragged batch, one after another; the offsets are known on the host."""

    def run(q: Tensor, k: Tensor, v: Tensor, *_: Any, causal: bool, **__: Any) -> Any:
        results = [
            attend(q[None, a:b], k[None, c:d], v[None, c:d], causal=causal)
            for (a, b), (c, d) in zip(pairwise(offsets_q), pairwise(offsets_k), strict=True)
        ]
        if isinstance(results[0], Tensor):
            return torch.cat(results, 1)[0]
        outs, lses = zip(*results, strict=True)
        return torch.cat(outs, 1)[0], torch.cat(lses, 2)[0]

    return run


def each_page_list(offsets_q: Sequence[int], lengths: Sequence[int], attend: Formulation) -> Formulation:
    """Pages gathered into keys and values, then attention within each sequence."""

    def run(q: Tensor, k_cache: Tensor, v_cache: Tensor, _: Tensor, __: Tensor, table: Tensor, *___: Any,
            causal: bool, **____: Any) -> Any:  # fmt: skip
        results = []
        for (a, b), length, pages in zip(pairwise(offsets_q), lengths, table, strict=True):
            k, v = (cache[pages].flatten(0, 1)[None, :length] for cache in (k_cache, v_cache))
            results.append(attend(q[None, a:b], k, v, causal=causal))
        if isinstance(results[0], Tensor):
            return torch.cat(results, 1)[0]
        outs, lses = zip(*results, strict=True)
        return torch.cat(outs, 1)[0], torch.cat(lses, 2)[0]

    return run


def write_kv_cache(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor, *scales: None, layout: str
) -> None:
    """Rows copied by index, to caches of real numbers."""
    k_cache.view(-1, *k_cache.shape[2:]).index_copy_(0, slot_mapping, k)
    v_cache.view(-1, *v_cache.shape[2:]).index_copy_(0, slot_mapping, v)


def quantize(x: Tensor, *, dtype: torch.dtype, block: tuple[int, int], scale_major: str) -> tuple[Tensor, Tensor]:
    """Largest magnitude, scale, quotient, conversion, in float32; for blocks of one row."""
    return _quantized(x.float(), dtype, block)


def _quantized(x: Tensor, dtype: torch.dtype, block: tuple[int, int]) -> tuple[Tensor, Tensor]:
    blocks = x.reshape(*x.shape[:-1], -1, block[1])
    largest = torch.finfo(dtype).max if dtype.is_floating_point else 127.0
    scale = blocks.abs().amax(-1) / largest
    scaled = (blocks / scale[..., None]).clamp(-largest, largest)
    return (scaled if dtype.is_floating_point else scaled.round()).to(dtype).flatten(-2), scale


def static_quantize(x: Tensor, scale: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Quotient and conversion, in float32; for blocks of 1x128."""
    largest = torch.finfo(dtype).max
    blocks = x.float().reshape(*x.shape[:-1], -1, 128) / scale[..., None]
    return blocks.clamp(-largest, largest).to(dtype).flatten(-2)


def dequantize(q: Tensor, scale: Tensor, *, out_dtype: torch.dtype) -> Tensor:
    """Product and conversion; for blocks of 1x128."""
    return (q.float().reshape(*q.shape[:-1], -1, 128) * scale[..., None]).to(out_dtype).flatten(-2)


def convert_scale(scale: Tensor, *, dtype: torch.dtype, scale_major: str) -> Tensor:
    """A transposed copy."""
    return scale.to(dtype).mT.contiguous().mT


def pack_scale(scale: Tensor, *, scale_major: str) -> Tensor:
    """Exponents, rounded up, as bytes; four of them as an integer; a transposed copy."""
    codes = (torch.frexp(scale).exponent + 127).to(torch.uint8)
    return F.pad(codes, (0, -codes.shape[-1] % 4)).view(torch.int32).mT.contiguous().mT


def unpack_scale(packed: Tensor, *, k_blocks: int, dtype: torch.dtype, scale_major: str) -> Tensor:
    """The bytes of each integer as e8m0, converted; a transposed copy."""
    codes = packed.contiguous().view(torch.float8_e8m0fnu)[..., :k_blocks]
    return codes.to(dtype).mT.contiguous().mT


def convert_fp8(q: Tensor, scale: Tensor, *, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Conversion of the halves, by way of float32."""
    return (0.5 * q.float()).to(dtype), 2.0 * scale


def rms_norm_quantize(
    x: Tensor, weight: Tensor, *, dtype: torch.dtype, block: tuple[int, int], scale_major: str, eps: float,
    weight_offset: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """A norm in float32, and `quantize`."""
    return _quantized(F.rms_norm(x.float(), weight.shape, weight.float() + weight_offset, eps), dtype, block)


def add_rms_norm_quantize(
    x: Tensor, residual: Tensor, weight: Tensor, *, dtype: torch.dtype, block: tuple[int, int], scale_major: str,
    eps: float, weight_offset: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """A sum, a norm in float32, and `quantize`."""
    total = x + residual
    normed = F.rms_norm(total.float(), weight.shape, weight.float() + weight_offset, eps)
    return *_quantized(normed, dtype, block), total


def silu_and_mul_quantize(
    x: Tensor, *, dtype: torch.dtype, block: tuple[int, int], scale_major: str
) -> tuple[Tensor, Tensor]:
    """SiLU and product of the halves of each row in float32, and `quantize`."""
    gate, up = x.float().chunk(2, dim=-1)
    return _quantized(F.silu(gate) * up, dtype, block)


def scaled_linear(
    x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, bias: None, *, out_dtype: torch.dtype
) -> Tensor:
    """Both sides multiplied by their scales, then a product; for blocks of 1x128 with 128x128."""
    rows = w_scale.repeat_interleave(128, 0)[: w.shape[0]]
    left = dequantize(x, x_scale, out_dtype=out_dtype)
    return left @ dequantize(w, rows, out_dtype=out_dtype).T


def scaled_linear_accumulate(out: Tensor, x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor) -> None:
    """The product, and a sum."""
    out += scaled_linear(x, w, x_scale, w_scale, None, out_dtype=out.dtype)


def grouped_linear(x: Tensor, w: Tensor, group_offsets: Tensor, group_sizes: None) -> Tensor:
    """PyTorch's own grouped product."""
    return F.grouped_mm(x, w.mT, offs=group_offsets[1:])


def grouped_linear_backward(
    grad: Tensor, x: Tensor, w: Tensor, group_offsets: Tensor, group_sizes: None, **_: Any
) -> tuple[Tensor, Tensor]:
    """A grouped product for each gradient."""
    ends = group_offsets[1:]
    return F.grouped_mm(grad, w, offs=ends), F.grouped_mm(grad.T, x, offs=ends)


def grouped_weight_grad(out: Tensor, dy: Tensor, x: Tensor, group_offsets: Tensor, group_sizes: None) -> None:
    """A grouped product, and a sum."""
    out += F.grouped_mm(dy.T, x, offs=group_offsets[1:])


def masked_grouped_linear(x: Tensor, w: Tensor, masked_m: Tensor, *, expected_m: int) -> Tensor:
    """A batched product of all rows, those that do not count too."""
    return x @ w.mT


def scaled_grouped_linear(
    x: Tensor, w: Tensor, group_offsets: Tensor, x_scale: Tensor, w_scale: Tensor, group_sizes: None,
    *, out_dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """Both sides multiplied by their scales, then a grouped product; for blocks of 1x128 with 128x128."""
    rows = w_scale.repeat_interleave(128, 1)[:, : w.shape[1]]
    left = dequantize(x, x_scale, out_dtype=out_dtype)
    return grouped_linear(left, dequantize(w, rows, out_dtype=out_dtype), group_offsets, None)


def scaled_grouped_weight_grad(
    out: Tensor, dy: Tensor, x: Tensor, group_offsets: Tensor, dy_scale: Tensor, x_scale: Tensor, group_sizes: None
) -> None:
    """Both sides multiplied by their scales, then a grouped product, of bfloat16 on a GPU, and a sum."""
    dtype = torch.bfloat16 if dy.is_cuda else torch.float32
    left, right = (
        (codes.float() * scale.repeat_interleave(128, 0)[: len(codes)]).to(dtype).contiguous()
        for codes, scale in ((dy, dy_scale), (x, x_scale))
    )
    out += F.grouped_mm(left.T, right, offs=group_offsets[1:])


def scaled_masked_grouped_linear(
    x: Tensor, w: Tensor, masked_m: Tensor, x_scale: Tensor, w_scale: Tensor, *, expected_m: int, out_dtype: torch.dtype
) -> Tensor:
    """Both sides multiplied by their scales, then a batched product; for blocks of 1x128 with 128x128."""
    rows = w_scale.repeat_interleave(128, 1)[:, : w.shape[1]]
    return dequantize(x, x_scale, out_dtype=out_dtype) @ dequantize(w, rows, out_dtype=out_dtype).mT


def cross_entropy(logits: Tensor, target: Tensor, *, reduction: str, **_: Any) -> Tensor:
    """The loss of the logits in float32, as models compute it."""
    return F.cross_entropy(logits.to(accumulation_dtype(logits.dtype)), target, reduction=reduction)


def cross_entropy_lse(logits: Tensor, target: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """The same with the log-sum-exp."""
    return cross_entropy(logits, target, **options), torch.logsumexp(logits.to(accumulation_dtype(logits.dtype)), -1)


def fused_linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor, *, reduction: str, **_: Any) -> Tensor:
    """A linear layer and the loss of its logits, which are whole in memory."""
    return cross_entropy(F.linear(x, weight), target, reduction=reduction)


def fused_linear_cross_entropy_gradients(
    x: Tensor, weight: Tensor, target: Tensor, **options: Any
) -> tuple[Tensor, ...]:
    """The loss, and its gradients by autograd."""
    with torch.enable_grad():
        leaves = x.detach().requires_grad_(), weight.detach().requires_grad_()
        loss = fused_linear_cross_entropy(leaves[0], leaves[1], target, **options)
        return loss.detach(), *torch.autograd.grad(loss, leaves)
