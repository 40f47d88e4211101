"""The references of the norms, against torch.nn.functional in float64 and its autograd; rules that all norms share."""

import inspect
import itertools
import math

import pytest
import torch
from ops.norms import (
    CASES,
    DTYPES,
    LAYOUTS,
    MIXED,
    accumulated_in,
    assert_rounded_once,
    exact_layer_norm,
    exact_rms_norm,
    gradients,
    randn,
)
from torch._subclasses.fake_tensor import FakeTensorMode

import opmux
from opmux.errors import InvalidArgument
from opmux.ops.layer_norm import add_layer_norm, add_layer_norm_backward, layer_norm, layer_norm_backward
from opmux.ops.norm import add_rms_norm, add_rms_norm_, add_rms_norm_backward, rms_norm, rms_norm_backward

RMS_OPTIONS = ({}, {"eps": 0.1}, {"weight_offset": 1.0}, {"eps": 1e-5, "weight_offset": -0.5})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "layout"), CASES, ids=str)
def test_rms_norm(shape, layout, dtype):
    x, weight = randn(*shape, dtype=dtype, layout=layout), randn(shape[-1], dtype=dtype, layout=layout)
    for options in RMS_OPTIONS:
        y = rms_norm.reference(x, weight, **options)
        assert_rounded_once(y, exact_rms_norm(x, weight, **options), dtype, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "layout"), CASES, ids=str)
def test_rms_norm_backward(shape, layout, dtype):
    grad_y, x = (randn(*shape, dtype=dtype, layout=layout) for _ in range(2))
    weight = randn(shape[-1], dtype=dtype, layout=layout)
    for options in RMS_OPTIONS:
        expected = gradients(lambda x, w, o=options: exact_rms_norm(x, w, **o), (x, weight), (grad_y,))
        actual = rms_norm_backward.reference(grad_y, x, weight, **options)
        for a, e in zip(actual, expected, strict=True):
            assert_rounded_once(a, e, dtype, dtype)


@pytest.mark.parametrize("dtypes", [*((d, d, d) for d in DTYPES), *MIXED], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(7, 33), (13,), (2, 3, 5)], ids=str)
def test_add_rms_norm(shape, layout, dtypes):
    x, residual = (randn(*shape, dtype=d, layout=layout) for d in dtypes[:2])
    weight = randn(shape[-1], dtype=dtypes[2], layout=layout)
    acc = accumulated_in(x, residual, weight)
    y, residual_out = add_rms_norm.reference(x, residual, weight, eps=1e-3, weight_offset=1.0)
    assert_rounded_once(residual_out, x.double() + residual.double(), residual.dtype, acc)
    assert_rounded_once(y, exact_rms_norm(residual_out, weight, eps=1e-3, weight_offset=1.0), x.dtype, acc)


@pytest.mark.parametrize("dtypes", [*((d, d, d) for d in DTYPES), *MIXED], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(7, 33), (13,), (2, 3, 5)], ids=str)
def test_add_rms_norm_backward(shape, layout, dtypes):
    grad_y = randn(*shape, dtype=dtypes[0], layout=layout)
    grad_residual_out, total = (randn(*shape, dtype=dtypes[1], layout=layout) for _ in range(2))
    weight = randn(shape[-1], dtype=dtypes[2], layout=layout)
    acc = accumulated_in(grad_y, total, weight)
    options = {"eps": 1e-3, "weight_offset": 1.0}
    actual = add_rms_norm_backward.reference(grad_y, grad_residual_out, total, weight, **options)
    grad_sum, grad_weight = gradients(
        lambda s, w: (exact_rms_norm(s, w, **options), s * 1.0), (total, weight), (grad_y, grad_residual_out)
    )
    expected = (grad_sum, grad_sum, grad_weight)
    for a, e, dtype in zip(actual, expected, dtypes, strict=True):
        assert_rounded_once(a, e, dtype, acc)


def test_add_rms_norm_norms_the_rounded_sum():
    # 256 + 1 is 256 in bfloat16: a sum that is not rounded first gives another y.
    x, residual = torch.tensor([[1.0, 0.0]]), torch.tensor([[256.0, 3.0]], dtype=torch.bfloat16)
    y, residual_out = add_rms_norm.reference(x, residual, torch.ones(2), eps=0.0)
    assert residual_out.tolist() == [[256.0, 3.0]]
    torch.testing.assert_close(y.double(), exact_rms_norm(residual_out, torch.ones(2), eps=0.0), rtol=1e-7, atol=0)
    assert not torch.equal(y, rms_norm.reference(x + residual.float(), torch.ones(2), eps=0.0))


