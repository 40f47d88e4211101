"""Who takes part in a case."""

import pytest
import torch
from backends import backends, implementation

from opmux.bench.clocks import CpuClock
from opmux.bench.contest import Contest
from opmux.bench.data import Arguments
from opmux.callpath.op import OPS
from opmux.plugin import AtMost, Priority


def good(x, weight, *, eps, weight_offset):
    return torch.nn.functional.rms_norm(x, weight.shape, weight + weight_offset, eps)


def doubled(x, weight, *, eps, weight_offset):
    return 2 * good(x, weight, eps=eps, weight_offset=weight_offset)


def raising(x, weight, *, eps, weight_offset):
    raise RuntimeError("no such instruction")


def entered(*names: str) -> Contest:
    generator = torch.Generator().manual_seed(1)
    x, weight = torch.randn(3, 8, generator=generator), torch.randn(8, generator=generator)
    contest = Contest(OPS["rms_norm"], Arguments((x, weight), {"eps": 1e-3}), CpuClock())
    contest.enter_implementations(names or None)
    return contest


def test_everybody_who_accepts_the_call_takes_part_and_the_chosen_one_is_marked() -> None:
    with backends(rows=implementation(good)):
        contest = entered()
    assert {(e.name, e.chosen, e.package) for e in contest.entries} == {
        ("rows", True, "opmux-rows 1.2.3"),
        ("reference", False, f"opmux {OPS['rms_norm'].implementations[0].version}"),
    }
    assert all(e.difference < 1e-5 for e in contest.entries)
    assert contest.left == []


def test_one_that_rejects_the_call_is_left_with_its_reason() -> None:
    with backends(rows=implementation(good, when=(AtMost("hidden", 4),))):
        (left,) = entered().left
    assert (left.name, left.kind, left.status, left.reason) == (
        "rows", "implementation", "rejected", "hidden = 8 is more than 4",
    )  # fmt: skip


def test_one_that_raises_is_left_and_the_others_go_on() -> None:
    with backends(ck=implementation(raising), rows=implementation(good)):
        contest = entered()
    (left,) = contest.left
    assert (left.name, left.status) == ("ck", "failed")
    assert "no such instruction" in left.reason
    assert {e.name for e in contest.entries} == {"rows", "reference"}


def test_one_whose_target_cannot_be_imported_is_left() -> None:
    with backends(ck=implementation("no_such_package.norm:rms_norm")):
        (left,) = entered().left
    assert left.status == "failed"
    assert "No module named 'no_such_package'" in left.reason


def test_a_wrong_result_is_measured() -> None:
    with backends(twice=implementation(doubled)):
        differences = {e.name: e.difference for e in entered().entries}
    assert differences["twice"] == pytest.approx(1.0, rel=1e-5)


def test_only_the_backends_asked_for_take_part() -> None:
    rows = [implementation(good, name="a"), implementation(good, name="b")]
    with backends(rows=rows, ck=implementation(good)):
        assert {e.name for e in entered("rows").entries} == {"rows:a", "rows:b"}
        assert {e.name for e in entered("rows:b", "ck").entries} == {"rows:b", "ck"}


def test_an_experimental_one_takes_part_when_it_is_asked_for() -> None:
    with backends(lab=implementation(good, priority=Priority.EXPERIMENTAL)):
        assert [left.reason for left in entered().left] == ["experimental: only when asked for by name"]
        assert [e.name for e in entered("lab").entries] == ["lab"]


def test_a_mutating_op_finds_its_arguments_as_they_were() -> None:
    x, residual, weight = torch.randn(2, 4), torch.randn(2, 4), torch.ones(4)
    before = x.clone(), residual.clone()
    contest = Contest(OPS["add_rms_norm_"], Arguments((x, residual, weight)), CpuClock())
    contest.enter_implementations(None)
    assert {e.name for e in contest.entries} == {"opmux:functional", "reference"}
    assert all(e.difference < 1e-6 for e in contest.entries)
    assert contest.entries[0].timed.prepare is not None
    contest.entries[0].timed.run()
    assert not torch.equal(x, before[0])
    contest.entries[0].timed.prepare()
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])
