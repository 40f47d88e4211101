"""The kit proves itself: kernels that are wrong in one way each must fail it, for the right reason.

Most wrong kernels wrap a reference and spoil what it gives; some are written out. Each fails a check by name, and those
marked subtle err by less than four times their bound.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from backends import plugin
from torch import Tensor

import opmux
from opmux.plugin import Absent, Dtype, Implementation, MultipleOf, Predicate, SameDtype
from opmux.plugins.loading import temporary_plugin
from opmux.testing import run_conformance

Hold = Callable[..., dict[str, Any]]

HALVES = Dtype("x", "bfloat16", "float16")


def checks_failed(report: dict[str, Any]) -> set[str]:
    return {f["check"] for f in report["failures"]}


def assert_fails(report: dict[str, Any], *checks: str) -> None:
    assert report["failed"] > 0
    missing = set(checks) - checks_failed(report)
    assert not missing, f"{missing} did not fail, {checks_failed(report)} did"


def assert_subtle(report: dict[str, Any], *checks: str) -> None:
    assert_fails(report, *checks)
    worst = max(report["max_error"].values())
    assert 1 < worst <= 4, f"the error is {worst} x its bound"


# Norms


def test_one_bad_row(hold: Hold) -> None:
    def rms_norm(x: Tensor, weight: Tensor, **options: Any) -> Tensor:
        y = opmux.rms_norm.reference(x, weight, **options)
        if y.dim() > 1 and y.numel():
            y[(-1,) * (y.dim() - 1)] *= 1.05
        return y

    assert_fails(hold("rms_norm", rms_norm), "element bound", "row bound")


def test_wrong_eps(hold: Hold) -> None:
    def rms_norm(x: Tensor, weight: Tensor, *, eps: float, weight_offset: float) -> Tensor:
        return opmux.rms_norm.reference(x, weight, eps=1.5 * eps, weight_offset=weight_offset)

    assert_fails(hold("rms_norm", rms_norm, when=(HALVES,)), "element bound", "row bound", "global bound")


def test_ignored_stride(hold: Hold) -> None:
    def layer_norm(x: Tensor, *rest: Any, **options: Any) -> Tensor:
        dense = torch.empty(x.shape, device="meta").stride()
        return opmux.layer_norm.reference(x.as_strided(x.shape, dense, x.storage_offset()), *rest, **options)

    report = hold("layer_norm", layer_norm)
    assert_fails(report, "NaN and Inf")
    assert all("@view=" in f["case"] for f in report["failures"])


def test_ignored_storage_offset(hold: Hold) -> None:
    def add_rms_norm(x: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, Tensor]:
        aligned = x.storage_offset() // 16 * 16
        return opmux.add_rms_norm.reference(x.as_strided(x.shape, x.stride(), aligned), *rest, **options)

    report = hold("add_rms_norm", add_rms_norm)
    assert_fails(report, "NaN and Inf")
    assert all("@view=offset" in f["case"] for f in report["failures"])


def test_mutates_an_input(hold: Hold) -> None:
    def add_layer_norm(x: Tensor, residual: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, Tensor]:
        y, total = opmux.add_layer_norm.reference(x, residual, *rest, **options)
        residual.copy_(total)
        return y, total

    assert_fails(hold("add_layer_norm", add_layer_norm), "inputs")


def test_drops_nan(hold: Hold) -> None:
    def layer_norm(x: Tensor, *rest: Any, **options: Any) -> Tensor:
        return opmux.layer_norm.reference(x.nan_to_num(0.0), *rest, **options)

    report = hold("layer_norm", layer_norm)
    assert_fails(report, "NaN and Inf")
    assert {f["case"].rpartition("=")[2] for f in report["failures"]} <= {"nan", "inf", "-inf"}


def test_rounded_twice(hold: Hold) -> None:
    """The normed row is rounded before it is weighted, as in many model definitions. Subtle."""

    def rms_norm(x: Tensor, weight: Tensor, *, eps: float, weight_offset: float) -> Tensor:
        normed = opmux.rms_norm.reference(x, torch.ones_like(weight), eps=eps, weight_offset=0.0)
        return (normed.float() * (weight.float() + weight_offset)).to(x.dtype)

    assert_subtle(hold("rms_norm", rms_norm, when=(HALVES,)), "element bound", "global bound")


def scaled_backward(factor: float) -> Callable[..., tuple[Tensor, Tensor]]:
    def rms_norm_backward(*tensors: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        grad_x, grad_weight = opmux.rms_norm_backward.reference(*(t.float() for t in tensors), **options)
        return (factor * grad_x).to(tensors[1].dtype), grad_weight.to(tensors[2].dtype)

    return rms_norm_backward


def test_gradient_scaled(hold: Hold) -> None:
    """By 1.01, in bfloat16, whose numbers are as far apart."""
    report = hold("rms_norm_backward", scaled_backward(1.01), when=(Dtype("x", "bfloat16"),))
    assert_fails(report, "element bound", "row bound", "global bound")


def test_gradient_scaled_a_little(hold: Hold) -> None:
    """By 1.003, in bfloat16: less than the rounding of most elements. Subtle."""
    report = hold("rms_norm_backward", scaled_backward(1.003), when=(Dtype("x", "bfloat16"),))
    assert_subtle(report, "element bound", "row bound", "global bound")


# Matrix products


def test_one_zero_tile(hold: Hold) -> None:
    def linear(*tensors: Any, **options: Any) -> Tensor:
        out = opmux.linear.reference(*tensors, **options)
        if out.shape[-1] > 128 and out.dim() == 2:
            out[:128, :128] = 0.0
        return out

    assert_fails(hold("linear", linear), "element bound", "row bound", "global bound")


def test_one_wrong_element(hold: Hold) -> None:
    """One element of one tile is one number of the output's dtype away. Subtle."""

    def linear(*tensors: Any, **options: Any) -> Tensor:
        out = opmux.linear.reference(*tensors, **options)
        if out.numel() > 128 * 128:
            out[-1, -1] = torch.nextafter(out[-1, -1], out.new_tensor(math.inf))
        return out

    report = hold("linear", linear, when=(HALVES,))
    assert_subtle(report, "element bound")
    assert checks_failed(report) == {"element bound"}


