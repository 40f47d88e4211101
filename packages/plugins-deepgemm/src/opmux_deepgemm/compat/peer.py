"""cuBLAS's products by DeepGEMM's names: a peer to time against, for which no kernel of this backend runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from opmux.plugin import UnsupportedCall
from opmux_deepgemm.compat.adding import readable
from opmux_deepgemm.compat.arguments import check_tensor, dtype
from opmux_deepgemm.compat.checking import check, check_result, of_views, published

CODES = torch.float8_e4m3fn


def _cublaslt_gemm(name: str, a: Tensor, b: Tensor, d: Tensor, c: Tensor | None = None) -> None:
    """``d = a @ b.T`` by cuBLAS through torch, plus c where it is given: a measurement of a peer.

    Sums are float32. A c beside a float32 d, or beside codes, is added by a kernel of its own.

    Args:
        a: ``(m, k)`` bfloat16, or float8_e4m3fn along k without scales.
        b: ``(n, k)``, likewise.
        d: ``(m, n)`` bfloat16 or float32; written to.
        c: ``(m, n)`` in d's dtype, which may be d itself; None stands for 0.

    Raises:
        UnsupportedCall: Of other dtypes.
        InvalidArgument: Where shapes or dtypes do not fit.
    """
    check(name, "nk", d, 2, c)
    check_tensor(name, "a", a, 2)
    check_tensor(name, "b", b, 2)
    check_result(name, d, a, b)
    if a.dtype != b.dtype or a.dtype not in (torch.bfloat16, CODES):
        raise UnsupportedCall(
            f"{name}: `a` and `b` expected bfloat16 or float8_e4m3fn, got {dtype(a)} and {dtype(b)}; convert them"
        )
    if not d.numel():
        return
    c = None if c is None else readable(c, d)
    with _sums_in_float32():
        if a.dtype == torch.bfloat16 and d.dtype == torch.bfloat16:
            torch.mm(a, b.T, out=d) if c is None else torch.addmm(c, a, b.T, out=d)
            return
        total = d if c is None else torch.empty_like(d)
        if a.dtype == CODES:
            one = torch.ones((), device=a.device)
            torch._scaled_mm(a, b.T, one, one, out_dtype=d.dtype, out=total)
        else:
            torch.mm(a, b.T, out_dtype=torch.float32, out=total)
    if c is not None:
        torch.add(c, total, out=d)


@contextmanager
def _sums_in_float32() -> Iterator[None]:
    """Let cuBLAS add up parts of k in float32 only, as DeepGEMM asks of it; torch allows bfloat16 unless told."""
    settings: Any = torch.backends.cuda.matmul
    before = torch._C._get_cublas_allow_bf16_reduced_precision_reduction()  # with whether k may be split
    settings.allow_bf16_reduced_precision_reduction = False
    try:
        yield
    finally:
        settings.allow_bf16_reduced_precision_reduction = before


_VIEWS = "``d = {} @ {}``: `cublaslt_gemm_nt` of transposed views."
cublaslt_gemm_nt = published(_cublaslt_gemm, "cublaslt_gemm_nt")
cublaslt_gemm_nn = published(of_views(_cublaslt_gemm, False, True), "cublaslt_gemm_nn", _VIEWS.format("a", "b"))
cublaslt_gemm_tn = published(of_views(_cublaslt_gemm, True, True), "cublaslt_gemm_tn", _VIEWS.format("a.T", "b"))
cublaslt_gemm_tt = published(of_views(_cublaslt_gemm, True, False), "cublaslt_gemm_tt", _VIEWS.format("a.T", "b.T"))
