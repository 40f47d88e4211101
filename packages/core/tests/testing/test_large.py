"""Tensors past 2**31 elements, tried with a threshold that fits on a CPU: the parts are right, and wraps are seen."""

from typing import Any

import pytest
import torch
from backends import plugin
from torch import Tensor

import opmux
from opmux.callpath.op import OPS
from opmux.plugin import Implementation
from opmux.plugins.loading import temporary_plugin
from opmux.testing import large
from opmux.testing.case import Case
from opmux.testing.profiles import PROFILES
from opmux.testing.single import FAILED, PASSED, run_one

THRESHOLD = 100_000
CPU = torch.device("cpu")


def case_of(op: str) -> Case:
    (case,) = large.cases(OPS[op], PROFILES["small"], THRESHOLD)
    return case


@pytest.mark.parametrize("op", sorted(OPS))
def test_the_reference_passes(op: str) -> None:
    case = case_of(op)
    assert max(torch.Size(shape).numel() for shape in case.shapes.values()) > THRESHOLD
    outcome = run_one("reference", case, CPU)
    assert outcome.findings == []
    assert outcome.status == PASSED


def findings(op: str, target: Any) -> set[str]:
    with temporary_plugin(plugin(Implementation(op=op, target=target)), "kernel"):
        outcome = run_one("kernel", case_of(op), CPU)
    assert outcome.status == FAILED
    return {f.check for f in outcome.findings}


def test_rows_that_wrap_around() -> None:
    def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
        out = opmux.silu_mul.reference(gate, up)
        half = out.shape[0] // 2
        out[half:] = out[: out.shape[0] - half].clone()
        return out

    assert "element bound" in findings("silu_mul", silu_mul)


def test_the_last_row_missing() -> None:
    def rms_norm(*tensors: Tensor, **options: Any) -> Tensor:
        y = opmux.rms_norm.reference(*tensors, **options)
        y[-1] = 0.0
        return y

    assert "row bound" in findings("rms_norm", rms_norm)


def test_slots_that_wrap_around() -> None:
    def write_kv_cache(
        k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, *scales: Any, **options: Any
    ) -> None:
        wrapped = torch.where(slots < 0, slots, slots % (k_cache.shape[0] * k_cache.shape[1] // 2))
        opmux.write_kv_cache.reference(k, v, k_cache, v_cache, wrapped, *scales, **options)

    assert {"element bound", "writes elsewhere"} <= findings("write_kv_cache", write_kv_cache)


def test_pages_that_wrap_around() -> None:
    def paged_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, *rest: Any, **options: Any) -> Tensor:
        offsets, lengths, table, *others = rest
        return opmux.paged_attention.reference(
            q, k_cache, v_cache, offsets, lengths, table % (k_cache.shape[0] // 2), *others, **options
        )

    assert findings("paged_attention", paged_attention) & {"element bound", "NaN and Inf"}


def test_scales_of_blocks_of_rows_that_wrap_around() -> None:
    def scaled_grouped_weight_grad(*tensors: Any, **options: Any) -> None:
        *given, x_scale, sizes = tensors
        wrapped = torch.arange(len(x_scale)) % (len(x_scale) // 2)
        opmux.scaled_grouped_weight_grad.reference(*given, x_scale[wrapped], sizes, **options)

    assert "element bound" in findings("scaled_grouped_weight_grad", scaled_grouped_weight_grad)


def test_places_are_ends_middle_and_where_numbering_passes_31_bits() -> None:
    assert large.places(10, []) == [0, 1, 4, 5, 6, 8, 9]
    width = 2**20
    assert {2047, 2048, 2049} <= set(large.places(5000, [width]))
