"""The rule for outputs: number, form, strides, and memory of their own."""

import pytest
import torch

import opmux
from opmux.signatures.outputs import Form, as_tuple, faults_of, forms
from opmux.signatures.validation import check_call

X, W = torch.randn(4, 8), torch.randn(8)
ADDED = {"x": X, "residual": torch.randn(4, 8), "weight": W}


def expected_of_added():
    signature = opmux.add_rms_norm.op.signature
    dims, options = check_call(signature, ADDED, {"eps": 1e-6, "weight_offset": 0.0})
    return forms(signature, ADDED, dims, options)


def test_forms_follow_from_the_call():
    assert [str(form) for form in expected_of_added()] == ["float32[4, 8] on cpu", "float32[4, 8] on cpu"]


SHARED = torch.empty(4, 8)
WRONG = [
    ((torch.empty(4, 8),), [("form", "returned 1 results, expected 2")]),
    (
        (torch.empty(4, 7), torch.empty(4, 8)),
        [("form", "returned float32[4, 7] on cpu as `{0}`, expected float32[4, 8] on cpu")],
    ),
    (
        (torch.empty(8, 4).T, torch.empty(4, 8)),
        [("strides", "returned `{0}` with strides [1, 4], expected a contiguous tensor")],
    ),
    ((X, torch.empty(4, 8)), [("aliasing", "returned `{0}` in the memory of `x`, expected a tensor of its own")]),
    ((SHARED, SHARED), [("aliasing", "returned `{1}` in the memory of `{0}`, expected a tensor of its own")]),
    ((torch.empty(4, 8), torch.empty(4, 8)), []),
]


@pytest.mark.parametrize(("results", "told"), WRONG, ids=["number", "shape", "strides", "input", "twice", "right"])
def test_everything_that_is_wrong_is_found(results, told):
    expected = expected_of_added()
    names = [form.name for form in expected]
    found = [(fault.check, fault.message) for fault in faults_of(expected, results, ADDED)]
    assert found == [(check, message.format(*names)) for check, message in told]


def test_strides_that_a_definition_gives_are_held_to():
    form = Form("scale", (4, 1), torch.float32, torch.device("cpu"), strides=(1, 4))
    assert form.strides_fit(torch.empty(4, 1))  # the stride of a dim of size 1 does not matter
    assert not form.strides_fit(torch.empty(8, 1)[::2])
    message = next(faults_of([form], (torch.empty(8, 1)[::2],), {})).message
    assert message == "returned `scale` with strides [2, 1], expected strides [1, 4]"


def test_a_tuple_of_one_is_not_the_tensor():
    one = [Form("y", (4,), torch.float32, torch.device("cpu"))]
    assert as_tuple((X,), one) == ((X,),)
    assert as_tuple(X, one) == (X,)
