"""Kernels that compute the same thing in another way must pass: the bounds are no tighter than arithmetic is."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import opmux
from opmux.plugin import Dtype

Hold = Callable[..., dict[str, Any]]

acc = opmux.dtypes.accumulation_dtype


def assert_passes(report: dict[str, Any]) -> None:
    told = "\n".join(f"{f['case']}: {f['check']}: {f['message']}" for f in report["failures"][:5])
    assert report["failures"] == [], f"{len(report['failures'])} failures\n{told}"


# Sums over the last dim, in orders that a reference would not choose.


def one_by_one(x: Tensor) -> Tensor:
    total = x.new_zeros(x.shape[:-1])
    for column in x.unbind(-1):
        total = total + column
    return total


def reversed_one_by_one(x: Tensor) -> Tensor:
    return one_by_one(x.flip(-1))


def tree(x: Tensor) -> Tensor:
    while x.shape[-1] > 1:
        half = -(-x.shape[-1] // 2)
        padded = torch.nn.functional.pad(x, (0, 2 * half - x.shape[-1]))
        x = padded[..., :half] + padded[..., half:]
    return x.sum(-1)


def chunked(x: Tensor) -> Tensor:
    return one_by_one(torch.stack([part.sum(-1) for part in x.split(48, -1)], -1)) if x.shape[-1] else x.sum(-1)


SUMS = [one_by_one, reversed_one_by_one, tree, chunked]


@pytest.mark.parametrize("total", SUMS)
def test_rms_norm_summed_in_another_order(hold: Hold, total: Callable[[Tensor], Tensor]) -> None:
    def rms_norm(x: Tensor, weight: Tensor, *, eps: float, weight_offset: float) -> Tensor:
        wide = torch.float64 if torch.float64 in (x.dtype, weight.dtype) else torch.float32
        row = x.to(wide)
        mean = total(row * row).unsqueeze(-1) / max(1, x.shape[-1])
        return (row / torch.sqrt(mean + eps) * (weight.to(wide) + weight_offset)).to(x.dtype).contiguous()

    assert_passes(hold("rms_norm", rms_norm, deterministic=True))


def test_layer_norm_in_one_pass(hold: Hold) -> None:
    def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float) -> Tensor:
        wide = torch.float64 if torch.float64 in (x.dtype, weight.dtype) else torch.float32
        row, count = x.to(wide), max(1, x.shape[-1])
        mean = row.sum(-1, keepdim=True) / count
        variance = (row.square().sum(-1, keepdim=True) / count - mean.square()).clamp_min(0.0)
        variance = torch.where(mean.isfinite(), variance, math.nan)
        y = (row - mean) * torch.rsqrt(variance + eps) * weight.to(wide)
        return (y if bias is None else y + bias.to(wide)).to(x.dtype).contiguous()

    assert_passes(hold("layer_norm", layer_norm))


@pytest.mark.parametrize("total", [one_by_one, tree, chunked])
def test_linear_summed_in_another_order(hold: Hold, total: Callable[[Tensor], Tensor]) -> None:
    def linear(x: Tensor, w: Tensor, bias: Tensor | None, *, out_dtype: torch.dtype | None) -> Tensor:
        wide = acc(x.dtype)
        products = x.to(wide).unsqueeze(-2) * w.to(wide)
        out = total(products) if x.shape[-1] else products.sum(-1)
        return (out if bias is None else out + bias.to(wide)).to(out_dtype or x.dtype).contiguous()

    assert_passes(hold("linear", linear))


def test_linear_split_along_k_in_float32(hold: Hold) -> None:
    def linear(x: Tensor, w: Tensor, bias: Tensor | None, *, out_dtype: torch.dtype | None) -> Tensor:
        wide = acc(x.dtype)
        parts = zip(x.to(wide).split(56, -1), w.to(wide).split(56, -1), strict=True)
        out = torch.zeros((*x.shape[:-1], w.shape[0]), dtype=wide)
        for some, weights in parts:
            out = out + some @ weights.T
        return (out if bias is None else out + bias.to(wide)).to(out_dtype or x.dtype).contiguous()

    assert_passes(hold("linear", linear, deterministic=True, capturable=True))


def test_activations_as_kernels_write_them(hold: Hold) -> None:
    def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
        g = gate.to(acc(gate.dtype))
        return (g / (1 + torch.exp2(-g * math.log2(math.e))) * up.to(g.dtype)).to(gate.dtype).contiguous()

    def gelu_and_mul(x: Tensor, *, approximate: str) -> Tensor:
        gate, up = x.to(acc(x.dtype)).chunk(2, -1)
        if approximate == "tanh":
            value = 0.5 * gate * (1 + torch.tanh(0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)))
        else:
            value = 0.5 * gate * (1 + torch.erf(gate * 0.7071067811865476))
        return (value * up).to(x.dtype).contiguous()

    assert_passes(hold("silu_mul", silu_mul))
    assert_passes(hold("gelu_and_mul", gelu_and_mul))


def allowed(queries: int, keys: int, causal: bool, window: tuple[int, int]) -> Tensor:
    distance = torch.arange(keys) - torch.arange(queries).unsqueeze(1) - (keys - queries)
    fine = torch.ones((queries, keys), dtype=torch.bool)
    if causal:
        fine &= distance <= 0
    if window[0] != -1:
        fine &= distance >= -window[0]
    if window[1] != -1:
        fine &= distance <= window[1]
    return fine


def dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    *,
    scale: float | None,
    causal: bool,
    window: tuple[int, int],
    softcap: float,
    kept_in: torch.dtype | None,
    normed: bool,
) -> tuple[Tensor, Tensor]:
    """Attention with the whole matrix of probabilities, which are kept in a 16-bit dtype where the inputs are."""
    wide, groups = acc(q.dtype), q.shape[2] // k.shape[2]
    q_, k_, v_ = (t.to(wide).transpose(1, 2) for t in (q, k, v))
    k_, v_ = (t.repeat_interleave(groups, 1) for t in (k_, v_))
    factor = 1 / math.sqrt(max(1, q.shape[-1])) if scale is None else scale
    scores = q_ @ k_.mT * factor
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    mask = allowed(q.shape[1], k.shape[1], causal, window)
    scores = scores.masked_fill(~mask, -math.inf)
    sink = scores.new_full((1, q.shape[2], 1, 1), -math.inf) if sinks is None else sinks.to(wide).reshape(1, -1, 1, 1)
    top = torch.cat((scores, sink.expand(*scores.shape[:3], 1)), -1).amax(-1, keepdim=True)
    top = torch.where(top == -math.inf, 0.0, top)
    p = torch.exp(scores - top)
    total = p.sum(-1, keepdim=True) + torch.exp(sink - top)
    divisor = torch.where(total == 0, 1.0, total)
    lse = (top + torch.log(total)).squeeze(-1)
    if normed:
        p = p / divisor
    if kept_in is not None and q.dtype.itemsize == 2:
        p = p.to(kept_in).to(wide)
    # A masked key does not matter, NaN or not; a product by zero would let it.
    out = p @ torch.where(v_.isfinite(), v_, 0.0)
    for value in (math.nan, math.inf, -math.inf):
        there = v_.isnan() if math.isnan(value) else v_ == value
        if bool(there.any()):
            out = torch.where((mask.to(wide) @ there.to(wide)) > 0, value, out)
    out = out if normed else out / divisor
    return out.transpose(1, 2).to(q.dtype).contiguous(), lse.contiguous()


@pytest.mark.parametrize("normed", [False, True], ids=["normed after", "normed before"])
@pytest.mark.parametrize("op", ["attention", "attention_lse"])
def test_attention_that_keeps_probabilities_in_bfloat16(hold: Hold, op: str, normed: bool) -> None:
    def attention(*tensors: Any, **options: Any) -> Any:
        out, lse = dense(*tensors, **options, kept_in=torch.bfloat16, normed=normed)
        return out if op == "attention" else (out, lse)

    report = hold(op, attention, deterministic=True)
    assert_passes(report)
    assert report["max_error"]["element"] > 0.25  # the rounding is there, and the bound is made for it


def test_attention_by_online_softmax_in_small_blocks(hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    from opmux.ops import _blockwise

    def attention(*tensors: Any, **options: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(_blockwise, "BLOCK_SIDES", {"cpu": (12, 12), "cuda": (12, 12)})
            return opmux.attention.reference(*tensors, **options)

    assert_passes(hold("attention", attention))


def test_attention_backward_with_probabilities_in_bfloat16(hold: Hold) -> None:
    def backward(
        grad_out: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        sinks: Tensor | None,
        grad_lse: Tensor | None,
        *,
        output_mask: tuple[bool, ...],
        **options: Any,
    ) -> tuple[Tensor, ...]:
        """The formulas of flash attention with the whole matrices, P and dS in bfloat16 before they are multiplied."""
        narrow = torch.bfloat16 if q.dtype.itemsize == 2 else q.dtype
        wide, groups = acc(q.dtype), q.shape[2] // k.shape[2]
        factor = 1 / math.sqrt(max(1, q.shape[-1])) if options["scale"] is None else options["scale"]
        q_, k_, v_, o_, g_ = (t.to(wide).transpose(1, 2) for t in (q, k, v, out, grad_out))
        k_, v_ = (t.repeat_interleave(groups, 1) for t in (k_, v_))
        scores = q_ @ k_.mT * factor
        slope = torch.ones_like(scores)
        if options["softcap"]:
            tanh = torch.tanh(scores / options["softcap"])
            scores, slope = options["softcap"] * tanh, 1 - tanh.square()
        mask = allowed(q.shape[1], k.shape[1], options["causal"], options["window"])
        base = torch.where(lse == -math.inf, 0.0, lse).unsqueeze(-1)
        p = torch.exp(scores - base).masked_fill(~mask, 0.0)
        shift = -(g_ * o_).sum(-1, keepdim=True)
        if grad_lse is not None:
            shift = shift + grad_lse.unsqueeze(-1)
        ds = (p * (g_ @ v_.mT + shift) * slope).masked_fill(~mask, 0.0)
        p16, ds16 = p.to(narrow).to(wide), ds.to(narrow).to(wide)

        def shared(x: Tensor) -> Tensor:
            return x.reshape(x.shape[0], k.shape[2], groups, *x.shape[2:]).sum(2)

        grads = [ds16 @ k_ * factor, shared(ds16.mT @ q_) * factor, shared(p16.mT @ g_)]
        found = [g.transpose(1, 2).to(q.dtype).contiguous() for g in grads]
        of_sinks = q.new_empty(0)
        if sinks is not None:
            of_sinks = (torch.exp(sinks.to(wide).reshape(1, -1, 1, 1) - base) * shift).sum((0, 2, 3)).to(sinks.dtype)
        found.append(of_sinks)
        return tuple(f if wanted else f.new_empty(0) for f, wanted in zip(found, output_mask, strict=True))

    report = hold("attention_backward", backward)
    # A NaN in a masked place would be let through by these products: what is not finite is another test's matter.
    kept = [f for f in report["failures"] if f["check"] != "NaN and Inf"]
    assert_passes({**report, "failures": kept})


def test_quantize_by_the_reciprocal(hold: Hold) -> None:
    def quantize(x: Tensor, *, dtype: torch.dtype, block: tuple[int, int], scale_major: str) -> tuple[Tensor, Tensor]:
        _, scale = opmux.quantize.reference(x, dtype=dtype, block=block, scale_major=scale_major)
        wide = acc(x.dtype)
        spread = scale.to(wide)
        for dim, length in zip((-2, -1), block, strict=True):
            size = x.shape[dim]
            spread = spread.repeat_interleave(size if length == -1 else length, dim).narrow(dim, 0, size)
        scaled = x.to(wide) * spread.reciprocal()
        if dtype == torch.int8:
            return scaled.nan_to_num(0.0).round().clamp(-127, 127).to(dtype).contiguous(), scale
        largest = torch.finfo(dtype).max
        return scaled.clamp(-largest, largest).to(dtype).contiguous(), scale

    assert_passes(hold("quantize", quantize))


def added_in_fourteen_bits(total: Tensor, terms: Tensor) -> Tensor:
    """``total + terms.sum(-1)``, every number cut off at 2**-13 of the largest one's power of two."""
    every = torch.cat((total.unsqueeze(-1), terms), -1)
    _, exponent = torch.frexp(every.abs().amax(-1, keepdim=True))
    step = torch.ldexp(torch.ones_like(total).unsqueeze(-1), exponent - 1 - 13)
    cut = torch.trunc(every / step) * step
    return torch.where(every.isfinite().all(-1), cut.sum(-1), every.sum(-1))


