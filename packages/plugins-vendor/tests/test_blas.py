"""Products by BLAS: the bias before the rounding, ``out=`` in any layout, gradients that nobody wants."""

import pytest
import torch

import opmux
from opmux_vendor import blas


@pytest.mark.parametrize("shape", [(64,), (3, 64), (2, 3, 64), (0, 64)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_linear_rounds_once_after_the_bias(shape, with_bias):
    x, w = torch.randn(shape, dtype=torch.bfloat16), torch.randn(32, 64, dtype=torch.bfloat16)
    bias = torch.randn(32, dtype=torch.bfloat16) if with_bias else None
    exact = x.double() @ w.double().T + (0 if bias is None else bias.double())
    found = opmux.linear(x, w, bias, backend="vendor")
    assert found.shape == exact.shape
    torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("with_bias", [True, False])
def test_linear_writes_into_out(strided, with_bias):
    x, w = torch.randn(2, 3, 64), torch.randn(32, 64)
    bias = torch.randn(32) if with_bias else None
    out = torch.full((2, 3, 64), torch.nan)[..., ::2] if strided else torch.full((2, 3, 32), torch.nan)
    assert opmux.linear(x, w, bias, out=out, backend="vendor") is out
    torch.testing.assert_close(out, torch.nn.functional.linear(x, w, bias))


@pytest.mark.parametrize("place", ["", "out", "strided"])
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_float32_result_is_that_of_the_library_with_the_bias_added(monkeypatch, place, with_bias):
    """Torch has this product for CUDA alone: here a product in float32 stands for it."""

    def mm(a, b, *, out_dtype, out=None):
        assert (a.dtype, b.dtype, out_dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
        assert out is None or (out.is_contiguous() and out.dtype == torch.float32)
        made = a.float() @ b.float()
        return made if out is None else out.copy_(made)

    monkeypatch.setattr(torch, "mm", mm)
    x, w = torch.randn(2, 3, 64, dtype=torch.bfloat16), torch.randn(32, 64, dtype=torch.bfloat16)
    bias = torch.randn(32, dtype=torch.bfloat16) if with_bias else None
    given = {"out": torch.empty(2, 3, 32), "strided": torch.empty(2, 3, 64)[..., ::2], "": None}[place]
    found = blas.linear(x, w, bias, out_dtype=torch.float32, out=given)
    assert given is None or found is given
    exact = x.double() @ w.double().T + (0 if bias is None else bias.double())
    assert found.shape == (2, 3, 32)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (False, False, True)])
def test_linear_backward_computes_what_is_wanted(wanted):
    x, w, grad = torch.randn(2, 3, 64), torch.randn(32, 64), torch.randn(2, 3, 32)
    found = opmux.linear_backward(grad, x, w, output_mask=wanted, backend="vendor")
    expected = opmux.linear_backward(grad, x, w, output_mask=wanted, backend="reference")
    for one, other, want in zip(found, expected, wanted, strict=True):
        assert one.shape == other.shape
        assert (one.numel() > 0) == want
        torch.testing.assert_close(one, other)
