"""The suite itself: products of quantised matrices with ordinary bugs must fail it.

Others are in `test_wrong_kernels`: the scale of the neighbouring block, stale scales, long sums without promotion.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import opmux
from opmux.plugin import Dtype

Hold = Callable[..., dict[str, Any]]
product = opmux.scaled_linear.reference


def failed(report: dict[str, Any]) -> set[str]:
    """The checks that failed; at least one."""
    assert report["failed"]
    return {failure["check"] for failure in report["failures"]}


def test_scales_applied_twice(hold: Hold) -> None:
    def scaled_linear(x: Tensor, w: Tensor, x_scale: Tensor, *rest: Any, **options: Any) -> Tensor:
        return product(x, w, x_scale * x_scale, *rest, **options)

    assert "element bound" in failed(hold("scaled_linear", scaled_linear))


def test_one_scale_for_the_rows_of_a_tile(hold: Hold) -> None:
    def scaled_linear(x: Tensor, w: Tensor, x_scale: Tensor, *rest: Any, **options: Any) -> Tensor:
        return product(x, w, x_scale[..., :1, :].expand_as(x_scale), *rest, **options)

    report = hold("scaled_linear", scaled_linear)
    assert "element bound" in failed(report)
    assert all("m_blocks=1," not in failure["case"] for failure in report["failures"])


@pytest.mark.parametrize("profile", ["small", "interpreter"])
def test_last_partial_block_of_columns_dropped(hold: Hold, profile: str) -> None:
    def scaled_linear(x: Tensor, w: Tensor, *rest: Any, **options: Any) -> Tensor:
        x = x.clone()
        x.view(torch.uint8)[..., x.shape[-1] // 128 * 128 :] = 0
        return product(x, w, *rest, **options)

    floats = Dtype("x", "float8_e4m3fn")
    report = hold("scaled_linear", scaled_linear, when=(floats,), profile=profile)
    assert "element bound" in failed(report)
    if profile == "interpreter":
        assert any("k=272" in failure["case"] for failure in report["failures"])


@pytest.mark.parametrize("profile", ["small", "interpreter"])
def test_scales_of_the_first_square_for_all_rows_of_the_weight(hold: Hold, profile: str) -> None:
    def scaled_linear(x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, *rest: Any, **options: Any) -> Tensor:
        if w_scale.shape[0] != w.shape[0]:
            w_scale = w_scale[:1].expand_as(w_scale)
        return product(x, w, x_scale, w_scale, *rest, **options)

    report = hold("scaled_linear", scaled_linear, profile=profile)
    assert "element bound" in failed(report)
    assert all("w_rows=2," in failure["case"] for failure in report["failures"])


def test_fnuz_read_as_ocp(hold: Hold) -> None:
    def scaled_linear(x: Tensor, w: Tensor, *rest: Any, **options: Any) -> Tensor:
        if x.dtype == torch.float8_e4m3fnuz:
            x = x.view(torch.float8_e4m3fn)
        return (product if x.dtype == w.dtype else mixed)(x, w, *rest, **options)

    def mixed(x: Tensor, w: Tensor, *rest: Any, **options: Any) -> Tensor:
        return product(x, w.to(torch.float32).to(x.dtype), *rest, **options)

    report = hold("scaled_linear", scaled_linear)
    assert "element bound" in failed(report)
    assert all(failure["case"].startswith("e4m3fnuz") for failure in report["failures"])


def test_bias_scaled_too(hold: Hold) -> None:
    def scaled_linear(
        x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None, *, out_dtype: torch.dtype
    ) -> Tensor:
        if bias is not None and w_scale.shape == (w.shape[0], 1):
            bias = bias.float() * w_scale[:, 0]
        return product(x, w, x_scale, w_scale, bias, out_dtype=out_dtype)

    assert "element bound" in failed(hold("scaled_linear", scaled_linear))


def test_the_sum_is_rounded_before_the_bias(hold: Hold) -> None:
    def scaled_linear(
        x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None, *, out_dtype: torch.dtype
    ) -> Tensor:
        out = product(x, w, x_scale, w_scale, None, out_dtype=torch.bfloat16)
        return (out.float() if bias is None else out.float() + bias.float()).to(out_dtype)

    assert "element bound" in failed(hold("scaled_linear", scaled_linear))


def test_a_product_replaces_what_is_there(hold: Hold) -> None:
    def scaled_linear_accumulate(out: Tensor, *operands: Tensor) -> None:
        out.copy_(product(*operands, out_dtype=torch.float32))

    assert "element bound" in failed(hold("scaled_linear_accumulate", scaled_linear_accumulate))


def test_a_product_rounded_before_it_is_added(hold: Hold) -> None:
    def scaled_linear_accumulate(out: Tensor, *operands: Tensor) -> None:
        out += product(*operands, out_dtype=torch.bfloat16)

    assert "element bound" in failed(hold("scaled_linear_accumulate", scaled_linear_accumulate))


def in_fourteen_bits(values: Tensor) -> Tensor:
    """float32 with the last ten bits of its mantissa cut off, as Hopper's matrix units add 8-bit floats."""
    return (values.view(torch.int32) & ~0x3FF).view(torch.float32)


def test_long_sums_are_added_without_promotion(hold: Hold) -> None:
    """Sums of 16,384 terms in the accumulator of the matrix units, 32 terms at a time."""

    def scaled_linear_accumulate(out: Tensor, x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor) -> None:
        if x.shape[-1] < 1024 or x_scale.shape[-1] > 1 or not x.dtype.is_floating_point:
            opmux.scaled_linear_accumulate.reference(out, x, w, x_scale, w_scale)
            return
        total = torch.zeros_like(out)
        for codes, weights in zip(x.float().split(32, -1), w.float().split(32, -1), strict=True):
            total = in_fourteen_bits(total + codes @ weights.T)
        scale = w_scale if w_scale.shape[0] in (1, w.shape[0]) else w_scale.repeat_interleave(128, 0)[: w.shape[0]]
        out += total * x_scale * scale[:, 0]

    report = hold("scaled_linear_accumulate", scaled_linear_accumulate)
    assert "element bound" in failed(report)
    assert all("k=16384" in failure["case"] for failure in report["failures"])
