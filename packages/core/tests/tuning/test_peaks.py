"""The datasheets' figures make sense beside each other, and what they rule out and leave."""

import pytest
import torch

from opmux.arch import parse_arch
from opmux.callpath.op import OPS
from opmux.tuning.matching import attended, shrinks
from opmux.tuning.peaks import PEAKS, least_memory_us, peak_tflops


@pytest.mark.parametrize("arch", sorted(PEAKS))
def test_narrower_is_never_slower(arch: str) -> None:
    peak = PEAKS[arch]
    assert parse_arch(arch).name == arch
    assert 0 < peak.f32 <= peak.f16 <= peak.f8 <= peak.f4
    assert peak.f16 <= peak.i8 <= peak.f4
    assert peak.source
    # Between a workstation card and a rack's largest, with the bytes of one float16 per 50 to 700 operations.
    assert 50 < peak.f16 / peak.bandwidth / 2 < 500


def test_peaks_by_dtype() -> None:
    assert peak_tflops("sm_90", [torch.bfloat16, torch.float32]) == pytest.approx(989.4 * 1.1)
    assert peak_tflops("sm_90", [torch.float32]) == peak_tflops("sm_90", [torch.float64]) == pytest.approx(494.7 * 1.1)
    assert peak_tflops("sm_90", [torch.float8_e4m3fn, torch.float32]) == pytest.approx(1978.9 * 1.1)
    assert peak_tflops("sm_100", [torch.float4_e2m1fn_x2]) == pytest.approx(10000 * 1.1)
    assert peak_tflops("sm_80", [torch.int8]) == pytest.approx(624 * 1.1)
    assert peak_tflops("sm_90", [torch.int32, torch.int64]) is None
    assert peak_tflops("cpu", [torch.float32]) is None


def test_memory_and_cache() -> None:
    assert least_memory_us("cpu", 1e9) is None
    assert least_memory_us("sm_80", 0) == 0
    assert least_memory_us("sm_80", 40e6) == pytest.approx(40e6 / (8 * 1.1 * 2.039e6))
    assert least_memory_us("sm_80", 1040e6) == pytest.approx(1000e6 / (1.1 * 2.039e6) + 40e6 / (8 * 1.1 * 2.039e6))


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 9), (5, 5), (3, 8)])
def test_the_work_that_a_causal_mask_leaves(queries: int, keys: int) -> None:
    mask = torch.ones(queries, keys).tril(keys - queries)
    dims = {"seq_q": queries, "seq_k": keys}
    assert attended(dims, {"causal": True}) == pytest.approx(float(mask.mean()))
    assert attended(dims, {"causal": False}) == 1.0
    assert attended({}, {}) == 1.0


def test_work_that_cannot_be_counted() -> None:
    assert attended({"seq_q": 5, "seq_k": 3}, {"causal": True}) is None
    assert attended({"tokens_q": 5}, {"causal": True}) is None
    assert shrinks({"window": (3, -1)})
    assert shrinks({"output_mask": (True, False)})
    assert not shrinks({"window": (-1, -1), "output_mask": (True, True)})
    assert not shrinks({})


def test_every_flops_expression_is_one_over_dims_and_defaults() -> None:
    for op in OPS.values():
        if isinstance(op.flops, str):
            assert (op.count_flops(dict.fromkeys(op.signature.binders, 2)) or 0) > 0, op.name
