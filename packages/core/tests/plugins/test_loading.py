"""Plugins: loaded one by one, each failure recorded and none contagious."""

import sys
from types import SimpleNamespace

import pytest
import torch
from backends import backends, implementation, plugin

import opmux
from opmux.dtypes import Real
from opmux.plugin import Implementation, MultipleOf, define_op, hookimpl
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
    (raising_hook(), "RuntimeError: in the hook"),
    (bad_item(), "opmux_implementations yielded 'rms_norm', expected an Implementation"),
    (unknown_hook(), "PluginValidationError: unknown hook 'opmux_implementation' in plugin"),
    (
        plugin(implementation(ones, op="rms_nrm")),
        "implements `rms_nrm`, which is no op of this core: did you mean rms_norm? if a newer core has it, "
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


def test_of_two_with_one_name_neither_loads_and_both_packages_are_named():
    """Which package was installed first must not decide what runs."""
    with (
        temporary_plugin(plugin(implementation(ones)), "planted", "opmux-a", "1.0"),
        temporary_plugin(plugin(implementation(ones)), "planted", "opmux-b", "2.0"),
    ):
        assert (
            failures()
            == ["planted of rms_norm is declared twice, by opmux-a 1.0 and opmux-b 2.0: neither is loaded"] * 2
        )
        assert opmux.explain(opmux.rms_norm, X, W).chosen.name == "reference"


def test_a_plugin_defines_an_op_of_its_own():
    @define_op
    def planted_double(x: Real[torch.Tensor, "*tokens n"], *, times: float = 2.0) -> Real[torch.Tensor, "*tokens n"]:
        """Multiply."""
        return x * times

    try:
        with temporary_plugin(plugin(opmux_ops=lambda: [planted_double]), "planted") as made:
            assert made.ops == ("planted_double",)
            assert torch.equal(opmux.planted_double(X), X * 2)
            assert torch.equal(
                torch.compile(opmux.planted_double, backend="eager", fullgraph=True)(X, times=3.0), X * 3
            )
            torch.library.opcheck(torch.ops.opmux.planted_double.default, (X,))
    finally:
        opmux.callpath.op.OPS.pop("planted_double", None)
    with pytest.raises(AttributeError, match="module 'opmux' has no attribute 'planted_double'; see `opmux ops`"):
        opmux.planted_double


def test_an_op_is_defined_once():
    def rms_norm(x: Real[torch.Tensor, "n"]) -> Real[torch.Tensor, "n"]:
        return x

    with pytest.raises(TypeError, match=r"rms_norm: an op of that name is defined already, by opmux\.ops\.norm"):
        define_op(rms_norm)


def test_records_are_filled_in_from_the_entry_point():
    with backends(planted=implementation(ones, name="rows")):
        candidate = opmux.explain(opmux.rms_norm, X, W).chosen
    assert (candidate.name, candidate.distribution, candidate.version) == ("planted:rows", "opmux-planted", "1.2.3")


PLUGIN_MODULE = """
from opmux.plugin import Implementation, hookimpl

OPMUX_API_VERSION = 1

@hookimpl
def opmux_implementations():
    yield Implementation(op="rms_norm", target="installed_kernels:rms_norm", archs=("cpu",))
"""
KERNEL_MODULE = """
import sys
sys.modules["a_toolchain"] = sys  # what importing a compiler would leave behind
import torch
def rms_norm(x, weight, *, eps, weight_offset):
    return torch.full_like(x, 7.0)
"""
PROGRAM = """
import sys, torch, opmux, opmux.plugins.loading
assert "installed_plugin" not in sys.modules, "nothing is loaded at import"
opmux.plugins.loading.ensure_loaded()
loading = opmux.plugins.loading
print([p.name for p in loading.loaded_plugins()], [(f.name, f.reason) for f in loading.failed_plugins()])
assert "a_toolchain" not in sys.modules and not torch.cuda.is_initialized(), "loading imports no toolchain"
print(opmux.rms_norm(torch.ones(1, 2), torch.ones(2)).tolist())
assert "a_toolchain" in sys.modules
"""


@pytest.fixture
def site(tmp_path, install):
    """An installed plugin, a broken one, and one of another API version."""
    install("installed", PLUGIN_MODULE)
    (tmp_path / "installed_kernels.py").write_text(KERNEL_MODULE)
    install("broken", "raise OSError('libhip.so: cannot open shared object file')")
    install("newer", "OPMUX_API_VERSION = 99")


@pytest.mark.usefixtures("site")
def test_installed_plugins_are_found_by_entry_point(run):
    done = run(PROGRAM)
    assert done.stdout.splitlines() == [
        "['installed'] [('broken', 'OSError: libhip.so: cannot open shared object file'), "
        "('newer', 'API version 99, this core speaks 1: pip install -U opmux')]",
        "[[7.0, 7.0]]",
    ], done.stderr


@pytest.mark.usefixtures("site")
def test_the_allow_list(run):
    done = run(PROGRAM, OPMUX_PLUGINS="installed")
    assert done.stdout.splitlines()[0] == "['installed'] []", done.stderr
    done = run("import opmux.plugins.loading as l; print(l.loaded_plugins(), l.failed_plugins())", OPMUX_PLUGINS="")
    assert done.stdout.strip() == "() ()", done.stderr


@pytest.mark.usefixtures("site")
def test_the_first_call_names_the_backends_once(run):
    program = "import torch, opmux\nfor _ in range(2): opmux.rms_norm(torch.ones(1, 2), torch.ones(2))"
    done = run(program, OPMUX_LOG="info")
    lines = done.stderr.splitlines()
    assert lines.count("opmux INFO: backends: installed, opmux, reference") == 1
    assert "opmux WARNING: plugin broken (opmux-broken 0.3) OSError: libhip.so: cannot open shared object file" in lines


@pytest.mark.usefixtures("site")
def test_disabled_and_preferred_by_the_environment(run):
    show = "import torch, opmux; print(opmux.explain(opmux.rms_norm, torch.ones(1, 2), torch.ones(2)).chosen.name)"
    assert run(show).stdout.strip() == "installed"
    assert run(show, OPMUX_DISABLE="installed").stdout.strip() == "reference"
    assert run(show, OPMUX_PREFER="reference").stdout.strip() == "reference"
    done = run(show, OPMUX_PREFER="missing", OPMUX_LOG="warning")
    assert "the environment's policy names backend `missing`, which is not registered" in done.stderr


@pytest.mark.usefixtures("site")
def test_a_policy_without_meaning_is_told_at_the_first_call(run):
    told = "policy: `OPMUX_STRICT` expected 0 or 1, got 'perhaps'; unset it or set it to 1"
    show = "import torch, opmux; opmux.rms_norm(torch.ones(1, 2), torch.ones(2))"
    done = run(show, OPMUX_STRICT="perhaps")
    assert done.stderr.strip().endswith(f"opmux.errors.InvalidArgument: {told}")
    done = run(f"import opmux; opmux.policy.strict(); {show}; print('ran')", OPMUX_STRICT="perhaps")
    assert done.stdout.strip() == "ran", done.stderr


def test_an_implementation_is_data():
    a = Implementation(op="rms_norm", target="m:f")
    assert a == Implementation(op="rms_norm", target="m:f")
    assert a.full_name == ""
    assert hash(a) == hash(Implementation(op="rms_norm", target="m:f"))
