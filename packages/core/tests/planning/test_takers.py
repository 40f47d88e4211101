"""Which implementations would take a call on an arch, for tools without its device."""

import pytest
import torch
from backends import backends, implementation

import opmux
from opmux.errors import InvalidArgument
from opmux.plugin import Exact, MultipleOf, Priority, parse_arch, registered_ops, takers


def configured(x, weight, *, eps, weight_offset, config):
    return torch.full_like(x, config["value"])


def test_takers_are_what_would_run_the_chosen_one_first():
    x, weight = torch.empty(4, 8, device="meta"), torch.empty(8, device="meta")
    made = {
        "a": implementation(configured, config=lambda arch, features: {"value": len(arch.name)}, archs=("gfx9*",)),
        "b": implementation(configured, when=(MultipleOf("hidden", 16),)),
        "c": implementation("math:no_such_function", archs=("gfx942",), priority=Priority.SPECIALISED),
    }
    with backends(**made):
        found = takers(opmux.rms_norm, x, weight, arch="gfx942", eps=0.5)
        assert [t.implementation.full_name for t in found] == ["c", "a", "reference"]
        assert found[1].config() == {"value": 6}
        assert found[1].target() is configured
        assert found[1].run().shape == (4, 8)
        assert found[1].call.options == {"eps": 0.5, "weight_offset": 0.0}
        with pytest.raises(AttributeError, match="no_such_function"):
            found[0].run()
        assert [t.implementation.full_name for t in takers(opmux.rms_norm, x, weight, arch=parse_arch("cpu"))] == [
            "reference"
        ]
        opmux.policy.prefer("reference")
        assert takers(opmux.rms_norm, x, weight, arch="gfx942")[0].implementation.full_name == "reference"


def test_a_taker_yields_the_configs_of_its_space_and_binds_each():
    x, weight = torch.ones(4, 8), torch.ones(8)

    def space(arch, features):
        yield from ({"value": value} for value in range(features["hidden"], features["hidden"] + 2))

    made = implementation(
        configured,
        features=(Exact("hidden"),),
        config=lambda arch, features: {"value": 0},
        space=space,
        priority=Priority.EXPERIMENTAL,
    )
    with backends(a=made):
        assert [t.implementation.full_name for t in takers(opmux.rms_norm, x, weight, arch="cpu")] == ["reference"]
        (found,) = takers(opmux.rms_norm, x, weight, arch="cpu", backend="a")
        assert found.heuristic() == {"value": 0}
        assert list(found.space()) == [{"value": 8}, {"value": 9}]
        assert torch.equal(found.bound({"value": 9})(x, weight, eps=1e-6, weight_offset=0.0), torch.full((4, 8), 9.0))
    assert list(takers(opmux.rms_norm, x, weight, arch="cpu")[-1].space()) == []


def test_a_taker_runs_as_a_planned_call_does():
    x, weight = torch.ones(4, 8, requires_grad=True), torch.ones(8)
    assert not takers(opmux.rms_norm, x, weight, arch="cpu")[-1].run().requires_grad
    written = torch.ones(4, 8)
    version = written._version
    with backends(a=implementation(lambda *tensors, **options: None, op="add_rms_norm_")):
        assert takers(opmux.add_rms_norm_, written, torch.ones(4, 8), weight, arch="cpu")[0].run() is None
    assert written._version > version


def test_takers_refuse_what_is_no_op():
    with pytest.raises(InvalidArgument) as caught:
        takers("rms_norm", arch="cpu")
    assert str(caught.value) == "takers: `op` expected an op, as opmux.rms_norm, got 'rms_norm'; see `opmux ops`"


def test_registered_ops_are_the_functions_that_users_call():
    found = registered_ops()
    assert found["rms_norm"] is opmux.rms_norm
    assert found["rms_norm"].op.signature.tensors[0].name == "x"
