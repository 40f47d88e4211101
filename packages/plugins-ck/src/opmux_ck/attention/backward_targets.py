"""What the core calls for the gradients of attention."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from opmux_ck.attention.backward_configs import BackwardConfig
from opmux_ck.attention.backward_instances import AttentionBackward, OutputProduct
from opmux_ck.attention.targets import MOST_WORKGROUPS, Scoring, addressable, scoring_of
from opmux_ck.building.instances import Instance
from opmux_ck.dtypes import SHORT
from opmux_ck.launching import MOST_BYTES, launch

Gradients = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class BackwardCall:
    """The tensors of a call, which end in tokens, heads and elements.

    Attributes:
        grad_out: the gradient of out.
        q: queries.
        k: keys.
        v: values.
        out: the forward's output.
        lse: the forward's lse.
        grad_lse: its gradient, or None.
        starts: the first queries and the first keys of sequences, or None for a dense batch.
        longest: the most queries and keys of a sequence.
        scoring: what became of scores.
    """

    grad_out: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor
    grad_lse: Tensor | None
    starts: tuple[Tensor, Tensor] | None
    longest: tuple[int, int]
    scoring: Scoring


def attention_backward(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, sinks: Tensor | None,
    grad_lse: Tensor | None, *,
    scale: float | None, causal: bool, window: tuple[int, int], softcap: float, output_mask: tuple[bool, ...],
    config: BackwardConfig,
) -> Gradients:  # fmt: skip
    """The op `attention_backward`, without sinks and cap."""
    scoring, longest = scoring_of(scale, softcap, causal, window), (q.shape[1], k.shape[1])
    call = BackwardCall(grad_out, q, k, v, out, lse, grad_lse, None, longest, scoring)
    return _gradients(call, output_mask, config)


def attention_varlen_backward(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor, sinks: Tensor | None, grad_lse: Tensor | None, *,
    max_seqlen_q: int, max_seqlen_k: int, scale: float | None, causal: bool, window: tuple[int, int], softcap: float,
    output_mask: tuple[bool, ...], config: BackwardConfig,
) -> Gradients:  # fmt: skip
    """The op `attention_varlen_backward`, without sinks and cap."""
    starts, longest = (cu_seqlens_q.contiguous(), cu_seqlens_k.contiguous()), (max_seqlen_q, max_seqlen_k)
    scoring = scoring_of(scale, softcap, causal, window)
    call = BackwardCall(grad_out, q, k, v, out, lse, grad_lse, starts, longest, scoring)
    return _gradients(call, output_mask, config)


def backward_instances(
    dtype: torch.dtype, head_dim: int, group: int, scoring: Scoring, config: BackwardConfig, *,
    ragged: bool,
) -> Iterator[Instance]:  # fmt: skip
    """The instances that a call launches, where ``group`` heads share keys."""
    x = SHORT[dtype]
    yield OutputProduct(x, head_dim)
    yield AttentionBackward(x, head_dim, config, ragged, scoring.masked, group > 1)


def _gradients(call: BackwardCall, output_mask: tuple[bool, ...], config: BackwardConfig) -> Gradients:
    """All gradients, of which those that nobody wants are empty."""
    wanted = output_mask[:3]
    if any(wanted) and call.q.numel() and call.k.numel() and min(call.longest):
        grads = _computed(call, config)
    else:
        grads = tuple(torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (call.q, call.k, call.v))
    grad_q, grad_k, grad_v = (
        grad if want else torch.empty(0, dtype=grad.dtype, device=grad.device)
        for grad, want in zip(grads, wanted, strict=True)
    )
    return grad_q, grad_k, grad_v, torch.empty(0, dtype=call.q.dtype, device=call.q.device)


def _computed(call: BackwardCall, config: BackwardConfig) -> tuple[Tensor, ...]:
    """The gradients of q, k and v; 0 for tokens of no sequence."""
    group = call.q.shape[-2] // call.k.shape[-2]
    product, instance = backward_instances(
        call.q.dtype, call.q.shape[-1], group, call.scoring, config, ragged=call.starts is not None
    )
    assert isinstance(instance, AttentionBackward)
    shift = _shift(call, product)
    device = call.q.device
    most_queries, most_keys = call.longest
    grad_q = zeros(call.q.shape, torch.float32, device, most_queries)
    dtype = torch.float32 if group > 1 else call.k.dtype
    grad_k, grad_v = (
        zeros((*x.shape[:-2], call.q.shape[-2], x.shape[-1]), dtype, device, most_keys) for x in (call.k, call.v)
    )
    _launch(call, instance, shift, grad_q, grad_k, grad_v)
    of_q = grad_q.to(call.q.dtype).contiguous()
    if group == 1:
        return of_q, grad_k.contiguous(), grad_v.contiguous()
    of_k, of_v = (
        grad.unflatten(-2, (x.shape[-2], group)).sum(-2).to(x.dtype).contiguous()
        for grad, x in ((grad_k, call.k), (grad_v, call.v))
    )
    return of_q, of_k, of_v


def apart(tensor: Tensor) -> Tensor:
    """A tensor whose tokens do not overlap; copied where they do, as those of an expanded one.

    CK takes what lies past the last token for 0, by the bounds of the memory that it reads: tokens must end there.
    """
    return tensor.contiguous() if tensor.stride(-3) < tensor.shape[-1] else tensor


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device, tokens: int) -> Tensor:
    """Zeros of which a launch can address each head; heads come first where they would lie too far apart."""
    if tokens * shape[-2] * shape[-1] * dtype.itemsize > MOST_BYTES:
        turned = (*shape[:-3], shape[-2], shape[-3], shape[-1])
        return torch.zeros(turned, dtype=dtype, device=device).transpose(-3, -2)
    return torch.zeros(tuple(shape), dtype=dtype, device=device)


def _shift(call: BackwardCall, instance: Instance) -> Tensor:
    """The product of out with its gradient, by rows, less the gradient of the lse, in lse's layout."""
    out, grad_out = (tensor if tensor.dim() == 4 else tensor[None] for tensor in (call.out, call.grad_out))
    batch, tokens, heads, _ = out.shape
    out, grad_out = addressable(out, tokens), addressable(grad_out, tokens)
    product = torch.empty((batch, heads, tokens), dtype=torch.float32, device=out.device)
    for first in range(0, batch, MOST_WORKGROUPS):
        part = slice(first, first + MOST_WORKGROUPS)
        launch(
            instance,
            (-(-tokens // instance.threads), heads, len(out[part])),
            out[part],
            grad_out[part],
            product[part],
            tokens,
            *(out.stride(dim) for dim in (1, 2, 0)),
            *(grad_out.stride(dim) for dim in (1, 2, 0)),
            product.stride(1),
            product.stride(0),
        )
    shift = product.reshape(call.lse.shape)
    return shift if call.grad_lse is None else shift - call.grad_lse


def _launch(
    call: BackwardCall, instance: AttentionBackward, shift: Tensor, grad_q: Tensor, grad_k: Tensor, grad_v: Tensor
) -> None:
    """Launch an instance, which adds to ``grad_q``."""
    most_queries, most_keys = call.longest
    heads, head_dim = call.q.shape[-2:]
    tensors = [
        addressable(apart(tensor), most)
        for tensor, most in (
            (call.q, most_queries), (call.k, most_keys), (call.v, most_keys), (call.grad_out, most_queries)
        )
    ]  # fmt: skip
    lse, shift = call.lse.contiguous(), shift.contiguous()
    ragged = call.starts is not None
    batch = len(call.starts[0]) - 1 if call.starts is not None else len(call.q)
    scale = head_dim**-0.5 if call.scoring.scale is None else call.scoring.scale
    strided = (*tensors, lse, grad_q, grad_k, grad_v)
    for first in range(0, batch, MOST_WORKGROUPS):
        last = min(first + MOST_WORKGROUPS, batch)
        part = slice(None) if ragged else slice(first, last)
        starts_q, starts_k = (lse, lse) if call.starts is None else (one[first:] for one in call.starts)
        launch(
            instance,
            (-(-most_keys // instance.config.keys), heads, last - first),
            *(tensor[part] for tensor in (*tensors, lse, shift, grad_q, grad_k, grad_v)),
            starts_q,
            starts_k,
            scale,
            scale * math.log2(math.e),
            most_queries,
            most_keys,
            heads,
            heads // call.k.shape[-2],
            *(tensor.stride(-3) for tensor in (*tensors, grad_q, grad_k, grad_v)),
            *(tensor.stride(-2) for tensor in strided),
            *(0 if ragged else tensor.stride(0) for tensor in strided),
            *call.scoring.seen,
        )
