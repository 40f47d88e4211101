"""Guards: what they tell apart, natively and in Python."""

import pytest
import torch
from planted import W, X
from torch._vmap_internals import _vmap

import opmux
from opmux.callpath import guards
from opmux.callpath.op import OPS
from opmux.errors import InvalidArgument


def test_the_python_guard_is_as_good(monkeypatch):
    monkeypatch.setattr(guards, "_native_answers_as_expected", lambda: False)
    OPS["rms_norm"].drop_plans()
    parameter = torch.nn.Parameter(W.clone())
    for x, w in [(X, W), (X.double(), W), (X[0], W), (X, W.bfloat16()), (X, W)]:
        assert torch.equal(opmux.rms_norm(x, w), opmux.rms_norm.reference(x, w))
    assert opmux.rms_norm(X, parameter).requires_grad
    with torch.no_grad():
        assert not opmux.rms_norm(X, parameter).requires_grad
    with torch.inference_mode():
        assert opmux.rms_norm(X, W).is_inference()
    with pytest.raises(InvalidArgument):
        opmux.rms_norm(X, None)
    OPS["rms_norm"].drop_plans()


def test_guards_tell_apart_what_a_plan_may_not_share():
    assert guards._native_answers_as_expected(), "torch's guard is used on this version of torch"
    for make in (guards._native, guards._in_python):
        same = make((X, W))
        assert same(torch.randn(9, 3), torch.randn(5))
        others = [X.double(), X[0], X.to("meta"), X.clone().requires_grad_(), torch.nn.Parameter(X)]
        with torch.inference_mode():
            others.append(X.clone())
        others.append(torch.randn(4, 8, dtype=torch.complex64).conj().imag)
        assert not any(same(x, W) for x in others)
        batched = []
        _vmap(lambda x: batched.append(same(x, W)) or x)(torch.randn(3, 4, 8))  # noqa: B023 - called at once
        assert batched == [False]
        with torch.autocast("cpu"):
            assert not same(X, W)
        with torch.no_grad():
            assert same(X, W)


def test_exact_guards_tell_sizes_and_strides_apart():
    for make in (guards._native, guards._in_python):
        same = make((X, W), exact=True)
        assert same(X.clone(), torch.nn.Parameter(W.clone(), requires_grad=False).detach())
        wide = torch.randn(X.shape[0], 2 * X.shape[1])[:, ::2]
        others = [X.double(), X[:-1], X[:, :-1], X.T, wide, X[None], X.to("meta"), X.clone().requires_grad_()]
        assert not any(same(x, W) for x in others)
    x = torch.randn(4, 8)
    assert guards.make_guard((x, x), exact=True)(x, x), "one tensor given twice is for the guard in Python"
    assert not guards.make_guard((x, x), exact=True)(x, x[:2])


@pytest.mark.parametrize("mode", ["inference", "autocast", "float64"])
def test_the_guards_own_trial_does_not_depend_on_the_callers_state(mode):
    guards._native_answers_as_expected.cache_clear()
    if mode == "inference":
        with torch.inference_mode():
            assert guards._native_answers_as_expected()
    elif mode == "autocast":
        with torch.autocast("cpu"):
            assert guards._native_answers_as_expected()
    else:
        torch.set_default_dtype(torch.float64)
        try:
            assert guards._native_answers_as_expected()
        finally:
            torch.set_default_dtype(torch.float32)
