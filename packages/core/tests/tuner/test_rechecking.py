"""Measuring rows again: which of them no longer hold, and why."""

import dataclasses
import json
from pathlib import Path

import pytest
from tuner_points import BOARD, norm, row, written

import opmux
from opmux.errors import InvalidArgument
from opmux.tuner import check
from opmux.tuner.candidates import Candidate, Failure
from opmux.tuner.measuring import Measured, Timing
from opmux.tuner.rechecking import Checked, Lapsed, _changes, _lapse
from opmux.tuning.measured import read_measured, write_measured


def test_rows_are_measured_again_and_what_no_longer_holds_is_named(inside, tmp_path: Path) -> None:
    path = tmp_path / "cpu.measured"
    opmux.tune(shapes=[norm()], out=path, device="cpu", rounds=3)
    found = read_measured(path)
    times = {"planted": 1e6, "planted:other": 1100.0}
    changed = [
        dataclasses.replace(
            r,
            time_us=times.get(r.implementation, r.time_us),
            spread=1e6,
            config={"kind": "wrong", "amount": 0} if r.implementation == "planted" else r.config,
            machine=dataclasses.replace(r.machine, driver="1.0", versions={"torch": "1.0", "gone": "2"}),
        )
        for r in found.rows
    ]
    write_measured(path, [*changed, row()])
    seen = []
    checked = check([path], device="cpu", rounds=3, progress=lambda p: seen.append((p.done, p.total)))
    assert seen == [(0, 1), (1, 1)]
    assert (checked.held, checked.elsewhere, checked.unchecked, checked.passed) == (2, 1, 0, False)
    (lapsed,) = checked.lapsed
    assert str(lapsed).startswith(f"{path}:{lapsed.row.line}: planted at {norm().key}: wrong: `y`[3, ")
    assert checked.changed[0].startswith("driver 1.0, now ")
    assert checked.changed[1] == "gone 2, now not installed"
    assert checked.changed[2].startswith("torch 1.0, now ")
    assert str(checked).splitlines()[:2] == [
        "2 rows hold, 1 do not, 0 were not measured",
        "1 rows are of other devices: measure them there",
    ]


def test_a_time_that_is_off_by_more_than_its_spread_does_not_hold(inside, tmp_path: Path) -> None:
    path = tmp_path / "cpu.measured"
    opmux.tune(shapes=[norm()], out=path, device="cpu", rounds=3)
    rows = read_measured(path).rows
    write_measured(path, [dataclasses.replace(r, time_us=1e9, spread=0.0) for r in rows])
    checked = check([path], device="cpu", rounds=3)
    assert checked.held == 0
    assert all(x.reason.startswith("1e+09 us then, ") for x in checked.lapsed)


def test_nothing_to_check_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument) as refused:
        check([])
    assert str(refused.value) == ("tune: `check` expected measured rows, got none; name a file that `opmux tune` wrote")


@pytest.mark.parametrize("same", [True, False])
def test_of_files_that_differ_in_a_config_the_first_is_measured(inside, tmp_path: Path, same: bool) -> None:
    inside("right slow")
    path, second = tmp_path / "cpu.measured", tmp_path / "second.measured"
    opmux.tune(shapes=[norm()], out=path, device="cpu", rounds=3)
    (one,) = (r for r in read_measured(path).rows if r.implementation == "planted")
    lax = {"spread": 1e6}  # the times are not what is tried
    config = {"kind": "right" if same else "slow", "amount": 0}
    write_measured(path, [dataclasses.replace(one, **lax, config={"kind": "right", "amount": 0})])
    write_measured(second, [dataclasses.replace(one, **lax, config=config)])
    checked = check([path, second], device="cpu", rounds=3)
    first, other = read_measured(path).rows[0], read_measured(second).rows[0]
    refused = f"{other.where}: another config than {first.where} has for planted at {norm().key}; merge the files first"
    assert checked.lapsed == ()
    assert (checked.held, checked.refused) == ((2, ()) if same else (1, (refused,)))
    assert checked.passed is same


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    none = tmp_path / "none.measured"
    with pytest.raises(InvalidArgument) as refused:
        check([none])
    assert str(refused.value) == f"tune: `check` cannot read {none}: No such file or directory; name a file"


