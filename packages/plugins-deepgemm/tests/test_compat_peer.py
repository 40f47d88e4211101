"""cuBLAS's products by DeepGEMM's names, here by what torch has for the CPU."""

from typing import Any

import pytest
import torch

from opmux_deepgemm import compat

BF16, F32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Products of bfloat16 with a float32 result, which torch has for GPUs only; whether each may sum in bfloat16."""
    found: list[bool] = []
    mm = torch.mm

    def call(a: torch.Tensor, b: torch.Tensor, out_dtype: Any = None, *, out: torch.Tensor) -> torch.Tensor:
        found.append(torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction)
        if out_dtype is None:
            return mm(a, b, out=out)
        assert out_dtype == out.dtype == F32
        return mm(a.float(), b.float(), out=out)

    monkeypatch.setattr(torch, "mm", call)
    return found


@pytest.mark.parametrize("form", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("added", ["nothing", "other", "itself"])
def test_products(wide, form, dtype, added) -> None:
    a, b = torch.randn(48, 64).bfloat16(), torch.randn(32, 64).bfloat16()
    d = torch.full((48, 32), 5.0, dtype=dtype)
    c = {"nothing": None, "other": torch.full_like(d, 7.0), "itself": d}[added]
    wanted = a.float() @ b.float().T + (0 if c is None else c.float())
    given = [x if letter == kept else x.T.contiguous() for x, letter, kept in zip((a, b), form, "nt", strict=True)]
    getattr(compat, f"cublaslt_gemm_{form}")(*given, d, c=c)
    torch.testing.assert_close(
        d.float(), wanted, rtol=1e-2 if dtype == BF16 else 1e-4, atol=1e-1 if dtype == BF16 else 1e-4
    )
    assert not any(wide)
    assert torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("accumulate", [False, True])
def test_products_of_codes_without_scales(dtype, accumulate) -> None:
    a, b = torch.randn(16, 64).to(FP8), torch.randn(32, 64).to(FP8)
    d = torch.full((16, 32), 5.0, dtype=dtype)
    compat.cublaslt_gemm_nt(a, b, d, d if accumulate else None)
    wanted = a.float() @ b.float().T + 5 * accumulate
    torch.testing.assert_close(d.float(), wanted, rtol=1e-2, atol=1e-1)


def test_what_is_refused() -> None:
    a, b = torch.zeros(16, 64, dtype=BF16), torch.zeros(32, 64, dtype=BF16)
    with pytest.raises(
        NotImplementedError,
        match=r"^cublaslt_gemm_tt: `a` and `b` expected bfloat16 or float8_e4m3fn, got float32 and bfloat16; convert",
    ):
        compat.cublaslt_gemm_tt(a.T.float(), b, torch.zeros(16, 32))
    with pytest.raises(ValueError, match=r"^cublaslt_gemm_nt: `d` expected shape \[16, 32\] on cpu, got \[16, 64\]"):
        compat.cublaslt_gemm_nt(a, b, torch.zeros(16, 64))
    with pytest.raises(ValueError, match=r"^cublaslt_gemm_nt: `c` expected float32\[16, 32\], as d is, got bfloat16"):
        compat.cublaslt_gemm_nt(a, b, torch.zeros(16, 32), torch.zeros(16, 32, dtype=BF16))
    empty = torch.zeros(0, 32)
    compat.cublaslt_gemm_nt(a[:0], b, empty)
    assert torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
