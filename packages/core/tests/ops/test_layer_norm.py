"""The references of the layer norms, against torch.nn.functional in float64 and its autograd."""

import pytest
from ops.norms import (
    CASES,
    DTYPES,
    LAYOUTS,
    MIXED,
    accumulated_in,
    assert_rounded_once,
    exact_layer_norm,
    gradients,
    randn,
)

from opmux.ops.layer_norm import add_layer_norm, add_layer_norm_backward, layer_norm, layer_norm_backward

LAYER_OPTIONS = ({}, {"eps": 0.1})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "layout"), CASES, ids=str)
def test_layer_norm(shape, layout, dtype):
    x = randn(*shape, dtype=dtype, layout=layout) + 3  # a mean that has to be taken off
    weight, bias = (randn(shape[-1], dtype=dtype, layout=layout) for _ in range(2))
    for options in LAYER_OPTIONS:
        for b in (None, bias):
            y = layer_norm.reference(x, weight, b, **options)
            assert_rounded_once(y, exact_layer_norm(x, weight, b, **options), dtype, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "layout"), CASES, ids=str)
def test_layer_norm_backward(shape, layout, dtype):
    grad_y, x = (randn(*shape, dtype=dtype, layout=layout) for _ in range(2))
    weight, bias = (randn(shape[-1], dtype=dtype, layout=layout) for _ in range(2))
    for options in LAYER_OPTIONS:
        expected = gradients(lambda x, w, b, o=options: exact_layer_norm(x, w, b, **o), (x, weight, bias), (grad_y,))
        actual = layer_norm_backward.reference(grad_y, x, weight, **options)
        for a, e in zip(actual, expected, strict=True):
            assert_rounded_once(a, e, dtype, dtype)


@pytest.mark.parametrize("dtypes", [*((d, d, d) for d in DTYPES), *MIXED], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(7, 33), (13,), (2, 3, 5)], ids=str)
def test_add_layer_norm(shape, layout, dtypes):
    x, residual = (randn(*shape, dtype=d, layout=layout) for d in dtypes[:2])
    weight, bias = (randn(shape[-1], dtype=dtypes[2], layout=layout) for _ in range(2))
    acc = accumulated_in(x, residual, weight)
    for b in (None, bias):
        y, residual_out = add_layer_norm.reference(x, residual, weight, b, eps=1e-3)
        assert_rounded_once(residual_out, x.double() + residual.double(), residual.dtype, acc)
        assert_rounded_once(y, exact_layer_norm(residual_out, weight, b, eps=1e-3), x.dtype, acc)


@pytest.mark.parametrize("dtypes", [*((d, d, d) for d in DTYPES), *MIXED], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(7, 33), (13,), (2, 3, 5)], ids=str)
def test_add_layer_norm_backward(shape, layout, dtypes):
    grad_y = randn(*shape, dtype=dtypes[0], layout=layout)
    grad_residual_out, total = (randn(*shape, dtype=dtypes[1], layout=layout) for _ in range(2))
    weight, bias = (randn(shape[-1], dtype=dtypes[2], layout=layout) for _ in range(2))
    acc = accumulated_in(grad_y, total, weight)
    actual = add_layer_norm_backward.reference(grad_y, grad_residual_out, total, weight, eps=1e-3)
    grad_sum, grad_weight, grad_bias = gradients(
        lambda s, w, b: (exact_layer_norm(s, w, b, eps=1e-3), s * 1.0),
        (total, weight, bias),
        (grad_y, grad_residual_out),
    )
    expected = (grad_sum, grad_sum, grad_weight, grad_bias)
    for a, e, dtype in zip(actual, expected, (*dtypes, dtypes[2]), strict=True):
        assert_rounded_once(a, e, dtype, acc)
