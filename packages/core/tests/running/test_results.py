"""What a target returns is held to the rule for outputs."""

import pytest
import torch
from backends import backends, implementation
from planted import WANTED, W, X, returning

import opmux

WRONG = [
    (returning(lambda x: x[:2].clone()), "returned float32[2, 8] on cpu as `y`, expected float32[4, 8] on cpu"),
    (returning(lambda x: x.double()), "returned float64[4, 8] on cpu as `y`, expected float32[4, 8] on cpu"),
    (returning(None), "returned None as `y`, expected float32[4, 8] on cpu"),
    (returning(lambda x: (x, x)), "returned 2 results, expected 1"),
    (returning(lambda x: x.to("meta")), "returned float32[4, 8] on meta as `y`, expected float32[4, 8] on cpu"),
]


@pytest.mark.parametrize(("target", "told"), WRONG, ids=[t[:30] for _, t in WRONG])
def test_a_wrong_result_is_a_fault_on_the_first_call(target, told):
    with backends(a=implementation(target)):
        assert torch.equal(opmux.rms_norm(X, W), WANTED)
        assert opmux.quarantined()[0].reason == f"rms_norm: a (opmux-a 1.2.3) {told}; report it to its authors"


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (lambda x, w, **o: (x.clone(),), "returned a tuple as `y`, expected float32[4, 8] on cpu"),
        (lambda x, w, **o: x, "returned `y` in the memory of `x`, expected a tensor of its own"),
        (lambda x, w, **o: torch.empty(8, 4).T, "returned `y` with strides [1, 4], expected a contiguous tensor"),
    ],
)
def test_a_result_of_the_wrong_form_is_a_fault(target, told):
    with backends(a=implementation(target)):
        assert torch.equal(opmux.rms_norm(X, W), opmux.rms_norm.reference(X, W))
        assert opmux.quarantined()[0].reason == f"rms_norm: a (opmux-a 1.2.3) {told}; report it to its authors"
