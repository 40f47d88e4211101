"""``backend=``: the error for a name under which an op has nothing; and the names under which it has something."""

import pytest
from backends import backends, implementation, plugin
from planted import W, X, filled, ones

import opmux
from opmux.errors import InvalidArgument, UnknownBackend
from opmux.planning.forced import unknown_backend


def test_an_unknown_backend_of_a_call():
    with pytest.raises(UnknownBackend) as caught:
        opmux.rms_norm(X, W, backend="tritn")
    assert str(caught.value) == (
        "rms_norm: `backend` expected one of reference, got 'tritn', which no installed plugin registers; "
        "did you mean triton, which needs pip install opmux-triton? see `opmux backends`"
    )
    with backends(a=implementation(filled(1.0))), pytest.raises(UnknownBackend) as caught:
        opmux.layer_norm(X, W, backend="a")
    assert str(caught.value) == (
        "layer_norm: `backend` expected one of reference, got 'a', which does not implement this op; "
        "omit backend= to let opmux choose"
    )


def test_a_backend_whose_plugin_failed_says_so():
    with backends(a=plugin(version=9)), pytest.raises(UnknownBackend) as caught:
        opmux.rms_norm(X, W, backend="a")
    assert str(caught.value) == (
        "rms_norm: `backend` expected one of reference, got 'a', whose plugin failed to load: "
        "API version 9, this core speaks 1: pip install -U opmux; fix the cause, and see `opmux doctor`"
    )


@pytest.mark.parametrize("backend", [5, True, ["a"]])
def test_a_backend_that_is_no_name_is_refused(backend):
    with pytest.raises(InvalidArgument) as caught:
        opmux.rms_norm(X, W, backend=backend)
    assert str(caught.value) == (
        f"rms_norm: `backend` expected a name (str) or None, got {backend!r}; see `opmux backends`"
    )


def test_a_backend_and_its_implementations_are_known_by_name():
    with backends(a=[implementation(ones, name="x"), implementation(ones, name="y")]):
        for known in ("a", "a:x", "a:y", "reference"):
            assert unknown_backend(opmux.rms_norm.op, known) is None
        complaint = unknown_backend(opmux.rms_norm.op, "a:z")
    assert isinstance(complaint, UnknownBackend)
    assert str(complaint).startswith("rms_norm: `backend` expected one of a, a:x, a:y, reference, got 'a:z', which no")


def test_an_in_place_op_knows_the_backends_of_its_functional_form():
    """It is computed by that form and a copy."""
    with backends(a=implementation(ones, op="add_rms_norm"), b=implementation(ones)):
        assert unknown_backend(opmux.add_rms_norm_.op, "a") is None
        assert isinstance(unknown_backend(opmux.add_rms_norm_.op, "b"), UnknownBackend)
        assert isinstance(unknown_backend(opmux.linear.op, "a"), UnknownBackend)
