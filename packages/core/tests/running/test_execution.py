"""Recovering from what a planned target raises: whose fault it is, and which implementation runs instead."""

import pytest
import torch
from backends import backends, implementation
from planted import SPECIAL, WANTED, W, X, raising

import opmux
from opmux.callpath.plans import PlanTable
from opmux.errors import BackendFault, InvalidArgument
from opmux.plugin import Exact
from opmux.running.execution import execute

OPTIONS = {"eps": 1e-6, "weight_offset": 0.0}


class Breakable:
    """A target that runs until it is broken."""

    def __init__(self, value: float = 1.0) -> None:
        self.value, self.broken, self.runs = value, False, 0

    def __call__(self, x, weight, *, eps, weight_offset):
        self.runs += 1
        if self.broken:
            raise RuntimeError("later")
        return torch.full_like(x, self.value)


def test_a_plan_that_left_the_table_is_judged_by_the_front_that_still_runs_it(monkeypatch):
    """A front keeps short cuts to plans that the bounded table may have dropped since."""
    monkeypatch.setattr(PlanTable, "LIMIT", 4)
    target = Breakable()
    with backends(a=implementation(target, features=(Exact("tokens"),))):
        opmux.rms_norm(X, W)
        for rows in range(10, 14):
            opmux.rms_norm(torch.randn(rows, 8), W, backend="a")
        table, front = opmux.rms_norm.op.table, opmux.rms_norm.op.front[2]
        assert len(front) == 1
        assert not any(front[key] is run for key in front for run in table.values()), "the table has dropped it"
        before = target.runs
        opmux.rms_norm(X, W)
        assert target.runs == before + 1, "the front still runs it"
        target.broken = True
        assert torch.equal(opmux.rms_norm(X, W), WANTED)
        assert [(q.name, q.scope, q.reason) for q in opmux.quarantined()] == [("a", "plan", "RuntimeError: later")]


def test_a_fault_of_a_named_backend_on_the_direct_way_is_an_error():
    target = Breakable()
    with backends(a=implementation(target)), torch.no_grad():
        for _ in range(2):
            opmux.rms_norm(X, W, backend="a")
        target.broken = True
        with pytest.raises(BackendFault, match="backend='a' was asked for: RuntimeError: later"):
            opmux.rms_norm(X, W, backend="a")
        assert torch.equal(opmux.rms_norm(X, W), WANTED), "it is in quarantine, so the next choice runs"


def test_what_a_front_remembers_is_bounded(monkeypatch):
    monkeypatch.setattr(PlanTable, "LIMIT", 4)
    with backends(a=implementation(Breakable(), features=(Exact("tokens"),))):
        for rows in range(1, 20):
            opmux.rms_norm(torch.randn(rows, 8), W)
        front = opmux.rms_norm.op.front[2]
        assert len(front) == len(front._plans) == 4


def test_off_the_direct_way_the_next_choice_runs_too():
    target = Breakable()
    with backends(a=implementation(target)):
        assert execute(opmux.rms_norm.op, (X, W), OPTIONS, None).sum() == 32
        target.broken = True
        assert torch.equal(execute(opmux.rms_norm.op, (X, W), OPTIONS, None), WANTED)
        assert [q.name for q in opmux.quarantined()] == ["a"]


def test_a_forced_plan_has_a_key_of_its_own():
    first, second = Breakable(1.0), Breakable(2.0)
    with backends(a=implementation(first, priority=SPECIAL), b=implementation(second)):
        for backend, total in ((None, 32), ("b", 64), ("a", 32), ("b", 64)):
            assert execute(opmux.rms_norm.op, (X, W), OPTIONS, backend).sum() == total
        second.broken = True
        with pytest.raises(BackendFault, match=r"b \(opmux-b 1\.2\.3\) failed, and backend='b' was asked for"):
            execute(opmux.rms_norm.op, (X, W), OPTIONS, "b")
        assert execute(opmux.rms_norm.op, (X, W), OPTIONS, None).sum() == 32


def test_results_go_into_out_after_a_fault_too():
    target, out = Breakable(), torch.empty(4, 8)
    with backends(a=implementation(target)):
        assert execute(opmux.rms_norm.op, (X, W), OPTIONS, None, out) is out
        target.broken = True
        assert execute(opmux.rms_norm.op, (X, W), OPTIONS, None, out) is out
    assert torch.equal(out, WANTED)


def test_the_callers_error_is_raised_as_it_is_and_nobody_is_blamed():
    told = InvalidArgument("rms_norm: `x` expected other data")
    with backends(a=implementation(raising(told))):
        with pytest.raises(InvalidArgument) as caught:
            execute(opmux.rms_norm.op, (X, W), OPTIONS, None)
        assert caught.value is told
        assert opmux.quarantined() == ()


def test_an_error_without_a_stored_plan_is_judged_once():
    """The first run of a plan judges its own faults: what it raises is not judged again on the way out."""
    with (
        backends(a=implementation(raising(RuntimeError("at once")))),
        opmux.policy.override(strict=True),
        pytest.raises(BackendFault) as caught,
    ):
        execute(opmux.rms_norm.op, (X, W), OPTIONS, None)
    assert str(caught.value).count("failed, and the policy is strict") == 1
    assert opmux.quarantined() == ()