@pytest.mark.parametrize("dtypes", MIXED, ids=str)
def test_the_weight_may_differ_in_dtype(dtypes):
    x, weight, grad_y = randn(5, 9, dtype=dtypes[0]), randn(9, dtype=dtypes[2]), randn(5, 9, dtype=dtypes[0])
    acc = accumulated_in(x, weight)
    assert_rounded_once(rms_norm.reference(x, weight), exact_rms_norm(x, weight), x.dtype, acc)
    assert_rounded_once(layer_norm.reference(x, weight, weight), exact_layer_norm(x, weight, weight), x.dtype, acc)
    assert [g.dtype for g in rms_norm_backward.reference(grad_y, x, weight)] == [x.dtype, weight.dtype]
    assert [g.dtype for g in layer_norm_backward.reference(grad_y, x, weight)] == [
        x.dtype,
        weight.dtype,
        weight.dtype,
    ]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_and_infinity(dtype):
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([[1, nan, 2], [1, inf, 2], [-inf, 3, inf], [0, 0, 0]], dtype=dtype)
    weight = torch.tensor([1, 2, 3], dtype=dtype)
    rms = rms_norm.reference(x, weight).double()
    expected = torch.tensor([[nan, nan, nan], [0, nan, 0], [nan, 0, nan], [0, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(rms, expected, equal_nan=True, rtol=0, atol=0)
    layer = layer_norm.reference(x, weight).double()
    assert layer[:3].isnan().all()
    assert layer[3].eq(0).all()
    y, residual_out = add_rms_norm.reference(x, torch.zeros_like(x), weight)
    torch.testing.assert_close(y.double(), expected, equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(residual_out, x, equal_nan=True, rtol=0, atol=0)
    # A bad row spoils its own gradient and the weight's, no other row's.
    grad_x, grad_weight = rms_norm_backward.reference(torch.ones_like(x), x, weight)
    assert grad_x[:3].isnan().any(dim=-1).all()
    assert grad_x[3].isfinite().all()
    assert grad_weight.isnan().tolist() == [True, True, True]


EXAMPLES = {
    "rms_norm": (rms_norm, "xw", 1),
    "rms_norm_backward": (rms_norm_backward, "xxw", 2),
    "add_rms_norm": (add_rms_norm, "xxw", 2),
    "add_rms_norm_backward": (add_rms_norm_backward, "xxxw", 3),
    "layer_norm": (layer_norm, "xww", 1),
    "layer_norm_backward": (layer_norm_backward, "xxw", 3),
    "add_layer_norm": (add_layer_norm, "xxww", 2),
    "add_layer_norm_backward": (add_layer_norm_backward, "xxxw", 4),
}


def example(name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32):
    op, kinds, outputs = EXAMPLES[name]
    return op, [randn(*(shape if kind == "x" else shape[-1:]), dtype=dtype) for kind in kinds], outputs


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("shape", [(1, 5), (5,), (3, 4)], ids=str)
def test_outputs_are_fresh_and_inputs_unchanged(name, shape):
    op, arguments, count = example(name, shape)
    before = [a.clone() for a in arguments]
    outputs = as_tuple(op.reference(*arguments))
    assert len(outputs) == count
    memory = [t.untyped_storage().data_ptr() for t in (*arguments, *outputs)]
    assert len(set(memory)) == len(memory)
    assert all(torch.equal(a, b) for a, b in zip(arguments, before, strict=True))


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("shape", [(3, 0), (0, 4), (0,), (0, 0), (2, 0, 6)], ids=str)
def test_empty_dims(name, shape):
    op, arguments, _ = example(name, shape)
    for output in as_tuple(op.reference(*arguments)):
        assert output.shape in (shape, shape[-1:])
        assert output.eq(0).all()  # a weight's gradient over no tokens


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name.endswith("_backward")])
def test_masked_gradients_are_empty(name):
    op, arguments, count = example(name, (3, 5), torch.bfloat16)
    whole = op.reference(*arguments)
    for mask in itertools.product((False, True), repeat=count):
        for wanted, full, part in zip(mask, whole, op.reference(*arguments, output_mask=mask), strict=True):
            assert part.dtype == full.dtype
            assert torch.equal(part, full) if wanted else part.shape == (0,)


@pytest.mark.parametrize("name", EXAMPLES)
def test_runs_on_fake_tensors(name):
    op, arguments, _ = example(name, (3, 5), torch.bfloat16)
    real = as_tuple(op.reference(*arguments))
    with FakeTensorMode() as mode:
        fake = as_tuple(op.reference(*(mode.from_tensor(a) for a in arguments)))
    assert [(f.shape, f.dtype, f.stride()) for f in fake] == [(r.shape, r.dtype, r.stride()) for r in real]


def test_an_expanded_gradient():
    x, weight = randn(3, 5, dtype=torch.float32), randn(5, dtype=torch.float32)
    ones = torch.ones(()).expand(3, 5)  # what y.sum().backward() hands over
    for op in (rms_norm_backward, layer_norm_backward):
        for strided, plain in zip(
            op.reference(ones, x, weight), op.reference(torch.ones(3, 5), x, weight), strict=True
        ):
            assert torch.equal(strided, plain)
            assert strided.is_contiguous()


def test_the_in_place_form_takes_the_same_tensors():
    def positional(op):
        parameters = inspect.signature(op).parameters.values()
        return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]

    assert positional(add_rms_norm_) == positional(add_rms_norm)


NORMS = [
    (opmux.rms_norm, 1),
    (opmux.add_rms_norm, 2),
    (opmux.add_rms_norm_, 2),
    (opmux.rms_norm_backward, 2),
    (opmux.add_rms_norm_backward, 3),
    (opmux.layer_norm, 1),
    (opmux.add_layer_norm, 2),
    (opmux.layer_norm_backward, 2),
    (opmux.add_layer_norm_backward, 3),
]


@pytest.mark.parametrize("eps", [-1e-6, math.nan])
@pytest.mark.parametrize(("op", "rows"), NORMS)
def test_an_eps_below_zero_or_nan_is_refused(op, rows, eps):
    tensors = [torch.zeros(3, 8) for _ in range(rows)] + [torch.zeros(8)]
    op(*tensors)  # with a plan made, the call is a direct one
    with pytest.raises(InvalidArgument) as refused:
        op(*tensors, eps=eps)
    assert str(refused.value) == (
        f"{op.__name__}: `eps` expected eps >= 0, got eps = {eps!r}; "
        "eps is added under a square root, so it is 0 or more"
    )
