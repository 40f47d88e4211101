"""An attempt: the checked call, its key, and the backend that is looked for."""

import pytest
import torch
from backends import backends, implementation
from planted import W, X, ones

import opmux
from opmux.arch import parse_arch
from opmux.callpath.plans import Forced
from opmux.errors import InvalidArgument
from opmux.plugin import Exact, MultipleOf
from opmux.running.attempt import FUNCTIONAL_BACKEND, attempt_of

OPTIONS = {"eps": 1e-6, "weight_offset": 0.0}


def attempt(x=X, weight=W, options=OPTIONS, forced=None, arch=None):
    op = opmux.rms_norm.op
    return attempt_of(op, op.state, (x, weight), options, forced, arch)


def test_the_call_has_tensors_options_dims_and_features_by_name():
    with backends(
        a=implementation(ones, when=(MultipleOf("hidden", 3),), features=(Exact("tokens"),), deterministic=True)
    ):
        made = attempt(torch.randn(2, 3, 9), torch.randn(9), {**OPTIONS, "eps": 1})
    assert made.call.dims == {"tokens": (2, 3), "hidden": 9}
    assert made.call.options == {"eps": 1.0, "weight_offset": 0.0}
    assert made.call.features == {"hidden % 3 == 0": True, "tokens": 6}
    assert list(made.call.tensors) == ["x", "weight"]
    assert made.tensors == tuple(made.call.tensors.values())
    assert str(made) == "x float32[2, 3, 9], weight float32[9], eps=1.0"


def test_calls_that_share_a_plan_have_equal_keys():
    with backends(a=implementation(ones, when=(MultipleOf("hidden", 8),))):
        key = attempt().key
        assert attempt(torch.randn(7, 16), torch.randn(16)).key == key
        assert attempt(torch.randn(7, 9), torch.randn(9)).key != key
        assert attempt(X.double(), W).key != key
        assert key == opmux.rms_norm.op.state.key_of(X, W, **OPTIONS)


def test_a_forced_backend_is_part_of_the_key_in_the_table():
    plain, forced = attempt(), attempt(forced="reference")
    assert plain.table_key == plain.key == forced.key
    assert forced.table_key == Forced("reference", forced.key) != plain.table_key
    assert (plain.asked, forced.asked) == (None, "reference")


@pytest.mark.parametrize(
    ("forced", "asked"), [("a", FUNCTIONAL_BACKEND), ("b", "b"), ("reference", "reference"), (None, None)]
)
def test_an_in_place_op_looks_for_the_functional_form_where_only_that_has_the_backend(forced, asked):
    op = opmux.add_rms_norm_.op
    with backends(a=implementation(ones, op="add_rms_norm"), b=implementation(ones, op="add_rms_norm_")):
        made = attempt_of(op, op.state, (X.clone(), X.clone(), W), OPTIONS, forced)
    assert (made.forced, made.asked) == (forced, asked)


def test_the_arch_is_that_of_the_device_unless_one_is_given():
    assert attempt().call.arch.name == "cpu"
    assert attempt(arch=parse_arch("sm_90")).call.arch.name == "sm_90"


def test_a_call_that_breaks_the_signature_is_no_attempt():
    with pytest.raises(InvalidArgument, match="rms_norm: `weight` expected shape"):
        attempt(weight=torch.randn(7))


def test_index_data_is_checked_where_the_op_has_some():
    attempt().check_data()
    op, k = opmux.write_kv_cache.op, torch.randn(2, 1, 8)
    caches = torch.zeros(2, 16, 1, 8), torch.zeros(2, 16, 1, 8)
    bad = attempt_of(op, op.state, (k, k, *caches, torch.tensor([0, 99]), None, None), {"layout": "nhd"})
    with pytest.raises(InvalidArgument, match="write_kv_cache: `slot_mapping`"):
        bad.check_data()
