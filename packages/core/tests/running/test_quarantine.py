"""The quarantine: what is in it, how far it reaches, and how an implementation leaves it again."""

import threading

import pytest
import torch
from backends import backends, implementation
from planted import WANTED, W, X, filled, raising

import opmux
from opmux.plugin import Exact, Implementation
from opmux.running import quarantine
from opmux.running.quarantine import ARCH, KERNEL, PLAN, PLANS_BEFORE_ARCH, quarantined_for

BROKEN = Implementation(op="rms_norm", target="a:b", backend="a", distribution="opmux-a", version="1.2.3")


def put(key, scope=PLAN, arch="cpu", op="rms_norm"):
    quarantine.quarantine(op, BROKEN, arch, scope, f"reason {key}", key)


def test_a_record_is_readable_as_data():
    with backends(a=implementation(raising(RuntimeError("odd")))):
        opmux.rms_norm(X, W)
        (record,) = opmux.quarantined()
    assert (record.op, record.name, record.distribution, record.version, record.arch, record.scope) == (
        "rms_norm", "a", "opmux-a", "1.2.3", "cpu", "plan",
    )  # fmt: skip
    assert record.when.tzinfo is not None


def test_a_fault_of_a_plan_concerns_that_op_arch_and_key():
    put("one")
    assert quarantined_for("rms_norm", "cpu", "one") == {"a": "reason one"}
    assert quarantined_for("rms_norm", "cpu", "other") == {}
    assert quarantined_for("rms_norm", "sm_90", "one") == {}
    assert quarantined_for("layer_norm", "cpu", "one") == {}


def test_a_fault_of_an_arch_concerns_every_key_on_it():
    put("one", ARCH)
    assert [q.key for q in opmux.quarantined()] == [None]
    assert quarantined_for("rms_norm", "cpu", "other") == {"a": "reason one"}
    assert quarantined_for("rms_norm", "sm_90", "one") == {}


def test_after_many_plans_a_fault_counts_for_the_arch(messages):
    for key in range(PLANS_BEFORE_ARCH):
        put(key)
        put(key, arch="sm_90")
    assert {q.scope for q in opmux.quarantined()} == {PLAN}
    assert quarantined_for("rms_norm", "cpu", "new") == {}
    put("last")
    assert opmux.quarantined()[-1].scope == ARCH
    assert quarantined_for("rms_norm", "cpu", "new") == {"a": "reason last"}
    assert quarantined_for("rms_norm", "sm_90", "new") == {}, "counted for each arch"
    assert messages.records[-1].getMessage() == (
        "rms_norm: a (opmux-a 1.2.3) is quarantined on cpu: reason last; the next choice runs"
    )


def test_missing_kernels_are_not_counted_as_faulty_plans():
    for key in range(2 * PLANS_BEFORE_ARCH):
        put(key, KERNEL)
    put("odd")
    assert [q.scope for q in opmux.quarantined()] == [KERNEL] * 2 * PLANS_BEFORE_ARCH + [PLAN]
    assert quarantined_for("rms_norm", "cpu", 3) == {"a": "reason 3"}
    assert quarantined_for("rms_norm", "cpu", "new") == {}


def test_many_faulty_plans_of_calls_count_as_a_fault_on_the_arch():
    target = raising(RuntimeError("every time"))
    with backends(a=implementation(target, features=(Exact("tokens"),))):
        for rows in range(1, 40):
            opmux.rms_norm(torch.randn(rows, 8), W)
        assert len(opmux.quarantined()) == PLANS_BEFORE_ARCH + 1
        assert opmux.quarantined()[-1].scope == ARCH


class Turns:
    """A lock that lets another thread in after each hold: what is decided in one and used in another goes wrong."""

    def __init__(self, threads):
        self.lock, self.barrier = threading.Lock(), threading.Barrier(threads)

    def __enter__(self):
        self.lock.acquire()

    def __exit__(self, *exception):
        self.lock.release()
        self.barrier.wait(timeout=20)


def test_threads_that_fail_together_count_each_others_plans(monkeypatch):
    """Only so many plans are quarantined one by one, however many threads fail at the same moment."""
    for key in range(PLANS_BEFORE_ARCH - 1):
        put(key)
    monkeypatch.setattr(quarantine, "_lock", Turns(4))
    threads = [threading.Thread(target=put, args=(f"thread {i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.undo()
    scopes = [q.scope for q in opmux.quarantined()]
    assert (scopes.count(PLAN), scopes.count(ARCH)) == (PLANS_BEFORE_ARCH, 1)


@pytest.mark.parametrize("scope", [ARCH, PLAN])
def test_a_cleared_quarantine_is_announced_again(messages, scope):
    for _ in range(2):
        put("one", scope)
        put("one", scope)
        opmux.quarantine_clear()
    assert opmux.quarantined() == ()
    assert len(messages.records) == 2, "once until it is cleared, and once more after"


def test_after_a_clearing_the_implementation_runs_again():
    state = {"broken": True}

    def target(x, weight, *, eps, weight_offset):
        if state["broken"]:
            raise RuntimeError("odd")
        return torch.ones_like(x)

    with backends(a=implementation(target)):
        assert torch.equal(opmux.rms_norm(X, W), WANTED)
        state["broken"] = False
        assert torch.equal(opmux.rms_norm(X, W), WANTED), "still in quarantine"
        opmux.quarantine_clear()
        assert opmux.rms_norm(X, W).sum() == 32


def test_what_is_recorded_of_a_backend_goes_with_it():
    put("one")
    with backends(b=implementation(raising(RuntimeError("odd"))), c=implementation(filled(2.0), priority=1)):
        opmux.rms_norm(X, W)
        assert [q.name for q in opmux.quarantined()] == ["a", "b"]
    assert [q.name for q in opmux.quarantined()] == ["a"]
