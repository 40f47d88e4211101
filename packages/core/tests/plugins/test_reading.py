"""Reading a plugin: every way in which one can be broken is recorded, and takes nothing else down."""

import enum
import sys
from types import SimpleNamespace

import pytest
import torch
from backends import backends, implementation, plugin
from planted import filled

import opmux
from opmux.plugin import Aligned, Constraint, Dtype, Exact, Implementation, MultipleOf, OneOf, Predicate, hookimpl
from opmux.plugins import loading
from opmux.plugins.loading import temporary_plugin

X, W = torch.randn(4, 8), torch.randn(8)


def ones(x, weight, *, eps, weight_offset):
    return torch.ones_like(x)


def failures(name="planted"):
    return [f.reason for f in loading.failed_plugins() if f.name == name]


def raising_hook():
    @hookimpl
    def opmux_implementations():
        yield implementation(ones)
        raise RuntimeError("in the hook")

    return SimpleNamespace(OPMUX_API_VERSION=1, opmux_implementations=opmux_implementations)


def exiting_hook():
    @hookimpl
    def opmux_implementations():
        yield implementation(ones)
        sys.exit("no licence")

    return SimpleNamespace(OPMUX_API_VERSION=1, opmux_implementations=opmux_implementations)


def bad_item():
    @hookimpl
    def opmux_implementations():
        return ["rms_norm"]

    return SimpleNamespace(OPMUX_API_VERSION=1, opmux_implementations=opmux_implementations)


def one_record():
    @hookimpl
    def opmux_implementations():
        return implementation(ones)

    return SimpleNamespace(OPMUX_API_VERSION=1, opmux_implementations=opmux_implementations)


def readers_by_suffix():
    @hookimpl
    def opmux_record_readers():
        return {".json": ones}

    return SimpleNamespace(OPMUX_API_VERSION=1, opmux_record_readers=opmux_record_readers)


def unknown_hook():
    @hookimpl
    def opmux_implementation():
        return []

    return SimpleNamespace(OPMUX_API_VERSION=1, opmux_implementation=opmux_implementation)


