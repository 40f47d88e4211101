"""Making a plan: imports, configs, and what is told where nothing may run."""

import pytest
import torch
from backends import backends, implementation
from planted import WANTED, W, X, ones, raising, reasons

import opmux
from opmux.callpath.op import OPS
from opmux.errors import BackendFault, UnsupportedCall
from opmux.plugin import Exact, MultipleOf, Predicate


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
        with pytest.raises(BackendFault, match=r"a \(opmux-a 1\.2\.3\) cannot be loaded: SystemExit: no licence; mend"):
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


@pytest.fixture
def pretend_gpu(monkeypatch):
    """CPU tensors that opmux takes for ones on an sm_90."""
    from opmux.arch import parse_arch
    from opmux.running import attempt

    monkeypatch.setattr(attempt, "arch_of", lambda device: parse_arch("sm_90"))
    OPS["rms_norm"].drop_plans()
    yield
    OPS["rms_norm"].drop_plans()


TOLD = (
    "rms_norm: no backend accepts this call on sm_90{}\n"
    "  call:      x float32[4, 8], weight float32[8]\n"
    "  rejected:  a          (opmux-a 1.2.3)  hidden = 8 is not a multiple of 128\n"
    "             b          (opmux-b 1.2.3)  disabled by OPMUX_DISABLE\n"
    "             reference  (opmux 0.1.0)    {}\n"
    '  try:       pad hidden to 128, or pass backend="reference"'
)


@pytest.mark.usefixtures("pretend_gpu")
def test_a_gpu_call_that_finds_only_the_reference_says_so_once(messages, monkeypatch):
    monkeypatch.setenv("OPMUX_DISABLE", "b")
    opmux.policy.reset()
    made = {"a": implementation(ones, when=(MultipleOf("hidden", 128),)), "b": implementation(ones)}
    with backends(**made):
        for _ in range(3):
            assert torch.equal(opmux.rms_norm(X, W), WANTED)
        told = [r.getMessage() for r in messages.records]
        assert told == [TOLD.format("; the reference runs", "the implementation of last resort")]
        opmux.policy.strict(True)
        with pytest.raises(UnsupportedCall) as caught:
            opmux.rms_norm(X, W)
        assert str(caught.value) == TOLD.format(", and the policy is strict", "not taken under strict unless asked for")
        assert torch.equal(opmux.rms_norm(X, W, backend="reference"), WANTED)
    monkeypatch.delenv("OPMUX_DISABLE")
