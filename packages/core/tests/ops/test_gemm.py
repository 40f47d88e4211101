"""The references of the matrix products, against torch.nn.functional in float64 and its autograd."""

import itertools

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from opmux.ops.gemm import linear, linear_backward

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
LAYOUTS = ("contiguous", "strided", "offset", "transposed")
SIZES = (  # tokens, k, n
    ((7,), 33, 5),
    ((2, 3), 129, 17),
    ((), 6, 4),
    ((1,), 1, 1),
    ((0,), 8, 3),
    ((2, 0), 8, 3),
    ((3,), 0, 4),
    ((3,), 4, 0),
)
CASES = (  # every size, and two of them in every layout
    *((sizes, "contiguous") for sizes in SIZES),
    *((sizes, layout) for sizes in SIZES[:2] for layout in LAYOUTS[1:]),
)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def laid_out(values: Tensor, layout: str) -> Tensor:
    """The same values in another memory layout, with NaN around them."""
    if layout == "contiguous" or (layout == "transposed" and values.ndim < 2):
        return values.clone()
    if layout == "transposed":
        return values.mT.contiguous().mT
    step = 2 if layout == "strided" else 1
    memory = values.new_full((*values.shape[:-1], step * values.shape[-1] + 3), float("nan"))
    view = memory[..., 3:][..., ::step]
    view.copy_(values)
    return view


def randn(*shape: int, dtype: torch.dtype, layout: str = "contiguous") -> Tensor:
    return laid_out(torch.randn(*shape, dtype=torch.float64).to(dtype), layout)


def assert_product(actual: Tensor, exact: Tensor, magnitude: Tensor, dtype: torch.dtype) -> None:
    """actual is exact up to one rounding to dtype and an accumulation error in proportion to magnitude."""
    assert actual.dtype == dtype
    assert actual.shape == exact.shape
    assert actual.is_contiguous()
    epsilon = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    bound = 1.01 * torch.finfo(dtype).eps / 2 * exact.abs() + 8 * epsilon * magnitude
    bound = bound + torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    assert ((actual.double() - exact).abs() <= bound).all()


def exact_linear(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    return functional.linear(x.double(), w.double(), None if bias is None else bias.double())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("sizes", "layout"), CASES, ids=str)
def test_linear(sizes, layout, dtype):
    tokens, k, n = sizes
    x, w = randn(*tokens, k, dtype=dtype, layout=layout), randn(n, k, dtype=dtype, layout=layout)
    for bias in (None, randn(n, dtype=dtype, layout=layout)):
        out = linear.reference(x, w) if bias is None else linear.reference(x, w, bias)
        magnitude = exact_linear(x.abs(), w.abs(), None if bias is None else bias.abs())
        assert_product(out, exact_linear(x, w, bias), magnitude, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("sizes", "layout"), CASES, ids=str)
def test_linear_backward(sizes, layout, dtype):
    tokens, k, n = sizes
    grad_out = randn(*tokens, n, dtype=dtype, layout=layout)
    x, w = randn(*tokens, k, dtype=dtype, layout=layout), randn(n, k, dtype=dtype, layout=layout)

    def gradients(grad_out, x, w):
        leaves = [t.detach().double().requires_grad_() for t in (x, w, w.new_zeros(n))]
        return torch.autograd.grad(functional.linear(*leaves), leaves, grad_out.double())

    exact = gradients(grad_out, x, w)
    magnitudes = gradients(grad_out.abs(), x.abs(), w.abs())
    for a, e, m in zip(linear_backward.reference(grad_out, x, w), exact, magnitudes, strict=True):
        assert_product(a, e, m, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("sizes", "layout"), CASES, ids=str)
def test_linear_with_a_result_in_the_dtype_of_its_sums(sizes, layout, dtype):
    tokens, k, n = sizes
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    x, w = randn(*tokens, k, dtype=dtype, layout=layout), randn(n, k, dtype=dtype, layout=layout)
    for bias in (None, randn(n, dtype=dtype, layout=layout)):
        magnitude = exact_linear(x.abs(), w.abs(), None if bias is None else bias.abs())
        out = linear.reference(x, w, bias, out_dtype=wide)
        assert_product(out, exact_linear(x, w, bias), magnitude, wide)
        assert torch.equal(linear.reference(x, w, bias), out.to(dtype))
        assert torch.equal(linear.reference(x, w, bias, out_dtype=dtype), out.to(dtype))