def test_bfloat16_accumulation(hold: Hold) -> None:
    def linear(x: Tensor, w: Tensor, bias: Tensor | None, *, out_dtype: torch.dtype | None) -> Tensor:
        out = x.new_zeros((*x.shape[:-1], w.shape[0]))
        for some, weights in zip(x.split(32, -1), w.split(32, -1), strict=True):
            out = out + (some.float() @ weights.float().T).to(x.dtype)
        return (out if bias is None else out + bias).to(out_dtype or x.dtype)

    assert_fails(hold("linear", linear, when=(HALVES,)), "element bound", "row bound", "global bound")


def test_a_wider_result_of_rounded_sums(hold: Hold) -> None:
    """The kernel of x's dtype, and a conversion of what it returns."""

    def linear(*tensors: Any, out_dtype: torch.dtype | None) -> Tensor:
        return opmux.linear.reference(*tensors).to(out_dtype or tensors[0].dtype)

    report = hold("linear", linear, when=(HALVES,))
    assert_fails(report, "element bound", "row bound", "global bound")
    assert all("out_dtype=f32" in failure["case"] for failure in report["failures"])


def test_tensor_float_32(hold: Hold) -> None:
    """Operands rounded to ten bits, as in TF32: another mode's numerics, which must be asked for."""

    def linear(x: Tensor, w: Tensor, bias: Tensor | None, *, out_dtype: torch.dtype | None) -> Tensor:
        return opmux.linear.reference(x.half().float(), w.half().float(), bias, out_dtype=out_dtype)

    assert_fails(hold("linear", linear, when=(Dtype("x", "float32"),)), "element bound", "global bound")


# Activations


def test_sigmoid_rounded_to_bfloat16(hold: Hold) -> None:
    """Subtle: one more rounding, of a factor."""

    def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
        g = gate.float()
        return (g * torch.sigmoid(g).to(gate.dtype).float() * up.float()).to(gate.dtype).contiguous()

    report = hold("silu_mul", silu_mul, when=(Dtype("gate", "bfloat16"),))
    assert_subtle(report, "element bound", "global bound")


def test_writes_past_its_output(hold: Hold) -> None:
    def silu_and_mul(x: Tensor, *, out: Tensor | None = None) -> Tensor:
        made = opmux.silu_and_mul.reference(x)
        if out is None:
            return made
        out.copy_(made)
        behind = out.storage_offset() + out.numel()
        out.as_strided((4,), (1,), behind).fill_(0.0)
        return out

    assert_fails(hold("silu_and_mul", silu_and_mul, takes_out=True), "writes outside")


def test_writes_past_what_it_allocated(hold: Hold) -> None:
    def gelu_and_mul(x: Tensor, **options: Any) -> Tensor:
        made = opmux.gelu_and_mul.reference(x, **options)
        out = torch.empty(made.shape, dtype=made.dtype, device=made.device)
        out.copy_(made)
        behind = out.storage_offset() + out.numel()
        if behind < out.untyped_storage().nbytes() // out.element_size():
            out.as_strided((1,), (1,), behind).fill_(0.0)
        return out

    assert_fails(hold("gelu_and_mul", gelu_and_mul), "writes outside")


