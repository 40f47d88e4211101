"""Faults: whose they are, how far a quarantine reaches, and when nothing else may run."""

import contextlib
import re
import threading

import pytest
import torch
from backends import backends, implementation
from planted import SPECIAL, WANTED, W, X, filled, ones, raising, reasons

import opmux
from opmux.errors import BackendFault, CaptureRefused, InvalidArgument, OpmuxError, UnsupportedCall
from opmux.plugin import BuildFailed, Exact, MultipleOf, Priority
from opmux.running import modes

OOM = torch.OutOfMemoryError("CUDA out of memory")


def test_a_launch_fault_is_announced_once_and_the_next_choice_runs(messages):
    with backends(a=implementation(raising(RuntimeError("bad launch")), priority=SPECIAL)):
        for _ in range(3):
            assert torch.equal(opmux.rms_norm(X, W), WANTED)
        record = opmux.quarantined()[0]
        assert (record.op, record.name, record.scope, record.reason) == (
            "rms_norm", "a", "plan", "RuntimeError: bad launch",
        )  # fmt: skip
        assert reasons()["a"] == ("quarantined", "RuntimeError: bad launch")
        opmux.quarantine_clear()
        assert opmux.quarantined() == ()
        assert reasons()["a"][0] == "chosen"
    told = [r.getMessage() for r in messages.records if "quarantined" in r.getMessage()]
    assert told == [
        "rms_norm: a (opmux-a 1.2.3) is quarantined on cpu for calls like this one: RuntimeError: bad launch; "
        "the next choice runs"
    ]


def test_a_launch_fault_stays_with_its_plan():
    def picky(x, weight, *, eps, weight_offset):
        if x.dtype == torch.float64:
            raise RuntimeError("no float64")
        return torch.ones_like(x)

    with backends(a=implementation(picky)):
        assert torch.equal(opmux.rms_norm(X.double(), W), opmux.rms_norm.reference(X.double(), W))
        assert opmux.rms_norm(X, W).sum() == 32
        assert reasons()["a"][0] == "chosen"
        assert reasons(opmux.rms_norm, X.double(), W)["a"] == ("quarantined", "RuntimeError: no float64")


def test_a_fault_after_good_runs(messages):
    state = {"broken": False}

    def target(x, weight, *, eps, weight_offset):
        if state["broken"]:
            raise RuntimeError("later")
        return torch.ones_like(x)

    with backends(a=implementation(target)):
        for _ in range(3):
            assert opmux.rms_norm(X, W).sum() == 32
        state["broken"] = True
        assert torch.equal(opmux.rms_norm(X, W), WANTED)
        assert torch.equal(opmux.rms_norm(X, W), WANTED)
    assert len(messages.records) == 1


def test_a_build_fault_quarantines_for_the_arch():
    with backends(a=implementation(raising(BuildFailed("ptxas: too many registers")))):
        assert torch.equal(opmux.rms_norm(X, W), WANTED)
        assert [(q.scope, q.reason) for q in opmux.quarantined()] == [("arch", "ptxas: too many registers")]
    assert opmux.quarantined() == (), "what a plugin left behind goes with it"


def test_a_missing_kernel_concerns_calls_like_this_one_alone():
    """However many calls lack theirs: others are there."""

    class Missing(BuildFailed):
        one_kernel = True

    def target(x, weight, *, eps, weight_offset):
        if len(x) > 4:
            raise Missing(f"no kernel for {len(x)} rows")
        return torch.ones_like(x)

    with backends(a=implementation(target, features=(Exact("tokens"),))):
        for rows in range(5, 40):
            x = torch.randn(rows, 8)
            assert torch.equal(opmux.rms_norm(x, W), opmux.rms_norm.reference(x, W))
        assert {q.scope for q in opmux.quarantined()} == {"kernel"}
        assert len(opmux.quarantined()) == 35
        assert opmux.rms_norm(X, W).sum() == 32
        assert opmux.explain(opmux.rms_norm, torch.randn(7, 8), W).candidates[-1].reason == "no kernel for 7 rows"


