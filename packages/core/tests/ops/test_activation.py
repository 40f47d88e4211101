"""The references of the gated activations, against torch.nn.functional in float64 and its autograd."""

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from opmux.ops.activation import (
    gelu_and_mul,
    gelu_and_mul_backward,
    gelu_mul,
    gelu_mul_backward,
    silu_and_mul,
    silu_and_mul_backward,
    silu_mul,
    silu_mul_backward,
)

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
LAYOUTS = ("contiguous", "strided", "offset", "transposed")
SHAPES = ((7, 33), (2, 3, 5), (13,), (1, 1), (0, 8), (3, 0))
CASES = (  # every size, and two of them in every layout
    *((shape, "contiguous") for shape in SHAPES),
    *((shape, layout) for shape in SHAPES[:2] for layout in LAYOUTS[1:]),
)
FORMS = {  # packed op, apart op, their backwards, options, the activation in torch
    "silu": (silu_and_mul, silu_mul, silu_and_mul_backward, silu_mul_backward, {}, functional.silu),
    "gelu": (gelu_and_mul, gelu_mul, gelu_and_mul_backward, gelu_mul_backward, {}, functional.gelu),
    "gelu_tanh": (
        gelu_and_mul,
        gelu_mul,
        gelu_and_mul_backward,
        gelu_mul_backward,
        {"approximate": "tanh"},
        lambda x: functional.gelu(x, approximate="tanh"),
    ),
}


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
    return laid_out(3 * torch.randn(*shape, dtype=torch.float64).to(dtype), layout)


def assert_rounded_once(actual: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    """actual is the float64 result, up to the accumulation's error and one rounding to dtype."""
    assert actual.dtype == dtype
    assert actual.shape == exact.shape
    assert actual.is_contiguous()
    slack = 1e-12 if dtype == torch.float64 else 4e-6
    rtol = 1.01 * torch.finfo(dtype).eps / 2 + slack
    torch.testing.assert_close(actual.double(), exact, rtol=rtol, atol=slack, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "layout"), CASES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_gated_activations(form, shape, layout, dtype):
    packed, apart, _, _, options, activation = FORMS[form]
    gate, up = (randn(*shape, dtype=dtype, layout=layout) for _ in range(2))
    exact = activation(gate.double()) * up.double()
    assert_rounded_once(apart.reference(gate, up, **options), exact, dtype)
    x = laid_out(torch.cat((gate, up), dim=-1), layout)
    assert_rounded_once(packed.reference(x, **options), exact, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "layout"), CASES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_gated_activations_backward(form, shape, layout, dtype):
    _, _, packed, apart, options, activation = FORMS[form]
    grad_out, gate, up = (randn(*shape, dtype=dtype, layout=layout) for _ in range(3))
    leaves = [t.detach().double().requires_grad_() for t in (gate, up)]
    exact = torch.autograd.grad(activation(leaves[0]) * leaves[1], leaves, grad_out.double())
    for a, e in zip(apart.reference(grad_out, gate, up, **options), exact, strict=True):
        assert_rounded_once(a, e, dtype)
    x = laid_out(torch.cat((gate, up), dim=-1), layout)
    assert_rounded_once(packed.reference(grad_out, x, **options), torch.cat(exact, dim=-1), dtype)


def naive_silu(x: float) -> float:
    return x / (1.0 + math.exp(-x)) if x > 0 else x * math.exp(x) / (1.0 + math.exp(x))


def naive_gelu(x: float) -> float:
    return 0.5 * x * math.erfc(-x / math.sqrt(2.0))


@pytest.mark.parametrize(("op", "naive"), [(silu_mul, naive_silu), (gelu_mul, naive_gelu)])
def test_the_tail_keeps_its_relative_accuracy(op, naive):
    gate = torch.linspace(-9.0, 9.0, 61)
    expected = torch.tensor([naive(g) for g in gate.tolist()], dtype=torch.float64)
    torch.testing.assert_close(op.reference(gate, torch.ones(61)).double(), expected, rtol=2e-5, atol=0.0)


def test_the_tanh_form_by_its_formula():
    gate = torch.linspace(-4.0, 4.0, 61, dtype=torch.float64)
    expected = [0.5 * g * (1 + math.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g**3))) for g in gate.tolist()]
    actual = gelu_mul.reference(gate, torch.ones_like(gate), approximate="tanh")
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(actual, gelu_mul.reference(gate, torch.ones_like(gate)), rtol=1e-6, atol=1e-6)