def test_tail_left_unwritten(hold: Hold) -> None:
    """The last columns of a row are not written where n is no multiple of 8."""

    def gelu_mul(gate: Tensor, up: Tensor, **options: Any) -> Tensor:
        whole = gate.shape[-1] // 8 * 8
        out = torch.empty_like(gate, memory_format=torch.contiguous_format)
        out[..., :whole] = opmux.gelu_mul.reference(gate, up, **options)[..., :whole]
        return out

    assert_fails(hold("gelu_mul", gelu_mul), "NaN and Inf")


def test_off_by_one_in_the_tail(hold: Hold) -> None:
    """The last element of a row takes its neighbour's gate."""

    def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
        out = opmux.silu_mul.reference(gate, up)
        if gate.shape[-1] > 1 and gate.shape[-1] % 8:
            out[..., -1] = opmux.silu_mul.reference(gate[..., -2:-1], up[..., -1:])[..., 0]
        return out

    report = hold("silu_mul", silu_mul)
    assert_fails(report, "element bound")
    assert all("n=96" not in f["case"] for f in report["failures"])


# Rotary embedding


def test_tables_rounded_to_bfloat16(hold: Hold) -> None:
    """cos and sin lose bits that the result, in bfloat16 too, shows on the whole by a third more than it may."""

    def apply_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, ...]:
        narrow = [t.to(torch.bfloat16).float() for t in (cos, sin)]
        return opmux.apply_rope.reference(q, k, *narrow, *rest, **options)

    report = hold("apply_rope", apply_rope, when=(Dtype("q", "bfloat16"),))
    assert_fails(report, "element bound", "global bound")
    assert 1 < report["max_error"]["global"] <= 4


def test_returns_its_input(hold: Hold) -> None:
    def apply_rope(q: Tensor, k: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, Tensor]:
        of_q, of_k = opmux.apply_rope.reference(q, k, *rest, **options)
        return q.copy_(of_q) if q.is_contiguous() else of_q, of_k

    assert_fails(hold("apply_rope", apply_rope), "aliasing", "inputs")


# The cache


def test_writes_skipped_tokens(hold: Hold) -> None:
    """A slot of -1 is the last slot of the cache to who does not look."""

    def write_kv_cache(
        k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, *scales: Any, **options: Any
    ) -> None:
        if k_cache.numel() and k.shape[0]:
            slots = slots % (k_cache.shape[0] * k_cache.shape[1])
            kept = torch.unique(slots, return_inverse=True)[1]
            first = torch.stack([torch.nonzero(kept == i)[0, 0] for i in range(int(kept.max()) + 1)])
            k, v, slots = k[first], v[first], slots[first]
        opmux.write_kv_cache.reference(k, v, k_cache, v_cache, slots, *scales, **options)

    assert_fails(hold("write_kv_cache", write_kv_cache), "writes elsewhere")