def test_under_strict_a_fault_raises():
    with backends(a=implementation(raising(ValueError("odd")))), opmux.policy.override(strict=True):
        with pytest.raises(BackendFault) as caught:
            opmux.rms_norm(X, W)
        assert str(caught.value) == (
            "rms_norm: a (opmux-a 1.2.3) failed, and the policy is strict: ValueError: odd\n"
            "  call:      x float32[4, 8], weight float32[8]\n"
            "  try:       another backend (see opmux.explain), or report it to its authors"
        )
        assert isinstance(caught.value.__cause__, ValueError)
    with (
        backends(a=implementation("no_such_module_anywhere:f")),
        opmux.policy.override(strict=True),
        pytest.raises(BackendFault) as caught,
    ):
        opmux.rms_norm(X, W)
    assert str(caught.value) == (
        "rms_norm: a (opmux-a 1.2.3) cannot be loaded: ModuleNotFoundError: No module named 'no_such_module_anywhere'; "
        "fix its installation, or omit backend="
    )


def test_a_forced_backend_never_falls_back():
    with backends(
        a=implementation(raising(ValueError("odd"))), b=implementation(ones, when=(MultipleOf("hidden", 5),))
    ):
        with pytest.raises(BackendFault) as caught:
            opmux.rms_norm(X, W, backend="a")
        assert str(caught.value).startswith(
            "rms_norm: a (opmux-a 1.2.3) failed, and backend='a' was asked for: ValueError: odd"
        )
        assert opmux.quarantined() == ()
        with pytest.raises(UnsupportedCall) as caught:
            opmux.rms_norm(X, W, backend="b")
    assert str(caught.value) == (
        "rms_norm: no backend accepts this call on cpu for backend='b'\n"
        "  call:      x float32[4, 8], weight float32[8]\n"
        "  rejected:  a          (opmux-a 1.2.3)  not asked for: backend='b'\n"
        "             b          (opmux-b 1.2.3)  hidden = 8 is not a multiple of 5\n"
        "             reference  (opmux 0.1.0)    not asked for: backend='b'\n"
        '  try:       pad hidden to 10, or pass backend="reference"'
    )


DRIVERS = torch.AcceleratorError("CUDA error: out of memory")


TRITONS = RuntimeError("Triton Error [CUDA]: out of memory")


@pytest.mark.parametrize(
    "error", [OOM, DRIVERS, TRITONS, MemoryError("host")], ids=["device", "driver", "triton", "host"]
)
def test_out_of_memory_is_nobodys_fault(error):
    with backends(a=implementation(raising(error))):
        with pytest.raises(type(error), match=re.escape(str(error))):
            opmux.rms_norm(X, W)
        assert opmux.quarantined() == ()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupts_pass_through(error):
    with backends(a=implementation(raising(error()))):
        with pytest.raises(error):
            opmux.rms_norm(X, W)
        assert opmux.quarantined() == ()