def test_a_sum_of_products_that_cancel_may_be_off_by_a_rounding(hold: Hold) -> None:
    """Where the terms of an accumulating product cancel exactly, the reference leaves the element as it is."""

    def scaled_linear_accumulate(out: Tensor, x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor) -> None:
        zero = (x.float().abs() @ w.float().abs().T) == 0
        opmux.scaled_linear_accumulate.reference(out, x, w, x_scale, w_scale)
        out.copy_(torch.where(zero, out, torch.nextafter(out, torch.full_like(out, torch.inf))))

    assert_passes(hold("scaled_linear_accumulate", scaled_linear_accumulate))


def test_sums_of_8_bit_floats_that_float32_takes_over_every_128(hold: Hold) -> None:
    """Hopper's matrix units keep 14 bits of the largest term of an addition: with promotion that is enough."""

    def scaled_linear(x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Any, *, out_dtype: Any) -> Tensor:
        n, width = w.shape[0], 128
        if w_scale.shape[0] not in (1, n):
            w_scale = w_scale.repeat_interleave(128, 0)[:n]
        total = torch.zeros(*x.shape[:-1], n)
        for block, start in enumerate(range(0, x.shape[-1], width)):
            codes, weights = (t[..., start : start + width].float() for t in (x, w))
            part = torch.zeros_like(total)
            for some, others in zip(codes.split(32, -1), weights.split(32, -1), strict=True):
                part = added_in_fourteen_bits(part, some.unsqueeze(-2) * others)
            if x_scale.shape[-1] > 1:
                part = part * x_scale[..., block : block + 1] * w_scale[:, block]
            total = total + part
        if x_scale.shape[-1] == 1:
            total = total * x_scale * w_scale[:, 0]
        return (total if bias is None else total + bias.float()).to(out_dtype)

    floats = Dtype("x", "float8_e4m3fn", "float8_e4m3fnuz")
    assert_passes(hold("scaled_linear", scaled_linear, when=(floats, Dtype("out_dtype", "bfloat16", "float32"))))


