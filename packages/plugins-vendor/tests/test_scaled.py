"""Products of codes by torch's libraries: what they take, how scales are laid out for them, what they give."""

from types import SimpleNamespace

import pytest
import torch

import opmux
from opmux.errors import UnsupportedCall
from opmux_vendor import scaled, scaled_records

FP8, BF16 = torch.float8_e4m3fn, torch.bfloat16


def given(*batch, m=64, n=256, k=512, dtype=FP8, blocks="token"):
    columns = -(-k // 128)
    of_x = {"tensor": (1, 1), "token": (m, 1)}.get(blocks, (m, columns))
    of_w = {"tensor": (1, 1), "token": (n, 1), "square": (-(-n // 128), columns)}.get(blocks, (n, columns))
    x, w = (torch.randn(*rows, k).mul_(4).to(dtype) for rows in ((*batch, m), (n,)))
    return x, w, torch.rand(*batch, *of_x) + 0.5, torch.rand(of_w) + 0.5


def taken(arch, *tensors, out_dtype=BF16):
    explained = opmux.explain(opmux.scaled_linear, *tensors, arch=arch, out_dtype=out_dtype)
    return {c.name for c in explained.candidates if c.name.startswith("vendor") and c.status in ("chosen", "accepted")}


TAKEN = [
    ("sm_90", given(), {"vendor:scaled_mm"}),
    ("sm_90", given(3), {"vendor:scaled_mm"}),
    ("sm_90", given(blocks="tensor"), {"vendor:scaled_mm_tensors"}),
    ("sm_90", given(3, blocks="tensor"), set()),  # a scale for each matrix
    ("sm_90", given(k=520), set()),
    ("sm_90", given(k=256, blocks="square"), set()),
    ("sm_90", given(dtype=torch.int8), {"vendor:int_mm"}),
    ("sm_90", given(m=16, dtype=torch.int8), set()),
    ("sm_90", given(dtype=torch.int8, blocks="square"), set()),
    ("sm_90", given(dtype=torch.float8_e5m2), set()),
    ("gfx942", given(), set()),
    ("cpu", given(k=500, n=70), {"vendor:scaled_mm"}),
    ("cpu", given(dtype=torch.float8_e5m2fnuz, blocks="tensor"), {"vendor:scaled_mm_tensors"}),
    ("cpu", given(blocks="square"), set()),
]


@pytest.mark.parametrize(("arch", "tensors", "expected"), TAKEN)
def test_products_are_taken_by_the_libraries_that_can(arch, tensors, expected, monkeypatch):
    monkeypatch.setattr(scaled_records, "_refused_on_the_cpu", lambda dtype, scales: None)
    opmux.policy.reset()
    assert taken(arch, *tensors) == expected


def test_a_cpu_is_asked_whether_it_multiplies_such_codes(monkeypatch):
    def scaled_mm(a, b, a_scale, b_scale, *, out_dtype):
        if a_scale.numel() > 1:
            raise RuntimeError("only per-tensor scaling")

    monkeypatch.setattr(torch, "_scaled_mm", scaled_mm)
    monkeypatch.setattr(scaled_records, "_refused_on_the_cpu", scaled_records._refused_on_the_cpu.__wrapped__)
    opmux.policy.reset()
    assert taken("cpu", *given(blocks="tensor")) == {"vendor:scaled_mm_tensors"}
    explained = opmux.explain(opmux.scaled_linear, *given(), arch="cpu", out_dtype=BF16)
    (found,) = [c for c in explained.candidates if c.name == "vendor:scaled_mm"]
    assert found.reason == (
        f"this is cpu, and torch {torch.__version__} does not multiply float8_e4m3fn with scales of rows on this CPU"
    )


@pytest.mark.parametrize(
    ("cuda", "reason"),
    [
        ("13.0", None),
        ("12.9", None),
        ("12.8", "torch is built with CUDA 12.8, needs 12.9"),
        (None, "torch is built without CUDA"),
    ],
)
def test_scales_of_blocks_need_a_recent_cuda(cuda, reason, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    assert scaled_records.CudaAtLeast((12, 9)).check(SimpleNamespace()) == reason
    opmux.policy.reset()
    assert taken("sm_90", *given(blocks="square")) == ({"vendor:scaled_mm_blocks"} if reason is None else set())


@pytest.mark.parametrize("blocks", ["tensor", "token"])
@pytest.mark.parametrize("dtype", [FP8, torch.float8_e5m2fnuz, torch.int8])
@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_products_agree_with_the_reference(blocks, dtype, batch):
    batch = batch if blocks == "token" or dtype == torch.int8 else (1,)
    tensors = given(*batch, m=5, n=40, k=70, dtype=dtype, blocks=blocks)
    if not taken("cpu", *tensors, out_dtype=torch.float32):
        with pytest.raises(UnsupportedCall, match=r"does not multiply float8_\w+ with scales of .* on this CPU"):
            opmux.scaled_linear(*tensors, out_dtype=torch.float32, backend="vendor")
        return
    found = opmux.scaled_linear(*tensors, out_dtype=torch.float32, backend="vendor")
    expected = opmux.scaled_linear.reference(*tensors, out_dtype=torch.float32)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-3)


def test_one_row_repeated_is_copied_for_the_library(monkeypatch):
    seen = []

    def scaled_mm(a, b, a_scale, b_scale, *, out_dtype):
        seen.append((a.stride(), b.stride()))
        return (a.float() @ b.float() * a_scale * b_scale).to(out_dtype)

    monkeypatch.setattr(torch, "_scaled_mm", scaled_mm)
    x, w, x_scale, w_scale = given(1, m=5, n=40, k=64, blocks="tensor")
    x = x[:, :1].expand(1, 5, 64)
    found = scaled.scaled_linear(x, w, x_scale, w_scale, None, out_dtype=torch.float32)
    expected = opmux.scaled_linear.reference(x, w, x_scale, w_scale, out_dtype=torch.float32)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-3)
    assert seen == [((64, 1), (1, 64))]


def test_int8_is_rounded_once_after_the_bias():
    tensors, bias = given(m=5, n=40, k=70, dtype=torch.int8), torch.randn(40)
    found = opmux.scaled_linear(*tensors, bias, out_dtype=BF16, backend="vendor")
    exact = opmux.scaled_linear.reference(*tensors, bias, out_dtype=torch.float64)
    torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize("turned", [False, True])
def test_scales_of_blocks_are_laid_out_for_the_library(turned, monkeypatch):
    """Those of 1x128 with a row's neighbour next to it, and squares by rows."""
    seen = []

    def scaled_mm(a, b, a_scale, b_scale, *, out_dtype):
        seen.append((a_scale.stride(), b_scale.stride()))
        of_a = a_scale.repeat_interleave(128, 1)[:, : a.shape[1]]
        of_b = b_scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[: b.shape[0], : b.shape[1]]
        return ((a.float() * of_a) @ (b.float() * of_b)).to(out_dtype)

    monkeypatch.setattr(torch, "_scaled_mm", scaled_mm)
    x, w, x_scale, w_scale = given(2, m=12, n=256, k=512, blocks="square")
    if turned:
        x_scale, w_scale = x_scale.mT.contiguous().mT, w_scale.t().contiguous().t()
    tensors = x, w, x_scale, w_scale, None
    found = scaled.scaled_linear_of_blocks(*tensors, out_dtype=torch.float32)
    expected = opmux.scaled_linear.reference(*tensors, out_dtype=torch.float32)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
    assert seen == [((1, 24), (1, 4))]


def test_an_empty_result_calls_no_library(monkeypatch):
    monkeypatch.setattr(scaled_records, "_refused_on_the_cpu", lambda dtype, scales: None)
    opmux.policy.reset()
    monkeypatch.delattr(torch, "_scaled_mm")
    monkeypatch.delattr(torch, "_int_mm")
    for dtype in (FP8, torch.int8):
        tensors = given(m=0, dtype=dtype)
        assert opmux.scaled_linear(*tensors, out_dtype=BF16, backend="vendor").shape == (0, 256)