def test_a_lost_device_is_raised_as_what_it_is(monkeypatch):
    def lost():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(modes, "capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    with backends(a=implementation(raising(RuntimeError("CUDA error: an illegal memory access was encountered")))):
        with pytest.raises(RuntimeError, match=r"^CUDA error: an illegal memory access"):
            opmux.rms_norm(X, W)
        assert opmux.quarantined() == ()
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        assert torch.equal(opmux.rms_norm(X, W), WANTED), "an error that does not stick is the target's"


def test_bad_index_data_is_the_callers():
    """A kernel that fails on bad slots is not put in quarantine for it."""

    def target(*tensors, **options):
        raise RuntimeError("device-side assert")

    k = torch.randn(2, 1, 8)
    caches = torch.zeros(2, 16, 1, 8), torch.zeros(2, 16, 1, 8)
    with backends(a=implementation(target, op="write_kv_cache")):
        with pytest.raises(InvalidArgument, match="write_kv_cache: `slot_mapping`"):
            opmux.write_kv_cache(k, k, *caches, torch.tensor([0, 99]))
        assert opmux.quarantined() == ()


def test_a_mutating_op_falls_back_only_if_nothing_was_launched():
    def half_done(x, residual, weight, *, eps, weight_offset):
        x.zero_()
        raise RuntimeError("in the middle")

    def not_built(x, residual, weight, *, eps, weight_offset):
        raise BuildFailed("no compiler")

    x, residual = X.clone(), X.clone()
    with backends(a=implementation(half_done, op="add_rms_norm_", priority=SPECIAL)):
        with pytest.raises(BackendFault) as caught:
            opmux.add_rms_norm_(x, residual, W)
        assert str(caught.value) == (
            "add_rms_norm_: a (opmux-a 1.2.3) failed while writing `x`, `residual`, whose contents are "
            "now undefined: RuntimeError: in the middle\n"
            "  call:      x float32[4, 8], residual float32[4, 8], weight float32[8]\n"
            "  try:       restore `x`, `residual` and call again: the next choice will run"
        )
        x, residual = X.clone(), X.clone()
        opmux.add_rms_norm_(x, residual, W)
        assert torch.equal(residual, X + X)
    opmux.quarantine_clear()
    with backends(a=implementation(not_built, op="add_rms_norm_")):
        x, residual = X.clone(), X.clone()
        opmux.add_rms_norm_(x, residual, W)
        assert torch.equal(residual, X + X)
        assert torch.equal(x, opmux.add_rms_norm.reference(X, X, W)[0])


def test_the_process_and_other_ops_go_on_after_any_fault():
    for error in (RuntimeError("a"), TypeError("b"), OpmuxError("c"), ZeroDivisionError("d")):
        with backends(a=implementation(raising(error))):
            with contextlib.suppress(OpmuxError):
                opmux.rms_norm(X, W)
            assert torch.equal(opmux.layer_norm(X, W), opmux.layer_norm.reference(X, W))
        opmux.quarantine_clear()
    assert torch.equal(opmux.rms_norm(X, W), WANTED)


def test_nothing_falls_back_while_capturing(monkeypatch):
    state = {"broken": False}

    def target(x, weight, *, eps, weight_offset):
        if state["broken"]:
            raise RuntimeError("invalid configuration")
        return torch.ones_like(x)

    with backends(a=implementation(target, capturable=True)):
        opmux.rms_norm(X, W)
        state["broken"] = True
        monkeypatch.setattr(modes, "capturing", lambda: True)
        with pytest.raises(CaptureRefused) as caught:
            opmux.rms_norm(X, W)
        assert str(caught.value) == (
            "rms_norm: a (opmux-a 1.2.3) failed during graph capture, where no fallback may run: "
            "RuntimeError: invalid configuration; run the call once before the capture"
        )


def test_two_threads_that_meet_one_fault_blame_one_backend():
    barrier, seen = threading.Barrier(2), []
    state = {"broken": False}

    def target(x, weight, *, eps, weight_offset):
        if state["broken"]:
            barrier.wait(timeout=20)
            raise RuntimeError("both at once")
        return torch.ones_like(x)

    def caller():
        seen.append(opmux.rms_norm(X, W)[0, 0].item())

    with backends(a=implementation(target, priority=Priority.SPECIALISED), b=implementation(filled(2.0))):
        opmux.rms_norm(X, W)
        state["broken"] = True
        threads = [threading.Thread(target=caller) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == [2.0, 2.0]
        assert [q.name for q in opmux.quarantined()] == ["a"]


def test_out_of_memory_on_the_host_is_nobodys_fault():
    def target(x, weight, *, eps, weight_offset):
        return torch.empty(1 << 50)

    with backends(a=implementation(target)):
        with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
            opmux.rms_norm(X, W)
        assert opmux.quarantined() == ()
