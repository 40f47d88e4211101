"""What a plugin raises or prints while it is loaded, in processes of their own."""

import json

import pytest
from backends import implementation, plugin

import opmux
from opmux.plugins import loading
from opmux.plugins.loading import temporary_plugin
from opmux.plugins.registration import register

HEALTHY = """
    from opmux.plugin import Implementation, hookimpl

    OPMUX_API_VERSION = 1

    def target(x, weight, *, eps, weight_offset):
        return x * 0 + 7

    @hookimpl
    def opmux_implementations():
        yield Implementation(op="rms_norm", target=target, archs=("cpu",))
"""

INTERRUPTED = """
    import os
    from typing import Any
    from torch import Tensor
    from opmux.dtypes import Real
    from opmux.plugin import Implementation, define_op, hookimpl

    OPMUX_API_VERSION = 1

    @define_op
    def slow_double(x: Real[Tensor, "*tokens n"]) -> Real[Tensor, "*tokens n"]:
        \"\"\"Multiply by two.\"\"\"
        return x * 2

    def interrupt_once(where):
        if os.environ.get("INTERRUPT") == where:
            del os.environ["INTERRUPT"]
            raise KeyboardInterrupt

    interrupt_once("import")

    @hookimpl
    def opmux_ops():
        return [slow_double]

    @hookimpl
    def opmux_implementations():
        yield Implementation(op="rms_norm", target=lambda x, weight, *, eps, weight_offset: x, name="a")
        interrupt_once("hook")
        yield Implementation(op="rms_norm", target=lambda x, weight, *, eps, weight_offset: x, name="b")
"""

PROGRAM = """
    import torch, opmux
    from opmux.plugins import loading

    x, w = torch.ones(1, 2), torch.ones(2)
    try:
        opmux.rms_norm(x, w)
    except KeyboardInterrupt:
        print("interrupted", [i.full_name for i in opmux.rms_norm.op.implementations])
    for _ in range(2):
        print(opmux.rms_norm(x, w).tolist(), [i.full_name for i in opmux.rms_norm.op.implementations])
    print(opmux.slow_double(x).tolist(), torch.ops.opmux.slow_double(x).tolist())
    print([p.name for p in loading.loaded_plugins()], [f.reason for f in loading.failed_plugins()])
"""


@pytest.mark.parametrize("where", ["import", "hook"])
def test_loading_goes_on_at_the_next_call_after_an_interrupt(install, run, where):
    """Plugins before and after the interrupted one load too, each once."""
    install("a_first", HEALTHY)
    install("m_slow", INTERRUPTED)
    install("z_last", HEALTHY)
    done = run(PROGRAM, INTERRUPT=where)
    names = "['a_first', 'm_slow:a', 'm_slow:b', 'reference', 'z_last']"
    assert done.stdout.splitlines() == [
        "interrupted ['a_first', 'reference']",
        f"[[7.0, 7.0]] {names}",
        f"[[7.0, 7.0]] {names}",
        "[[2.0, 2.0]] [[2.0, 2.0]]",
        "['a_first', 'm_slow', 'z_last'] []",
    ], done.stderr


def test_an_interrupt_once_a_plugin_is_registered_does_not_load_it_twice(install, run):
    install("a_first", HEALTHY)
    install("z_last", HEALTHY)
    done = run(
        """
        import torch, opmux
        from opmux.plugins import loading

        class Interrupting(set):
            def add(self, item):
                if item[0] == "a_first":
                    raise KeyboardInterrupt
                super().add(item)

        loading._tried = Interrupting()
        try:
            loading.ensure_loaded()
        except KeyboardInterrupt:
            print("interrupted")
        loading.ensure_loaded()
        print([i.full_name for i in opmux.rms_norm.op.implementations], loading.failed_plugins())
        """
    )
    assert done.stdout.splitlines() == ["interrupted", "['a_first', 'reference', 'z_last'] ()"], done.stderr


@pytest.mark.parametrize(
    "exits",
    ["import sys; sys.exit('no licence')", "OPMUX_API_VERSION = 1\nclass Hooks: ...\nraise SystemExit('no licence')"],
)
def test_a_plugin_that_exits_takes_nothing_with_it(install, run, exits):
    install("exiting", exits)
    install("z_last", HEALTHY)
    done = run(
        """
        import torch, opmux
        print(opmux.rms_norm(torch.ones(1, 2), torch.ones(2)).tolist())
        print([(f.name, f.reason) for f in opmux.plugins.loading.failed_plugins()])
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[[7.0, 7.0]]",
        "[('exiting', 'SystemExit: no licence; a plugin must not exit while it is loaded')]",
    ]


def test_a_plugin_that_fails_while_it_is_registered_leaves_nothing(monkeypatch):
    def failing(made):
        register(made)
        raise RuntimeError("the call path cannot be written")

    before = opmux.rms_norm.op.implementations
    kept = implementation(lambda x, weight, *, eps, weight_offset: x)
    monkeypatch.setattr(loading, "register", failing)
    with temporary_plugin(plugin(opmux_implementations=lambda: [kept]), "planted"):
        assert opmux.rms_norm.op.implementations == before
        failed = [f.reason for f in loading.failed_plugins() if f.name == "planted"]
    assert failed == ["RuntimeError: the call path cannot be written"]


NOISY = """
    import os
    print("noise at import")
    os.system("echo noise of a compiler")
""" + HEALTHY.replace("        yield Impl", '        print("noise in a hook")\n        yield Impl').replace(
    "        return x * 0", '        print("noise of a kernel")\n        return x * 0'
)


def test_what_plugins_print_while_loading_goes_to_stderr(install, run):
    install("noisy", NOISY.replace("    os.system", "    # os.system"))
    done = run("import opmux.plugins.loading as l; l.ensure_loaded(); print('mine')")
    assert done.stdout.splitlines() == ["mine"]
    assert "noise at import\nnoise in a hook\n" in done.stderr


@pytest.mark.parametrize(
    "command",
    ["doctor --json", "backends --json", "ops --json", "explain rms_norm x=f32[4,8] weight=f32[8] --json",
     "bench rms_norm --size small --device cpu --rounds 1 --limit 0.01 --json"],
)  # fmt: skip
def test_json_stays_json_whatever_plugins_print(install, run, command):
    """Not only Python's print: also what a child process writes, and what kernels print when they run."""
    install("noisy", NOISY)
    done = run(command, command=True)
    assert isinstance(json.loads(done.stdout), dict), done.stderr
    for noise in ("noise at import", "noise of a compiler", "noise in a hook"):
        assert noise in done.stderr