BROKEN = [
    (ImportError("no module named 'hip'"), "ImportError: no module named 'hip'"),
    (SystemExit(3), "SystemExit: 3; a plugin must not exit while it is loaded"),
    (exiting_hook(), "SystemExit: no licence; a plugin must not exit while it is loaded"),
    (plugin(version=2), "API version 2, this core speaks 1: pip install -U opmux"),
    (plugin(version=0), "API version 0, this core speaks 1: pip install -U a-test"),
    (SimpleNamespace(), "declares no OPMUX_API_VERSION, this core speaks 1: add it to the plugin module"),
    (
        SimpleNamespace(OPMUX_API_VERSION="1"),
        "OPMUX_API_VERSION is '1', expected an int: write OPMUX_API_VERSION = 1",
    ),
    (one_record(), "opmux_implementations returned Implementation(op='rms_norm'"),
    (readers_by_suffix(), "opmux_record_readers returned {'.json': <function"),
    (raising_hook(), "RuntimeError: in the hook"),
    (bad_item(), "opmux_implementations yielded 'rms_norm', expected an Implementation"),
    (unknown_hook(), "PluginValidationError: unknown hook 'opmux_implementation' in plugin"),
    (
        plugin(implementation(ones, op="rms_nrm")),
        "implements `rms_nrm`, which is not an op of this core: did you mean rms_norm? if a newer core has it, "
        "pip install -U opmux",
    ),
    (
        plugin(implementation(ones, when=(MultipleOf("hiden", 8),))),
        "planted of rms_norm: rms_norm has no dim or option `hiden`; it has tokens, hidden, eps, weight_offset",
    ),
    (plugin(implementation(ones, archs=("hopper",))), "planted of rms_norm: arch: `hopper` expected `cpu`"),
    (
        plugin(implementation("no_colon")),
        "planted of rms_norm: target 'no_colon' is neither 'module:function' nor callable",
    ),
    (
        plugin(implementation(ones, config="a:b", space="no_colon")),
        "planted of rms_norm: space 'no_colon' is neither 'module:function' nor callable",
    ),
    (
        plugin(implementation(ones, space="a:b")),
        "planted of rms_norm: space= without config=: a target that takes no config has no space of them",
    ),
    (
        plugin(implementation(ones, scores="a:b")),
        "planted of rms_norm: scores= without config=: a target that takes no config has no scores of them",
    ),
    (
        plugin(implementation(ones), implementation(ones)),
        "planted of rms_norm is declared twice, by a-test 0: neither is loaded",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("broken", "reason"), BROKEN, ids=[r[:30] for _, r in BROKEN])
def test_a_broken_plugin_is_recorded_and_others_load(broken, reason, messages):
    with backends(healthy=implementation(ones)), temporary_plugin(broken, "planted"):
        found = failures()
        assert len(found) == 1
        assert found[0].startswith(reason)
        assert torch.equal(opmux.rms_norm(X, W), torch.ones(4, 8)), "the healthy plugin runs"
        plan = opmux.explain(opmux.rms_norm, X, W)
        assert [f.name for f in plan.failed_plugins] == ["planted"]
        assert "plugins that failed to load" in str(plan)
    assert failures() == []


def test_a_bad_record_leaves_the_others_of_its_plugin():
    with backends(planted=[implementation(ones), implementation(ones, op="unheard_of", name="b")]):
        assert len(failures()) == 1
        assert torch.equal(opmux.rms_norm(X, W), torch.ones(4, 8))


def test_records_are_filled_in_from_the_entry_point():
    with backends(planted=implementation(ones, name="rows")):
        candidate = opmux.explain(opmux.rms_norm, X, W).chosen
    assert (candidate.name, candidate.distribution, candidate.version) == ("planted:rows", "opmux-planted", "1.2.3")


def test_an_implementation_is_data():
    a = Implementation(op="rms_norm", target="m:f")
    assert a == Implementation(op="rms_norm", target="m:f")
    assert a.full_name == ""
    assert hash(a) == hash(Implementation(op="rms_norm", target="m:f"))


class Kind(enum.Enum):
    A = 1


class Careless(Constraint):
    def features(self, signature):
        return signature.nothing


def judge(features):
    return None


REFUSED = [
    ({"name": 3}, "name 3 is not a word of letters, digits, `_`, `-` and `.`"),
    ({"name": "a b"}, "name 'a b' is not a word of letters, digits, `_`, `-` and `.`"),
    ({"config": 3}, "config 3 is neither 'module:function' nor callable"),
    ({"capturable": "yes"}, "capturable 'yes' is not True or False"),
    ({"takes_out": 1}, "takes_out 1 is not True or False"),
    ({"numerics": True}, "numerics True is not a str that says how they differ"),
    (
        {"when": (Exact("hidden"),)},
        "when= has Exact(name='hidden'), which is not a constraint, as MultipleOf('hidden', 8)",
    ),
    ({"when": ("hidden % 8 == 0",)}, "when= has 'hidden % 8 == 0', which is not a constraint"),
    ({"when": (Careless(),)}, "AttributeError: 'Signature' object has no attribute 'nothing'"),
    ({"when": (Predicate(3, reads=()),)}, "predicate 3 is not a function"),
    ({"when": (Predicate(judge, reads="hidden"),)}, "predicate judge has reads='hidden', expected a tuple, as (Exact"),
    ({"when": (Aligned("x", -1),)}, "Aligned(argument='x', bytes=-1) has no meaning: bytes is a positive whole number"),
    ({"when": (OneOf("hidden"),)}, "OneOf('hidden', ...) takes plain numbers, strings, bools and tuples, got ()"),
    (
        {"when": (OneOf("hidden", [1, 2]),)},
        "OneOf('hidden', ...) takes plain numbers, strings, bools and tuples, got ([1",
    ),
    ({"when": (Dtype("x", torch.float32),)}, "[torch.float32] are not names of dtypes of torch "),
    ({"features": ("hidden",)}, "features= has 'hidden', which is not a feature rule, as Exact('hidden')"),
    ({"when": Dtype("x", "float32")}, "when= is not a tuple"),
    ({"archs": None}, "archs= is not a tuple"),
    ({"priority": "high"}, "priority 'high' is not an int"),
    ({"kernels": 3}, "kernels 3 is neither 'module:function' nor callable"),
    ({"target": 3}, "target 3 is neither 'module:function' nor callable"),
    ({"when": (MultipleOf("hidden", 0),)}, "MultipleOf('hidden', 0) has no meaning"),
    ({"when": (OneOf("hidden", Kind.A),)}, "OneOf('hidden', ...) takes plain numbers"),
    ({"when": (OneOf("eps", float("inf")),)}, "OneOf('eps', ...) takes plain numbers"),
    ({"when": (Dtype("x", "float31"),)}, "['float31'] are not names of dtypes of torch"),
]


@pytest.mark.parametrize(("fields", "reason"), REFUSED)
def test_a_record_that_would_break_calls_is_refused_when_it_loads(fields, reason):
    record = implementation(**{"target": filled(1.0), **fields})
    reason = f"planted{':' if record.name else ''}{record.name} of rms_norm: {reason}"
    healthy = implementation(filled(2.0), priority=1)
    with backends(healthy=healthy, planted=[record, implementation(filled(3.0), name="other", priority=0)]):
        assert [f.reason[: len(reason)] for f in loading.failed_plugins()] == [reason]
        assert "planted:other" in [i.full_name for i in opmux.rms_norm.op.implementations]
        assert opmux.rms_norm(X, W).sum() == 64


@pytest.mark.parametrize("name", ["reference", "opmux", "a:b", "a,b", ""])
def test_names_that_are_the_cores_own_are_refused(name):
    with temporary_plugin(plugin(implementation(filled(1.0))), name):
        assert loading.failed_plugins()[-1].reason.startswith(
            f"is called {name!r}: a backend's name is a Python identifier"
        )
    assert torch.equal(opmux.rms_norm(X, W), opmux.rms_norm.reference(X, W))
