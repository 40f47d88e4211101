"""The policy: order of choice, what is ruled out, and that a snapshot is replaced whole."""

import threading

import pytest
import torch
from backends import backends, implementation

import opmux
from opmux.errors import InvalidArgument, UnknownBackend
from opmux.plugin import Priority
from opmux.plugins import loading

X, W = torch.randn(4, 8), torch.randn(8)


def filled(value):
    def target(x, weight, *, eps, weight_offset):
        return torch.full_like(x, value)

    return target


@pytest.fixture
def three():
    """Backends a, b and c (with two implementations), all of which take the call."""
    with backends(
        a=implementation(filled(1.0), priority=Priority.PORTABLE),
        b=implementation(filled(2.0), priority=Priority.SPECIALISED),
        c=[implementation(filled(3.0), name="x"), implementation(filled(4.0), name="y")],
    ):
        yield


def ran():
    return opmux.rms_norm(X, W)[0, 0].item()


def order():
    plan = opmux.explain(opmux.rms_norm, X, W)
    return [c.name for c in plan.candidates if c.status in ("chosen", "accepted")]


@pytest.mark.usefixtures("three")
def test_disable_for_all_ops_or_some():
    opmux.policy.disable("b", ops=["layer_norm"])
    assert ran() == 2.0
    opmux.policy.disable("b", ops=["rms_norm"])
    assert ran() == 1.0
    opmux.policy.disable("a", "c:x")
    assert ran() == 4.0
    statuses = {c.name: (c.status, c.reason) for c in opmux.explain(opmux.rms_norm, X, W).candidates}
    assert statuses["b"] == ("disabled", "disabled by policy.disable")
    opmux.policy.reset()
    assert ran() == 2.0


@pytest.mark.usefixtures("three")
def test_override_is_restored_whatever_happens():
    with opmux.policy.override(prefer=["a"], disable=["c"], strict=True) as inside:
        assert ran() == 1.0
        assert inside.strict
        with opmux.policy.override(disable=["a"]):
            assert ran() == 2.0
    with pytest.raises(KeyError), opmux.policy.override(disable=["b"]):
        raise KeyError
    assert ran() == 2.0
    assert opmux.policy.current() == opmux.policy.Policy()


@pytest.mark.parametrize("call", ["prefer", "disable"])
def test_an_unknown_name_is_an_error(call):
    with pytest.raises(UnknownBackend) as caught:
        getattr(opmux.policy, call)("tritn")
    assert str(caught.value) == (
        f"policy.{call}: `names` expected registered backends or implementations "
        f"({', '.join(sorted(set(loading.known_names())))}), got 'tritn'; "
        "did you mean triton, which needs pip install opmux-triton? see `opmux backends` and, for plugins that failed "
        "to load, `opmux doctor`"
    )


@pytest.mark.parametrize("call", ["prefer", "disable"])
def test_a_list_of_names_is_to_be_unpacked(call):
    with pytest.raises(InvalidArgument) as caught:
        getattr(opmux.policy, call)(["reference", "a"])
    assert str(caught.value) == (
        f"policy.{call}: `names` expected names, each an argument of its own, got ['reference', 'a']; "
        f"unpack it: policy.{call}(*['reference', 'a'])"
    )
    with pytest.raises(InvalidArgument) as caught:
        getattr(opmux.policy, call)(3)
    assert str(caught.value) == f"policy.{call}: `names` expected str, got 3; see `opmux backends`"


@pytest.mark.parametrize("value", ["no", 0, None])
@pytest.mark.parametrize("call", ["strict", "check"])
def test_a_switch_is_a_bool(call, value):
    with pytest.raises(InvalidArgument) as caught:
        getattr(opmux.policy, call)(value)
    assert str(caught.value) == f"policy.{call}: `on` expected True or False, got {value!r}; pass a bool"
    if value is not None:
        with pytest.raises(InvalidArgument) as caught, opmux.policy.override(**{call: value}):
            pass
        assert str(caught.value) == f"policy.override: `{call}` expected True or False, got {value!r}; pass a bool"
    assert opmux.policy.current() == opmux.policy.Policy()


def test_disable_wants_ops_that_exist():
    with pytest.raises(InvalidArgument) as caught:
        opmux.policy.disable("reference", ops=["rms_nrm"])
    assert str(caught.value) == (
        "policy.disable: `ops` expected names of ops, got 'rms_nrm'; did you mean rms_norm? see `opmux ops`"
    )
    with pytest.raises(InvalidArgument) as caught:
        opmux.policy.disable("reference", ops="rms_norm")
    assert str(caught.value) == (
        "policy.disable: `ops` expected a list of op names, got the str 'rms_norm'; pass ['rms_norm']"
    )


def test_changes_of_policy_from_many_threads_are_all_kept():
    names = [f"b{i}" for i in range(8)]
    with backends(**{name: implementation(filled(1.0)) for name in names}):
        threads = [threading.Thread(target=opmux.policy.disable, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {d.name for d in opmux.policy.current().disabled} == set(names)
        opmux.policy.reset()
        opmux.policy.disable("b0", ops=(op for op in ["rms_norm"]))
        assert opmux.explain(opmux.rms_norm, X, W).chosen.name == "b1"
        with pytest.raises(InvalidArgument, match=r"policy\.override: `prefer` expected a list of names, got the str"):
            opmux.policy.override(prefer="b1").__enter__()