def test_writes_whole_pages(hold: Hold) -> None:
    """The slot behind each written one is cleared."""

    def write_kv_cache(
        k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, *scales: Any, **options: Any
    ) -> None:
        opmux.write_kv_cache.reference(k, v, k_cache, v_cache, slots, *scales, **options)
        page_size = k_cache.shape[1]
        for slot in slots.tolist():
            if slot >= 0 and slot % page_size + 1 < page_size and slot + 1 not in slots.tolist():
                k_cache[slot // page_size, slot % page_size + 1] = 0.0

    assert_fails(hold("write_kv_cache", write_kv_cache), "writes elsewhere")


def test_trusts_its_slots(hold: Hold) -> None:
    """Pointer arithmetic without a look: a slot past the last one is memory past the cache."""

    def write_kv_cache(
        k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, *scales: Any, **options: Any
    ) -> None:
        for new, cache in ((k, k_cache), (v, v_cache)):
            if cache.numel():
                size, (page, row, *rest) = cache.shape[1], cache.stride()
                for token, slot in enumerate(slots.tolist()):
                    if slot >= 0:
                        first = cache.storage_offset() + slot // size * page + slot % size * row
                        cache.as_strided(cache.shape[2:], rest, first).copy_(new[token])

    report = hold("write_kv_cache", write_kv_cache, when=(Absent("k_scale"), SameDtype("k_cache", "v_cache", "k")))
    assert checks_failed(report) == {"writes outside"}
    assert all("@probe=rubbish" in f["case"] for f in report["failures"])


# Attention


def test_causal_mask_off_by_one(hold: Hold) -> None:
    def attention(*tensors: Any, causal: bool, window: tuple[int, int], **options: Any) -> Tensor:
        if causal and window[1] == -1:
            return opmux.attention.reference(*tensors, causal=False, window=(window[0], 1), **options)
        return opmux.attention.reference(*tensors, causal=causal, window=window, **options)

    report = hold("attention", attention)
    assert_fails(report, "element bound", "row bound", "global bound")
    assert all("causal=true" in f["case"] for f in report["failures"])


def test_mask_aligned_to_the_first_key(hold: Hold) -> None:
    """Top-left instead of bottom-right: right for equal lengths only."""

    def attention(q: Tensor, k: Tensor, v: Tensor, *rest: Any, causal: bool, **options: Any) -> Tensor:
        if causal and k.shape[1] > q.shape[1]:
            k, v = k[:, : q.shape[1]], v[:, : q.shape[1]]
        return opmux.attention.reference(q, k, v, *rest, causal=causal, **options)

    assert_fails(hold("attention", attention), "element bound")


def test_window_ignored(hold: Hold) -> None:
    def attention_varlen(*tensors: Any, window: tuple[int, int], **options: Any) -> Tensor:
        return opmux.attention_varlen.reference(*tensors, window=(-1, -1), **options)

    report = hold("attention_varlen", attention_varlen)
    assert_fails(report, "element bound", "global bound")
    assert all("window=" in f["case"] for f in report["failures"])


def test_queries_rounded_after_scaling(hold: Hold) -> None:
    """The scale is multiplied into q and rounded to q's dtype, as some kernels do: the lse shows it."""

    def attention_lse(q: Tensor, *rest: Any, scale: float | None, **options: Any) -> tuple[Tensor, Tensor]:
        factor = 1 / math.sqrt(max(1, q.shape[-1])) if scale is None else scale
        return opmux.attention_lse.reference((q.float() * factor).to(q.dtype), *rest, scale=1.0, **options)

    assert_fails(hold("attention_lse", attention_lse, when=(Dtype("q", "bfloat16"),)), "element bound", "global bound")


def test_lse_in_base_two(hold: Hold) -> None:
    def attention_lse(*tensors: Any, **options: Any) -> tuple[Tensor, Tensor]:
        out, lse = opmux.attention_lse.reference(*tensors, **options)
        return out, lse * math.log2(math.e)

    assert_fails(hold("attention_lse", attention_lse), "element bound")


def test_fused_multiply_add_of_a_rounded_top(hold: Hold) -> None:
    """The product of score and scale is not rounded, the largest one that it is measured from is."""

    def attention(q: Tensor, k: Tensor, v: Tensor, *rest: Any, **options: Any) -> Tensor:
        if not q.numel() or float(q.abs().nan_to_num(0.0, 0.0, 0.0).max()) < 2.0**60:
            return opmux.attention.reference(q, k, v, *rest, **options)
        groups = q.shape[2] // k.shape[2]
        queries, keys, values = (t.transpose(1, 2) for t in (q, *(t.repeat_interleave(groups, 2) for t in (k, v))))
        exponents = (queries @ keys.mT).double() * (math.log2(math.e) / math.sqrt(q.shape[-1]))
        weights = torch.exp2((exponents - exponents.amax(-1, keepdim=True).float()).float())
        return (weights @ values / weights.sum(-1, keepdim=True)).transpose(1, 2).contiguous()

    report = hold("attention", attention, when=(Dtype("q", "float32"),))
    assert_fails(report, "NaN and Inf")
    assert all("@probe=magnitude" in f["case"] for f in report["failures"])


def test_large_scores_rounded(hold: Hold) -> None:
    """Scores past 2**16 lose half of their digits, as with a table or a coarser product: another key wins."""

    def attention_lse(q: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, Tensor]:
        coarse = torch.where(q.abs() > 2.0**16, q.bfloat16().to(q.dtype), q)
        return opmux.attention_lse.reference(coarse, *rest, **options)

    report = hold("attention_lse", attention_lse, when=(Dtype("q", "float32"),))
    assert_fails(report, "element bound")
    assert all("@probe=magnitude" in f["case"] for f in report["failures"])


def test_gradient_of_large_scores_by_a_coarse_lse(hold: Hold) -> None:
    """Half a unit of an lse of 2**10 in bfloat16 is 2: the probabilities are wrong by a factor."""

    def attention_backward(grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any,
                           **options: Any) -> Any:  # fmt: skip
        coarse = torch.where(lse.abs() > 2.0**8, lse.bfloat16().to(lse.dtype), lse)
        return opmux.attention_backward.reference(grad_out, q, k, v, out, coarse, *rest, **options)

    report = hold("attention_backward", attention_backward, when=(Dtype("q", "float32"),))
    assert_fails(report, "element bound", "row bound")
    assert all("@probe=magnitude" in f["case"] for f in report["failures"])


def test_stale_cache_page(hold: Hold) -> None:
    """A page is kept from the call before, because it lies where that one lay."""
    kept: dict[Any, Tensor] = {}

    def paged_attention(q: Tensor, k_cache: Tensor, *rest: Any, **options: Any) -> Tensor:
        where = (k_cache.data_ptr(), k_cache.shape, k_cache.stride(), k_cache.dtype, q.shape)
        before = kept.get(where)
        kept.clear()
        kept[where] = k_cache.clone()
        if before is not None and k_cache.shape[0] > 1:
            k_cache = torch.cat((before[:-1], k_cache[-1:]))
        return opmux.paged_attention.reference(q, k_cache, *rest, **options)

    report = hold("paged_attention", paged_attention)
    assert_fails(report, "stale contents")


def test_reads_past_the_end_of_a_sequence(hold: Hold) -> None:
    """The rest of the last page takes part where a page is not full."""

    def paged_attention(*tensors: Any, causal: bool, window: tuple[int, int], **options: Any) -> Tensor:
        q, k_cache, v_cache, cu_seqlens_q, seq_lens, *rest = tensors
        size = k_cache.shape[1]
        longer = -(-seq_lens // size) * size
        options["max_seqlen_k"] = int(longer.max()) if longer.numel() else options["max_seqlen_k"]
        return opmux.paged_attention.reference(
            q, k_cache, v_cache, cu_seqlens_q, longer, *rest, causal=False, window=(-1, -1), **options
        )

    assert_fails(hold("paged_attention", paged_attention), "NaN and Inf")


# Quantisation


def test_wrong_on_a_zero_row_input(hold: Hold) -> None:
    def quantize(x: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        x.abs().amax(-2)  # no rows, no maximum
        return opmux.quantize.reference(x, **options)

    report = hold("quantize", quantize)
    assert_fails(report, "runs")
    assert len({f["case"] for f in report["failures"]}) == 1


def test_scale_a_few_ulp_off(hold: Hold) -> None:
    """The division of amax is approximate. Subtle."""

    def quantize(x: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        q, scale = opmux.quantize.reference(x, **options)
        off = torch.nextafter(scale, torch.tensor(math.inf))
        for _ in range(4):
            off = torch.nextafter(off, torch.tensor(math.inf))
        return q, scale.copy_(torch.where(scale == 1, scale, off))

    assert_subtle(hold("quantize", quantize, when=(Dtype("dtype", "float8_e4m3fn"),)), "element bound", "global bound")


def test_codes_truncated(hold: Hold) -> None:
    """Rounded towards zero: one code apart, on half of the elements."""

    def quantize(x: Tensor, *, dtype: torch.dtype, **options: Any) -> tuple[Tensor, Tensor]:
        q, scale = opmux.quantize.reference(x, dtype=dtype, **options)
        return (q - q.sign() * (torch.arange(q.numel()).reshape(q.shape) % 3 == 0)).to(dtype), scale

    report = hold("quantize", quantize, when=(Dtype("dtype", "int8"),))
    assert_fails(report, "number of codes")


def test_last_partial_block_dropped(hold: Hold) -> None:
    def quantize(x: Tensor, *, block: tuple[int, int], **options: Any) -> tuple[Tensor, Tensor]:
        q, scale = opmux.quantize.reference(x, block=block, **options)
        if block[1] > 1:
            q.view(torch.uint8)[..., x.shape[-1] // block[1] * block[1] :] = 0
        return q, scale

    assert_fails(hold("quantize", quantize), "codes")


def test_rounds_half_up(hold: Hold) -> None:
    """Where the quotient is exact, a tie goes to the even code."""

    def static_quantize(x: Tensor, scale: Tensor, *, dtype: torch.dtype) -> Tensor:
        if not bool((scale == 1).all()):
            return opmux.static_quantize.reference(x, scale, dtype=dtype)
        return (x.float() + 0.5).floor().nan_to_num(nan=0.0).clamp(-127, 127).to(dtype)

    report = hold("static_quantize", static_quantize, when=(Dtype("dtype", "int8"),))
    assert_fails(report, "number of codes")
    assert all("@data=ties" in f["case"] for f in report["failures"])


def test_overflows_instead_of_saturating(hold: Hold) -> None:
    def static_quantize(x: Tensor, scale: Tensor, *, dtype: torch.dtype) -> Tensor:
        q = opmux.static_quantize.reference(x, scale, dtype=dtype)
        return torch.where(q.float().abs() == torch.finfo(dtype).max, math.nan, q.float()).to(dtype)

    report = hold("static_quantize", static_quantize, when=(Dtype("dtype", "float8_e4m3fn"),))
    assert_fails(report, "NaN and Inf")


def test_scale_applied_twice(hold: Hold) -> None:
    def dequantize(q: Tensor, scale: Tensor, **options: Any) -> Tensor:
        return opmux.dequantize.reference(q, scale.square(), **options)

    assert_fails(hold("dequantize", dequantize), "element bound", "row bound", "global bound")


def test_fnuz_read_as_ocp(hold: Hold) -> None:
    """The same bits stand for half the value, and one of them for NaN."""

    def dequantize(q: Tensor, scale: Tensor, **options: Any) -> Tensor:
        if q.dtype == torch.float8_e4m3fnuz:
            q = q.view(torch.float8_e4m3fn)
        return opmux.dequantize.reference(q, scale, **options)

    report = hold("dequantize", dequantize)
    assert_fails(report, "element bound", "global bound")
    assert all(f["case"].startswith("e4m3fnuz") for f in report["failures"])


def test_quantised_from_the_rounded_value(hold: Hold) -> None:
    """As the two ops one after the other do it: the scale shows it."""

    def rms_norm_quantize(x: Tensor, weight: Tensor, *, eps: float, weight_offset: float, **options: Any) -> Any:
        y = opmux.rms_norm.reference(x, weight, eps=eps, weight_offset=weight_offset)
        return opmux.quantize.reference(y, **options)

    assert_fails(hold("rms_norm_quantize", rms_norm_quantize, when=(HALVES,)), "element bound", "global bound")


def test_packed_scales_in_the_other_order(hold: Hold) -> None:
    def pack_scale(scale: Tensor, **options: Any) -> Tensor:
        packed = opmux.pack_scale.reference(scale, **options)
        if not packed.numel():
            return packed
        flipped = packed.contiguous().view(torch.uint8).unflatten(-1, (-1, 4)).flip(-1)
        return packed.copy_(flipped.flatten(-2).view(torch.int32))

    assert_fails(hold("pack_scale", pack_scale), "integers")


# Products of codes


def test_scale_of_the_neighbouring_block(hold: Hold) -> None:
    def scaled_linear(x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, *rest: Any, **options: Any) -> Tensor:
        return opmux.scaled_linear.reference(x, w, x_scale, w_scale.roll(1, -1), *rest, **options)

    report = hold("scaled_linear", scaled_linear)
    assert_fails(report, "element bound", "row bound", "global bound")
    assert all("w_blocks=1," not in f["case"] for f in report["failures"])


def test_stale_scales(hold: Hold) -> None:
    """The scales of the call before are kept, because they lie where those lay."""
    kept: dict[Any, Tensor] = {}

    def scaled_linear(x: Tensor, w: Tensor, x_scale: Tensor, *rest: Any, **options: Any) -> Tensor:
        where = (x_scale.data_ptr(), x_scale.shape, x_scale.stride(), w.shape)
        before = kept.get(where, x_scale)
        kept.clear()
        kept[where] = x_scale.clone()
        return opmux.scaled_linear.reference(x, w, before, *rest, **options)

    assert_fails(hold("scaled_linear", scaled_linear), "stale contents")


def in_fourteen_bits(values: Tensor) -> Tensor:
    """float32 with the last ten bits of its mantissa cut off, as Hopper's matrix units add 8-bit floats."""
    return (values.view(torch.int32) & ~0x3FF).view(torch.float32)


def test_long_sums_of_8_bit_floats_without_promotion(hold: Hold) -> None:
    """Sums of 16,384 terms in the accumulator of the matrix units, 32 terms at a time."""

    def scaled_linear(x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, *rest: Any, **options: Any) -> Tensor:
        if x.shape[-1] < 1024 or x_scale.shape[-1] > 1:
            return opmux.scaled_linear.reference(x, w, x_scale, w_scale, *rest, **options)
        total = torch.zeros(*x.shape[:-1], w.shape[0])
        for codes, weights in zip(x.float().split(32, -1), w.float().split(32, -1), strict=True):
            total = in_fourteen_bits(total + codes @ weights.T)
        return (total * x_scale * w_scale[:, 0]).to(options["out_dtype"])

    report = hold("scaled_linear", scaled_linear, when=(Dtype("x", "float8_e4m3fn"),))
    assert_fails(report, "element bound", "row bound")
    assert all("k=16384" in f["case"] for f in report["failures"])


# Grouped products


def test_group_offset_off_by_one(hold: Hold) -> None:
    """The first row of a group is taken for the last of the group before."""

    def grouped_linear(x: Tensor, w: Tensor, group_offsets: Tensor, group_sizes: Tensor | None) -> Tensor:
        out = opmux.grouped_linear.reference(x, w, group_offsets, group_sizes)
        for group, start in enumerate(group_offsets.tolist()[1:-1]):
            if start < len(x):
                out[start] = (x[start].float() @ w[group].float().T).to(x.dtype)
        return out

    assert_fails(hold("grouped_linear", grouped_linear), "element bound", "row bound")


def test_an_empty_group_shifts_the_rest(hold: Hold) -> None:
    """The weight is chosen by how many groups with rows came before."""

    def grouped_linear(x: Tensor, w: Tensor, group_offsets: Tensor, group_sizes: Tensor | None) -> Tensor:
        sizes = group_offsets.diff() if group_sizes is None else group_sizes
        used = torch.nonzero(sizes)[:, 0]
        shifted = w.clone()
        shifted[used] = w[: len(used)]
        return opmux.grouped_linear.reference(x, shifted, group_offsets, group_sizes)

    assert_fails(hold("grouped_linear", grouped_linear), "element bound", "row bound")


def test_padding_rows_written(hold: Hold) -> None:
    """All rows up to the next group are computed."""

    def grouped_linear(x: Tensor, w: Tensor, group_offsets: Tensor, group_sizes: Tensor | None) -> Tensor:
        return opmux.grouped_linear.reference(x.nan_to_num(0.0), w, group_offsets, None)

    assert_fails(hold("grouped_linear", grouped_linear), "padding")


def test_rows_past_the_last_group_written(hold: Hold) -> None:
    def scaled_grouped_linear(x: Tensor, w: Tensor, group_offsets: Tensor, *rest: Any, **options: Any) -> Tensor:
        out = opmux.scaled_grouped_linear.reference(x, w, group_offsets, *rest, **options)
        out[int(group_offsets[-1]) :] = 0
        return out

    assert_fails(hold("scaled_grouped_linear", scaled_grouped_linear), "padding")


def test_a_masked_count_read_as_its_maximum(hold: Hold) -> None:
    def masked_grouped_linear(x: Tensor, w: Tensor, masked_m: Tensor, **options: Any) -> Tensor:
        return opmux.masked_grouped_linear.reference(x, w, torch.full_like(masked_m, x.shape[1]), **options)

    assert_fails(hold("masked_grouped_linear", masked_grouped_linear), "padding")


def test_masked_counts_expected_to_be_as_announced(hold: Hold) -> None:
    """`expected_m` is taken for a bound."""

    def masked_grouped_linear(x: Tensor, w: Tensor, masked_m: Tensor, *, expected_m: int) -> Tensor:
        counts = masked_m.clamp(max=expected_m)
        return opmux.masked_grouped_linear.reference(x, w, counts, expected_m=expected_m)

    assert_fails(hold("masked_grouped_linear", masked_grouped_linear), "NaN and Inf")


def test_scales_of_the_neighbouring_group(hold: Hold) -> None:
    def scaled_grouped_linear(
        x: Tensor, w: Tensor, offsets: Tensor, x_scale: Tensor, w_scale: Tensor, *rest: Any, **options: Any
    ) -> Tensor:
        return opmux.scaled_grouped_linear.reference(x, w, offsets, x_scale, w_scale.roll(1, 0), *rest, **options)

    assert_fails(hold("scaled_grouped_linear", scaled_grouped_linear), "element bound", "row bound")


def test_scales_of_the_neighbouring_masked_group(hold: Hold) -> None:
    def scaled_masked_grouped_linear(
        x: Tensor, w: Tensor, masked_m: Tensor, x_scale: Tensor, w_scale: Tensor, **options: Any
    ) -> Tensor:
        return opmux.scaled_masked_grouped_linear.reference(x, w, masked_m, x_scale, w_scale.roll(1, 0), **options)

    assert_fails(hold("scaled_masked_grouped_linear", scaled_masked_grouped_linear), "element bound", "row bound")


def test_padding_summed_into_gradients_of_weights(hold: Hold) -> None:
    def grouped_weight_grad(out: Tensor, dy: Tensor, x: Tensor, offsets: Tensor, sizes: Tensor | None) -> None:
        opmux.grouped_weight_grad.reference(out, dy, x, offsets, None)

    assert_fails(hold("grouped_weight_grad", grouped_weight_grad), "NaN and Inf")


def test_gradients_of_weights_of_empty_groups_rounded(hold: Hold) -> None:
    def grouped_weight_grad(out: Tensor, dy: Tensor, x: Tensor, offsets: Tensor, sizes: Tensor | None) -> None:
        out.copy_(torch.nextafter(out, torch.zeros_like(out)))
        opmux.grouped_weight_grad.reference(out, dy, x, offsets, sizes)

    assert_fails(hold("grouped_weight_grad", grouped_weight_grad), "writes elsewhere")


def test_blocks_of_rows_counted_from_the_groups_first(hold: Hold) -> None:
    """A group that begins within a block takes the scales of the blocks behind it."""

    def scaled_grouped_weight_grad(
        out: Tensor, dy: Tensor, x: Tensor, offsets: Tensor, dy_scale: Tensor, x_scale: Tensor, sizes: Tensor | None
    ) -> None:
        counts = (offsets.diff() if sizes is None else sizes).tolist()
        for group, (start, size) in enumerate(zip(offsets.tolist(), counts, strict=False)):
            rows = torch.arange(size) // 128 + start // 128
            left, right = (
                codes[start : start + size].float() * scales[rows.clamp(max=len(scales) - 1)]
                for codes, scales in ((dy, dy_scale), (x, x_scale))
            )
            out[group] += left.T @ right

    assert_fails(hold("scaled_grouped_weight_grad", scaled_grouped_weight_grad), "element bound")


def test_padding_summed_into_gradients_of_codes(hold: Hold) -> None:
    def scaled_grouped_weight_grad(out: Tensor, dy: Tensor, x: Tensor, offsets: Tensor, *rest: Any) -> None:
        opmux.scaled_grouped_weight_grad.reference(out, dy, x, offsets, *rest[:2], None)

    assert_fails(hold("scaled_grouped_weight_grad", scaled_grouped_weight_grad), "NaN and Inf")


def test_an_empty_groups_gradient_left_unwritten(hold: Hold) -> None:
    def grouped_linear_backward(
        grad: Tensor, x: Tensor, w: Tensor, offsets: Tensor, sizes: Tensor | None, **options: Any
    ) -> tuple[Tensor, Tensor]:
        grad_x, grad_w = opmux.grouped_linear_backward.reference(grad, x, w, offsets, sizes, **options)
        if grad_w.dim() == 3:
            found = torch.empty_like(grad_w)
            for group, size in enumerate((offsets.diff() if sizes is None else sizes).tolist()):
                if size:
                    found[group] = grad_w[group]
            grad_w = found
        return grad_x, grad_w

    assert_fails(hold("grouped_linear_backward", grouped_linear_backward), "NaN and Inf")


# What a record claims


def test_not_deterministic_though_declared(hold: Hold) -> None:
    calls = iter(range(10**9))

    def silu_and_mul(x: Tensor) -> Tensor:
        out = opmux.silu_and_mul.reference(x)
        if next(calls) % 2 and out.numel():
            out.view(-1)[0] = torch.nextafter(out.view(-1)[0], out.new_tensor(0.0))
        return out

    report = hold("silu_and_mul", silu_and_mul, when=(Dtype("x", "float32"),), deterministic=True)
    assert checks_failed(report) == {"determinism"}


def looks_for_a_missing_label(features: Any) -> str | None:
    return str(features["no such label"])


def returns_a_bool(features: Any) -> Any:
    return False


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (looks_for_a_missing_label, "predicate looks_for_a_missing_label raised KeyError"),
        (returns_a_bool, "predicate returns_a_bool returned False, expected None"),
    ],
)
def test_constraint_that_fails_instead_of_refusing(function: Any, told: str) -> None:
    kernel = Implementation(
        op="rms_norm", target=opmux.rms_norm.reference, when=(Dtype("x", "bfloat16"), Predicate(function, ()))
    )
    with temporary_plugin(plugin(kernel), "kernel"):
        report = run_conformance("kernel", ["rms_norm"], "small")
    assert report["failed"] > 0
    failures = report["ops"][0]["failures"]
    assert {f["check"] for f in failures} == {"refusal"}
    assert f"a constraint of kernel does not refuse, it fails: {told}" in failures[0]["message"]
    assert report["ops"][0]["claimed"] == 0


def test_refusal_that_does_not_hold() -> None:
    """A predicate that answers otherwise when it is asked again: the call runs."""
    asked = iter(range(10**9))

    def moody(features: Any) -> str | None:
        return None if next(asked) % 2 else "not now"

    kernel = Implementation(op="rms_norm", target=opmux.rms_norm.reference, when=(Predicate(moody, ()),))
    with temporary_plugin(plugin(kernel), "kernel"):
        report = run_conformance("kernel", ["rms_norm"], "interpreter")
    messages = {f["message"] for f in report["ops"][0]["failures"]}
    assert "the call was run, though the resolver refuses it: not now" in messages


def test_wrong_strides(hold: Hold) -> None:
    def linear(x: Tensor, w: Tensor, bias: Tensor | None, *, out_dtype: torch.dtype | None) -> Tensor:
        out = opmux.linear.reference(x, w, bias, out_dtype=out_dtype)
        return out.mT.contiguous().mT if out.dim() == 2 else out

    assert_fails(hold("linear", linear, when=(MultipleOf("k", 8),)), "strides")