def test_gradients_of_a_loss_by_logits_and_slopes_in_16_bits(hold: Hold) -> None:
    """As a linear layer, a loss and their backwards compute them; classes whose logit is -inf have no share."""

    def gradients(
        x: Tensor, weight: Tensor, target: Tensor, *, output_mask: tuple[bool, ...], **options: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows, wide = x.float(), weight.float()
        logits = (rows @ wide.T).to(x.dtype)
        loss, lse = opmux.cross_entropy_lse.reference(logits, target, **options)
        one, summed = torch.ones(()), {**options, "reduction": "sum"}
        slopes = opmux.cross_entropy_backward.reference(one, logits, target, lse, None, **summed, output_mask=(True,))
        slopes = slopes.float().reshape(-1, weight.shape[0])
        grad_x = (slopes @ wide).to(x.dtype).reshape(x.shape)
        grad_weight = (slopes.T @ rows.reshape(-1, x.shape[-1])).to(weight.dtype)
        return (
            loss if output_mask[0] else loss.new_empty(0),
            grad_x if output_mask[1] else x.new_empty(0),
            grad_weight if output_mask[2] else x.new_empty(0),
        )

    assert_passes(hold("fused_linear_cross_entropy_gradients", gradients, when=(Dtype("x", "bfloat16", "float16"),)))
