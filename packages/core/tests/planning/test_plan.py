"""Making a plan: imports, configs, and what is told where nothing may run."""

import logging

import pytest
import torch
from backends import backends, implementation
from planted import WANTED, W, X, ones, raising, reasons

import opmux
from opmux.errors import BackendFault, UnsupportedCall
from opmux.plugin import Exact, Predicate


def test_a_string_target_is_imported_when_first_chosen(tmp_path, monkeypatch):
    (tmp_path / "late_kernels.py").write_text("import torch\ndef f(x, weight, **o):\n    return torch.zeros_like(x)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import sys

    with backends(a=implementation("late_kernels:f")):
        opmux.explain(opmux.rms_norm, X, W)
        assert "late_kernels" not in sys.modules
        assert opmux.rms_norm(X, W).sum() == 0
        assert "late_kernels" in sys.modules


@pytest.mark.parametrize("target", ["no_such_module_anywhere:f", "math:no_such_function"])
def test_an_import_fault_quarantines_for_the_arch(target):
    with backends(a=implementation(target)):
        assert torch.equal(opmux.rms_norm(X, W), WANTED)
        assert torch.equal(opmux.rms_norm(X.double(), W), opmux.rms_norm.reference(X.double(), W))
        assert [q.scope for q in opmux.quarantined()] == ["arch"]
        assert reasons(opmux.rms_norm, X.bfloat16(), W)["a"][0] == "quarantined"


def test_a_config_function_that_raises_quarantines_for_its_plan():
    def config(arch, features):
        raise KeyError("no config")

    told = "its config function raised KeyError: 'no config'"
    with backends(a=implementation(ones, config=config)):
        before = opmux.explain(opmux.rms_norm, X, W)
        assert before.chosen.name == "reference", "explain shows what runs"
        assert reasons()["a"] == ("rejected", told)
        assert torch.equal(opmux.rms_norm(X, W), WANTED)
        assert [(q.scope, q.reason) for q in opmux.quarantined()] == [("plan", told)]
        assert reasons()["a"] == ("quarantined", told)
        assert opmux.explain(opmux.rms_norm, X, W, backend="a").chosen is None


def exiting(*arguments):
    raise SystemExit("no licence")


def test_an_import_that_exits_is_an_import_fault(tmp_path, monkeypatch):
    (tmp_path / "exiting_kernels.py").write_text("import sys\nsys.exit('no licence')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with backends(a=implementation("exiting_kernels:f")):
        assert torch.equal(opmux.rms_norm(X, W), WANTED)
        assert [(q.scope, q.reason) for q in opmux.quarantined()] == [("arch", "SystemExit: no licence")]
        with pytest.raises(BackendFault, match=r"a \(opmux-a 1\.2\.3\) cannot be loaded: SystemExit: no licence; fix"):
            opmux.rms_norm(X, W, backend="a")


def test_a_config_function_that_exits_is_a_fault_of_its_plan():
    told = "its config function raised SystemExit: no licence"
    with backends(a=implementation(ones, config=exiting)):
        assert reasons()["a"] == ("rejected", told)
        assert torch.equal(opmux.rms_norm(X, W), WANTED)
        assert [(q.scope, q.reason) for q in opmux.quarantined()] == [("plan", told)]


def test_a_predicate_that_exits_is_a_refusal():
    with backends(a=implementation(ones, when=(Predicate(exiting, (Exact("hidden"),)),))):
        assert torch.equal(opmux.rms_norm(X, W), WANTED)
        assert reasons()["a"] == ("rejected", "predicate exiting raised SystemExit: no licence")


@pytest.mark.parametrize("fields", [{"config": "interrupted:f"}, {"target": "interrupted:f"}], ids=["config", "target"])
def test_an_interrupt_while_something_is_imported_propagates(fields, tmp_path, monkeypatch):
    (tmp_path / "interrupted.py").write_text("raise KeyboardInterrupt\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with backends(a=implementation(**{"target": ones, **fields})):
        with pytest.raises(KeyboardInterrupt):
            opmux.rms_norm(X, W)
        assert opmux.quarantined() == ()


def test_when_every_choice_fails_the_last_error_is_the_references(monkeypatch):
    with backends(a=implementation(raising(RuntimeError("first")))), opmux.policy.override(disable=["reference"]):
        with pytest.raises(UnsupportedCall) as caught:
            opmux.rms_norm(X, W)
        assert "a          (opmux-a 1.2.3)  RuntimeError: first" in str(caught.value)
        assert "reference  (opmux 0.1.0)    disabled by policy.override" in str(caught.value)


def test_under_strict_a_quarantined_better_choice_is_not_passed_over_in_silence():
    def target(x, weight, *, eps, weight_offset):
        raise RuntimeError("odd")

    with backends(a=implementation(target), z=implementation(target, priority=-5)):
        opmux.rms_norm(X, W)
        opmux.policy.strict(True)
        with pytest.raises(BackendFault) as caught:
            opmux.rms_norm(X, W)
    assert str(caught.value) == (
        "rms_norm: a is in quarantine, and the policy is strict: RuntimeError: odd\n"
        "  call:      x float32[4, 8], weight float32[8]\n"
        "  try:       fix the cause and call opmux.quarantine_clear(), or disable it"
    )


def test_a_plan_is_logged_once_with_its_config_and_kernels(caplog):
    def run(x, weight, *, eps, weight_offset, config):
        return torch.ones_like(x)

    configured = implementation(run, config=lambda arch, features: {"warps": 8}, kernels=lambda *given: ["rows_w8"])
    with backends(a=configured), caplog.at_level(logging.INFO, "opmux"):
        for _ in range(3):
            opmux.rms_norm(X, W)
        opmux.rms_norm(X, W, backend="reference")
    assert [message for message in caplog.messages if message.startswith("plan: ")] == [
        "plan: rms_norm on cpu -> a; warps 8; launches rows_w8",
        "plan: rms_norm on cpu -> reference",
    ]