def test_gelu_is_exact_by_default():
    grad_out, gate, up = (randn(3, 4, dtype=torch.float32) for _ in range(3))
    for op, arguments in ((gelu_mul, (gate, up)), (gelu_mul_backward, (grad_out, gate, up))):
        default, exact = op.reference(*arguments), op.reference(*arguments, approximate="none")
        assert all(torch.equal(d, e) for d, e in zip(default, exact, strict=True))
    for op, arguments in ((gelu_and_mul, (up,)), (gelu_and_mul_backward, (grad_out[:, :2], up))):
        assert torch.equal(op.reference(*arguments), op.reference(*arguments, approximate="none"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_nan_and_infinity(form, dtype):
    packed, apart, packed_backward, apart_backward, options, _ = FORMS[form]
    nan, inf = float("nan"), float("inf")
    gate = torch.tensor([nan, 1, inf, inf, -inf, 0, 0, 2], dtype=dtype)
    up = torch.tensor([1, nan, 2, 0, 1, inf, 5, -inf], dtype=dtype)
    expected = torch.tensor([nan, nan, inf, nan, nan, nan, 0, -inf], dtype=dtype)
    for out in (apart.reference(gate, up, **options), packed.reference(torch.cat((gate, up)), **options)):
        torch.testing.assert_close(out, expected, equal_nan=True, rtol=0, atol=0)
    grad_out = torch.tensor([1, 1, 1, 1, 1, 1, nan, 1], dtype=dtype)
    grad_gate, grad_up = apart_backward.reference(grad_out, gate, up, **options)
    assert grad_gate.isnan().tolist()[:2] == [True, True]
    assert grad_up.isnan().tolist()[:2] == [True, False]
    assert grad_gate[6].isnan()
    assert grad_up[6].isnan()
    assert grad_gate[7] == -inf
    grad_x = packed_backward.reference(grad_out, torch.cat((gate, up)), **options)
    torch.testing.assert_close(grad_x, torch.cat((grad_gate, grad_up)), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("form", FORMS)
def test_large_finite_gates_saturate(form):
    _, apart, _, apart_backward, options, _ = FORMS[form]
    gate, ones = torch.tensor([1e4, -1e4, 60.0, -200.0]), torch.ones(4)
    expected = torch.tensor([1e4, 0.0, 60.0, 0.0])
    torch.testing.assert_close(apart.reference(gate, ones, **options), expected, rtol=1e-6, atol=1e-30)
    slope, _ = apart_backward.reference(ones, gate, ones, **options)
    torch.testing.assert_close(slope, torch.tensor([1.0, 0.0, 1.0, 0.0]), rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("form", FORMS)
def test_masked_gradients_are_empty(form):
    _, _, packed, apart, options, _ = FORMS[form]
    grad_out, gate, up = (randn(3, 5, dtype=torch.bfloat16) for _ in range(3))
    whole = apart.reference(grad_out, gate, up, **options)
    for mask in itertools.product((False, True), repeat=2):
        part = apart.reference(grad_out, gate, up, output_mask=mask, **options)
        for wanted, full, gradient in zip(mask, whole, part, strict=True):
            assert gradient.dtype == full.dtype
            assert torch.equal(gradient, full) if wanted else gradient.shape == (0,)
    x = torch.cat((gate, up), dim=-1)
    masked = packed.reference(grad_out, x, output_mask=(False,), **options)
    assert masked.shape == (0,)
    assert masked.dtype == x.dtype


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(1, 4), (4,), (3, 4)], ids=str)
def test_outputs_are_fresh_and_inputs_unchanged(form, shape):
    packed, apart, packed_backward, apart_backward, options, _ = FORMS[form]
    grad_out, gate, up = (randn(*shape, dtype=torch.float32) for _ in range(3))
    x = torch.cat((gate, up), dim=-1)
    arguments = (grad_out, gate, up, x)
    before = [a.clone() for a in arguments]
    outputs = (
        packed.reference(x, **options),
        apart.reference(gate, up, **options),
        packed_backward.reference(grad_out, x, **options),
        *apart_backward.reference(grad_out, gate, up, **options),
    )
    memory = [t.untyped_storage().data_ptr() for t in (*arguments, *outputs)]
    assert len(set(memory)) == len(memory)
    assert all(torch.equal(a, b) for a, b in zip(arguments, before, strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_runs_on_fake_tensors(form):
    packed, apart, packed_backward, apart_backward, options, _ = FORMS[form]

    def run(grad_out, gate, up, x):
        return (
            packed.reference(x, **options),
            apart.reference(gate, up, **options),
            packed_backward.reference(grad_out, x, **options),
            *apart_backward.reference(grad_out, gate, up, **options),
        )

    arguments = [randn(2, 3, n, dtype=torch.bfloat16) for n in (5, 5, 5, 10)]
    real = run(*arguments)
    with FakeTensorMode() as mode:
        fake = run(*(mode.from_tensor(a) for a in arguments))
    assert [(f.shape, f.dtype, f.stride()) for f in fake] == [(r.shape, r.dtype, r.stride()) for r in real]