def test_rows_without_time_left_are_counted_and_nothing_passes(inside, tmp_path: Path) -> None:
    path = tmp_path / "cpu.measured"
    opmux.tune(shapes=[norm()], out=path, device="cpu", rounds=3)
    checked = check([path], device="cpu", rounds=3, limit_s=0.0)
    assert (checked.held, checked.lapsed, checked.passed) == (0, (), False)
    assert checked.unchecked == len(read_measured(path).rows)


def timed(median_us: float, quartiles_us: float = 0.0, implementation: str = "triton") -> Timing:
    low, high = median_us - quartiles_us, median_us + quartiles_us
    return Timing(Candidate(implementation, "0.1", ""), 15, median_us, low, high, low, high, 0.5)


@pytest.mark.parametrize(
    ("spread", "now", "reason"),
    [
        (0.0, timed(104.9), ""),  # within 5 %, whatever the spreads
        (0.0, timed(95.1), ""),
        (0.0, timed(105.1), "100 us then, 105.1 us now"),
        (0.0, timed(94.9), "100 us then, 94.9 us now"),  # faster is a change too: others may win where this one does
        (0.04, timed(111.9), ""),  # three of the row's spreads
        (0.04, timed(112.1), "100 us then, 112.1 us now"),
        (0.0, timed(129.9, 10.0), ""),  # three of the new measurement's
        (0.0, timed(130.1, 10.0), "100 us then, 130.1 us now"),
        (0.0, timed(100.0, implementation="triton:hopper"), "its implementation does not take the call"),
    ],
)
def test_how_far_a_time_may_be_off(spread: float, now: Timing, reason: str) -> None:
    assert _lapse(row(100.0, spread), Measured(norm(64, 4096), (now,))) == reason


def test_a_failure_is_told_before_a_time_and_a_problem_of_the_point_before_both() -> None:
    other, own = Failure("vendor", None, "not mine"), Failure("triton", "", "wrong: `y`")
    point = norm(64, 4096)
    assert _lapse(row(), Measured(point, (timed(100.0),), (other,))) == ""
    assert _lapse(row(), Measured(point, (timed(100.0),), (other, own))) == "wrong: `y`"
    assert _lapse(row(), Measured(point, (timed(100.0),), (own,), problem="out of memory")) == "out of memory"


def test_what_differs_on_the_machine() -> None:
    old = dataclasses.replace(BOARD, driver="570.1", versions={"torch": "2.11.0", "gone": "1", "same": "2"})
    new = dataclasses.replace(BOARD, driver="", versions={"torch": "2.13.0", "same": "2", "more": "3"})
    assert list(_changes(old, new)) == [
        "driver 570.1, now unknown", "gone 1, now not installed", "torch 2.11.0, now 2.13.0",
    ]  # fmt: skip
    assert list(_changes(new, new)) == []


@pytest.mark.parametrize(
    ("held", "lapsed", "refused", "passed"),
    [(2, False, False, True), (0, False, False, False), (2, True, False, False), (2, False, True, False)],
)
def test_what_passes_and_how_it_is_told(tmp_path: Path, held: int, lapsed: bool, refused: bool, passed: bool) -> None:
    (one,) = read_measured(written(tmp_path / "a.measured", row())).rows
    gone = (Lapsed(one, "it raised"),) * lapsed
    bad = ("a.measured:9: no such op",) * refused
    checked = Checked(held, gone, 0, 3, ("torch 2.11.0, now 2.13.0",), bad)
    said = f"{tmp_path / 'a.measured'}:{one.line}: triton at {norm(64, 4096).key}: it raised"
    assert checked.passed is passed
    assert str(checked).splitlines() == [
        f"{held} rows hold, {len(gone)} do not, 3 were not measured",
        "changed: torch 2.11.0, now 2.13.0",
        *[said] * lapsed,
        *["refused: a.measured:9: no such op"] * refused,
    ]
    data = json.loads(json.dumps(checked.as_dict()))
    assert (data["passed"], data["held"], data["unchecked"], data["refused"]) == (passed, held, 3, list(bad))
    assert [x["row"] for x in data["lapsed"]] == [said] * lapsed
