"""Plugins: loaded one by one, each failure recorded and none contagious."""

import pytest
import torch
from backends import plugin

import opmux
from opmux.dtypes import Real
from opmux.plugin import define_op
from opmux.plugins import loading
from opmux.plugins.loading import temporary_plugin

X = torch.randn(4, 8)


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
    with pytest.raises(AttributeError, match=r"module 'opmux' has no attribute 'planted_double'; .*see `opmux ops`"):
        opmux.planted_double


def test_tensors_made_while_plugins_load_are_no_part_of_a_traced_call(monkeypatch):
    made = []
    loading.ensure_loaded()
    monkeypatch.setattr(loading._Progress, "done", False)
    monkeypatch.setattr(loading, "_listeners", [lambda plugins: made.append(torch.empty(3))])

    class Norm(torch.nn.Module):
        def forward(self, x, weight):
            return opmux.rms_norm(x, weight)

    program = torch.export.export(Norm(), (X, torch.ones(8)), strict=False)
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert called == ["opmux.rms_norm.default"]
    assert [type(tensor) for tensor in made] == [torch.Tensor]


def test_an_op_is_defined_once():
    def rms_norm(x: Real[torch.Tensor, "n"]) -> Real[torch.Tensor, "n"]:
        return x

    with pytest.raises(TypeError, match=r"rms_norm: an op of that name is defined already, by opmux\.ops\.norm"):
        define_op(rms_norm)


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


CALLS_FROM_A_THREAD = """
import threading
import torch, opmux

results = []
thread = threading.Thread(target=lambda: results.append(opmux.rms_norm(torch.ones(1, 2), torch.ones(2))), daemon=True)
thread.start()
thread.join(timeout=60)
print("the thread", "is stuck" if thread.is_alive() else "ended", len(results))
""" + PLUGIN_MODULE.replace("installed_kernels", "late_kernels")


def test_a_plugin_may_wait_for_a_thread_that_calls_an_op(tmp_path, install, run):
    """The thread waits for the plugins in its turn, but not for ever; then it runs on what is loaded."""
    install("threaded", CALLS_FROM_A_THREAD)
    (tmp_path / "late_kernels.py").write_text(KERNEL_MODULE)
    done = run(
        """
        import torch, opmux
        from opmux.plugins import loading
        loading.WAIT_S = 0.1
        print(opmux.rms_norm(torch.ones(1, 2), torch.ones(2)).tolist())
        """,
        OPMUX_LOG="warning",
    )
    assert done.stdout == "[[7.0, 7.0]]\n", done.stderr
    assert "the thread ended 1" in done.stderr.splitlines()
    assert (
        "opmux WARNING: plugins are still being loaded after 0.1 s: this thread goes on with those loaded so far; "
        "a plugin must not wait, while it is loaded, for a thread that calls an op"
    ) in done.stderr.splitlines()


SLOW = (
    """
import time
time.sleep(0.3)
"""
    + PLUGIN_MODULE
)


@pytest.mark.usefixtures("site")
def test_threads_that_call_while_plugins_are_loaded_wait_for_them(tmp_path, run):
    (tmp_path / "installed_plugin.py").write_text(SLOW)
    done = run(
        """
        import threading, torch, opmux
        results = []
        def call():
            results.append(opmux.rms_norm(torch.ones(1, 2), torch.ones(2), backend="installed").tolist())
        threads = [threading.Thread(target=call) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(results == [[[7.0, 7.0]]] * 6)
        """,
        OPMUX_LOG="warning",
    )
    assert done.stdout == "True\n", done.stderr
    assert "still being loaded" not in done.stderr
