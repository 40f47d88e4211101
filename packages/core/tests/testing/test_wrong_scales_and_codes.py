"""Kernels that are wrong for blocks of zeros or for special codes alone: the kit must catch each of them."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import opmux
from opmux.callpath.op import OPS
from opmux.plugin import Dtype
from opmux.testing import cases_of
from opmux.testing.inputs import make_arguments
from opmux.testing.memory import bits

Hold = Callable[..., dict[str, Any]]
Kernel = Callable[..., Any]

MAKE_SCALES = ["quantize", "silu_and_mul_quantize", "rms_norm_quantize", "add_rms_norm_quantize"]
TAKE_CODES = [
    "scaled_linear",
    "scaled_linear_accumulate",
    "scaled_grouped_linear",
    "scaled_grouped_weight_grad",
    "scaled_masked_grouped_linear",
]
WRITE, READ = opmux.write_kv_cache.reference, opmux.paged_attention.reference
INTEGERS = Dtype("dtype", "int8")


def checks_failed(report: dict[str, Any], data: str) -> set[str]:
    """The checks that failed, all of them in cases of these contents."""
    strangers = [f["case"] for f in report["failures"] if f"@data={data}" not in f["case"]]
    assert not strangers, strangers
    return {failure["check"] for failure in report["failures"]}


# Blocks of zeros


def with_scale_of_zero_blocks(op: str, wrong: float) -> Kernel:
    """A kernel that gives blocks of nothing but zero codes, whose scale is 1, another scale."""

    def kernel(*tensors: Any, block: tuple[int, int], **options: Any) -> Any:
        q, scale, *rest = OPS[op].reference(*tensors, block=block, **options)
        codes = q.float().nan_to_num()
        for dim, length in zip((-2, -1), block, strict=True):
            if length != 1 and codes.numel():
                size = codes.shape[dim]
                parts = codes.abs().split(size if length == -1 else length, dim)
                codes = torch.stack([part.amax(dim) for part in parts], dim)
        if scale.numel():
            scale.masked_fill_((codes == 0) & (scale == 1), wrong)
        return q, scale, *rest

    return kernel


@pytest.mark.parametrize("wrong", [0.0, math.nan, 1e-12 / 448], ids=["zero", "nan", "clamped"])
@pytest.mark.parametrize("op", MAKE_SCALES)
def test_scale_of_a_block_of_zeros(hold: Hold, op: str, wrong: float) -> None:
    report = hold(op, with_scale_of_zero_blocks(op, wrong))
    failed = {f["case"] for f in report["failures"]}
    for block in ("1x128", "1x-1", "-1x-1", "128x128", "1x32"):
        assert any(f"block={block}," in case and "@data=zeros" in case for case in failed), block
    assert any("dtype=i8," in case and "@data=zeros" in case for case in failed)


@pytest.mark.parametrize("least", [1e-12, 1e-30])
def test_a_least_amax(hold: Hold, least: float) -> None:
    """The largest magnitude is clamped from below, so that no scale is zero."""

    def quantize(x: Tensor, *, dtype: torch.dtype, **options: Any) -> tuple[Tensor, Tensor]:
        _, scale = opmux.quantize.reference(x, dtype=dtype, **options)
        scale.clamp_(min=least / (127 if dtype == torch.int8 else torch.finfo(dtype).max))
        return opmux.static_quantize.reference(x, scale, dtype=dtype) if x.numel() else x.to(dtype), scale

    report = hold("quantize", quantize)
    if least > 2.0**-50:  # what is not a block of zeros: its scale is wrong, not merely another one
        assert "element bound" in {f["check"] for f in report["failures"]}
    assert all("@data=zeros" in f["case"] for f in report["failures"])


@pytest.mark.parametrize("profile", ["small", "interpreter"])
@pytest.mark.parametrize("op", MAKE_SCALES)
def test_every_kind_of_block_is_zero_somewhere(op: str, profile: str) -> None:
    found = [case for case in cases_of(op, profile) if case.data == "zeros"]
    assert len(found) == 6
    for case in found:
        made = make_arguments(case, torch.device("cpu"))
        q, scale, *_ = OPS[op].reference(*made.tensors.values(), **made.options)
        assert (scale == 1).any(), case.id
        assert (scale != 1).any(), case.id
        assert (q.float() != 0).any()


# Special codes


@pytest.mark.parametrize("op", TAKE_CODES)
def test_the_least_code_of_int8_read_as_the_next(hold: Hold, op: str) -> None:
    """Codes are symmetric where opmux makes them; those of others need not be."""

    def kernel(*tensors: Any, **options: Any) -> Any:
        read = [t.clamp(-127, 127) if t is not None and t.dtype == torch.int8 else t for t in tensors]
        return OPS[op].reference(*read, **options)

    assert checks_failed(hold(op, kernel), "all_codes") & {"element bound", "row bound", "global bound"}


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e5m2], ids=str)
def test_the_largest_codes_dequantised_as_less(hold: Hold, dtype: torch.dtype) -> None:
    most = {torch.int8: 127, torch.float8_e5m2: 448}[dtype]

    def dequantize(q: Tensor, scale: Tensor, **options: Any) -> Tensor:
        return opmux.dequantize.reference(clamped(q, dtype, most), scale, **options)

    assert "element bound" in checks_failed(hold("dequantize", dequantize), "all_codes")


@pytest.mark.parametrize("place", [1, 2], ids=["keys", "values"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_the_largest_codes_of_a_cache_read_as_less(hold: Hold, dtype: torch.dtype, place: int) -> None:
    most = {torch.int8: 64, torch.float8_e4m3fn: 240, torch.float8_e5m2: 448}[dtype]

    def paged_attention(*tensors: Any, **options: Any) -> Tensor:
        read = list(tensors)
        read[place] = clamped(read[place], dtype, most)
        return READ(*read, **options)

    found = hold("paged_attention", paged_attention)["failures"]
    assert any("@data=all_codes" in f["case"] and f["check"] == "element bound" for f in found)
    assert dtype == torch.int8 or all("@data=all_codes" in f["case"] for f in found)


def clamped(codes: Tensor, dtype: torch.dtype, most: float) -> Tensor:
    """Finite codes of one dtype between two values; those of others as they are."""
    if codes.dtype != dtype:
        return codes
    wide = codes.float()
    return wide.clamp(-most, most).where(wide.isfinite(), wide).to(dtype)


@pytest.mark.parametrize("place", [1, 2], ids=["keys", "values"])
def test_nan_codes_of_a_cache_read_as_zero(hold: Hold, place: int) -> None:
    def paged_attention(*tensors: Any, **options: Any) -> Tensor:
        read = list(tensors)
        if read[place].dtype.is_floating_point and read[place].dtype.itemsize == 1:
            wide = read[place].float()
            read[place] = wide.masked_fill(wide.isnan(), 0.0).to(read[place].dtype)
        return READ(*read, **options)

    report = hold("paged_attention", paged_attention)
    assert checks_failed(report, "k_cache" if place == 1 else "v_cache") == {"NaN and Inf"}
    flavours = {f["case"].split("k_cache=")[1].split(",")[0] for f in report["failures"]}
    assert flavours == {"e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz"}


def test_infinite_codes_of_values_read_as_the_largest(hold: Hold) -> None:
    def paged_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, *rest: Any, **options: Any) -> Tensor:
        if v_cache.dtype == torch.float8_e5m2:
            v_cache = v_cache.float().clamp(-57344, 57344).to(v_cache.dtype)
        return READ(q, k_cache, v_cache, *rest, **options)

    report = hold("paged_attention", paged_attention)
    assert checks_failed(report, "v_cache") == {"NaN and Inf"}
    assert all(f["case"].endswith("@probe=inf") for f in report["failures"])


@pytest.mark.parametrize("place", [0, 1], ids=["keys", "values"])
def test_nan_written_to_a_cache_of_codes_as_zero(hold: Hold, place: int) -> None:
    def write_kv_cache(*tensors: Any, **options: Any) -> None:
        read = list(tensors)
        if read[2 + place].dtype.itemsize == 1:
            read[place] = read[place].masked_fill(read[place].isnan(), 0.0)
        WRITE(*read, **options)

    report = hold("write_kv_cache", write_kv_cache)
    assert "NaN and Inf" in checks_failed(report, "kv"[place])
    assert all(f["case"].endswith("@probe=nan") for f in report["failures"])


@pytest.mark.parametrize("place", [0, 1], ids=["keys", "values"])
def test_infinities_written_to_a_cache_of_codes_as_nan(hold: Hold, place: int) -> None:
    def write_kv_cache(*tensors: Any, **options: Any) -> None:
        read = list(tensors)
        if read[2 + place].dtype.itemsize == 1:
            read[place] = read[place].masked_fill(read[place].isinf(), math.nan)
        WRITE(*read, **options)

    report = hold("write_kv_cache", write_kv_cache)
    assert "NaN and Inf" in checks_failed(report, "kv"[place])
    assert {f["case"].rpartition("=")[2] for f in report["failures"]} == {"inf", "-inf"}


def test_infinities_written_as_zero_to_a_cache_of_integers(hold: Hold) -> None:
    """An infinity has no allowance: it is the largest code, not any one up to it."""

    def write_kv_cache(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, *rest: Any, **options: Any) -> None:
        if v_cache.dtype == torch.int8:
            v = v.masked_fill(v.isinf(), 0.0)
        WRITE(k, v, k_cache, v_cache, *rest, **options)

    report = hold("write_kv_cache", write_kv_cache)
    assert "codes" in checks_failed(report, "v")


def test_infinities_quantised_as_half_the_largest_integer(hold: Hold) -> None:
    def static_quantize(x: Tensor, scale: Tensor, *, dtype: torch.dtype) -> Tensor:
        q = opmux.static_quantize.reference(x, scale, dtype=dtype)
        return q.where(~x.isinf(), q // 2).contiguous()

    assert "codes" in checks_failed(hold("static_quantize", static_quantize, when=(INTEGERS,)), "x")


# Masked classes


@pytest.mark.parametrize("op", ["cross_entropy", "cross_entropy_lse"])
def test_a_masked_class_as_a_large_negative_logit(hold: Hold, op: str) -> None:
    """With label smoothing the loss of such a token is infinite."""

    def kernel(logits: Tensor, *rest: Any, **options: Any) -> Any:
        return OPS[op].reference(logits.masked_fill(logits.isneginf(), -1e4), *rest, **options)

    report = hold(op, kernel)
    assert "NaN and Inf" in checks_failed(report, "logits")
    assert all("label_smoothing=0.1" in f["case"] for f in report["failures"])


def test_all_codes_are_all_that_are_finite() -> None:
    for op in ("dequantize", "scaled_linear"):
        for case in (c for c in cases_of(op, "small") if c.data == "all_codes"):
            first = next(iter(make_arguments(case, torch.device("cpu")).tensors.values()))
            assert first is not None
            finite = torch.arange(256).to(torch.uint8).view(first.dtype)
            finite = finite[finite.float().isfinite()].float()
            assert set(first.float().unique().tolist()) == set(finite.unique().tolist())
            assert bits(first).unique().numel() == len(finite)