def test_the_bias_is_added_before_the_rounding():
    # 256 + 1 is a tie that bfloat16 rounds to 256; with the bias added after that, it would be 256 again.
    x, w = torch.ones(1, 2).bfloat16(), torch.tensor([[256.0, 1.0]]).bfloat16()
    assert linear.reference(x, w).item() == 256.0
    assert linear.reference(x, w, torch.ones(1, dtype=torch.bfloat16)).item() == 258.0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_without_k_the_result_is_the_bias(dtype):
    x, w, bias = torch.empty(3, 0, dtype=dtype), torch.empty(4, 0, dtype=dtype), randn(4, dtype=dtype)
    assert linear.reference(x, w).eq(0).all()
    assert torch.equal(linear.reference(x, w, bias), bias.expand(3, 4))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_and_infinity(dtype):
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([[1, 2], [nan, 2], [inf, 2], [-inf, inf]], dtype=dtype)
    w = torch.tensor([[1, 1], [0, 1], [nan, 1]], dtype=dtype)
    expected = torch.tensor([[3, 2, nan], [nan, nan, nan], [inf, nan, nan], [nan, nan, nan]], dtype=dtype)
    torch.testing.assert_close(linear.reference(x, w), expected, equal_nan=True, rtol=0, atol=0)
    bias = torch.tensor([-inf, 0, 0], dtype=dtype)
    assert linear.reference(x, w, bias)[:, 0].tolist()[0] == -inf
    assert linear.reference(x, w, bias)[2, 0].isnan()


def test_float16_overflows_only_at_the_rounding():
    x = torch.full((1, 3), 256.0, dtype=torch.float16)
    w = torch.tensor([[256.0, 256.0, -300.0]], dtype=torch.float16)
    assert linear.reference(x, w).item() == 256.0 * 212.0
    assert linear.reference(x, w.abs()).item() == float("inf")


@pytest.mark.parametrize("mask", list(itertools.product((False, True), repeat=3)), ids=str)
def test_masked_gradients_are_empty(mask):
    grad_out, x, w = (randn(*s, dtype=torch.bfloat16) for s in ((3, 4), (3, 5), (4, 5)))
    whole = linear_backward.reference(grad_out, x, w)
    part = linear_backward.reference(grad_out, x, w, output_mask=mask)
    for wanted, full, gradient in zip(mask, whole, part, strict=True):
        assert gradient.dtype == full.dtype
        assert torch.equal(gradient, full) if wanted else gradient.shape == (0,)


@pytest.mark.parametrize("tokens", [(), (1,), (2, 3)], ids=str)
def test_outputs_are_fresh_and_inputs_unchanged(tokens):
    x, w, bias, grad_out = (randn(*s, dtype=torch.float32) for s in ((*tokens, 4), (3, 4), (3,), (*tokens, 3)))
    arguments = (x, w, bias, grad_out)
    before = [a.clone() for a in arguments]
    outputs = (linear.reference(x, w, bias), *linear_backward.reference(grad_out, x, w))
    memory = [t.untyped_storage().data_ptr() for t in (*arguments, *outputs)]
    assert len(set(memory)) == len(memory)
    assert all(torch.equal(a, b) for a, b in zip(arguments, before, strict=True))


def test_an_expanded_gradient():
    x, w = randn(3, 4, dtype=torch.float32), randn(5, 4, dtype=torch.float32)
    strided = linear_backward.reference(torch.ones(()).expand(3, 5), x, w)
    for a, b in zip(strided, linear_backward.reference(torch.ones(3, 5), x, w), strict=True):
        torch.testing.assert_close(a, b)
        assert a.is_contiguous()


def test_runs_on_fake_tensors():
    x, w, bias, grad_out = (randn(*s, dtype=torch.bfloat16) for s in ((2, 3, 4), (5, 4), (5,), (2, 3, 5)))
    real = (linear.reference(x, w, bias), *linear_backward.reference(grad_out, x, w))
    with FakeTensorMode() as mode:
        x, w, bias, grad_out = (mode.from_tensor(t) for t in (x, w, bias, grad_out))
        fake = (linear.reference(x, w, bias), *linear_backward.reference(grad_out, x, w))
    assert [(f.shape, f.dtype, f.stride()) for f in fake] == [(r.shape, r.dtype, r.stride()) for r in real]
