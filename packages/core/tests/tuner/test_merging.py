"""Merging files, and measuring rows again."""

import dataclasses
import errno
import os
from pathlib import Path

import pytest
from tuner_points import norm

import opmux
from opmux.errors import InvalidArgument, OpmuxError
from opmux.tuner import check, merge
from opmux.tuning.measured import Machine, MeasuredRow, read_measured, write_measured

BOARD = Machine("sm_90", "NVIDIA H200", 132, date="2026-11-01")


def row(time_us: float = 100.0, spread: float = 0.01, date: str = BOARD.date, **fields) -> MeasuredRow:
    point = norm(64, 4096)
    machine = dataclasses.replace(fields.pop("machine", BOARD), date=date)
    given = {"implementation": "triton", "error": 0.5, "compared": ("triton",), "config": {"rows": 4}} | fields
    return MeasuredRow(
        point.op, point.dtypes, point.options, point.dims, machine=machine, time_us=time_us, spread=spread, **given
    )


def written(path: Path, *rows: MeasuredRow) -> Path:
    write_measured(path, rows)
    return path


def test_rows_of_several_files_are_joined_and_equal_ones_are_no_conflict(tmp_path: Path) -> None:
    a = written(tmp_path / "a.measured", row(), row(implementation="vendor", compared=("vendor",), config=None))
    b = written(tmp_path / "b.measured", row(101.0), row(machine=Machine("sm_90", "NVIDIA H100", 132)))
    merged = merge([a, b], tmp_path / "all.measured")
    assert (merged.rows, merged.conflicts, merged.refused) == (3, (), ())
    assert str(merged) == f"3 rows in {tmp_path / 'all.measured'}, 0 conflicts, 0 rows refused"
    found = read_measured(tmp_path / "all.measured")
    assert {(r.implementation, r.machine.device, r.time_us) for r in found.rows} == {
        ("triton", "NVIDIA H200", 101.0),
        ("vendor", "NVIDIA H200", 100.0),
        ("triton", "NVIDIA H100", 100.0),
    }


@pytest.mark.parametrize("newest_first", [True, False])
def test_of_conflicting_rows_the_newer_is_kept_and_both_are_named(tmp_path: Path, newest_first: bool) -> None:
    old = written(tmp_path / "old.measured", row(100.0))
    new = written(tmp_path / "new.measured", row(120.0, date="2026-11-20"))
    merged = merge([new, old] if newest_first else [old, new], tmp_path / "all.measured")
    (conflict,) = merged.conflicts
    kept, left = read_measured(new).rows[0], read_measured(old).rows[0]
    assert conflict == (
        f"{kept.where}: 120 us (2026-11-20) kept, {left.where}: 100 us (2026-11-01) left out, "
        f"of triton at {norm(64, 4096).key}"
    )
    assert f"conflict: {conflict}" in str(merged)
    assert [r.time_us for r in read_measured(tmp_path / "all.measured").rows] == [120.0]


def test_another_config_at_the_same_time_is_a_conflict(tmp_path: Path) -> None:
    a = written(tmp_path / "a.measured", row())
    b = written(tmp_path / "b.measured", row(config={"rows": 8}))
    assert len(merge([a, b], tmp_path / "all.measured").conflicts) == 1


def test_refused_rows_are_named_and_the_rest_is_merged(tmp_path: Path) -> None:
    a = written(tmp_path / "a.measured", row())
    with a.open("a") as file:
        file.write("[[-1,4096],[1,0,0]]\n")
    merged = merge([a], tmp_path / "all.measured")
    assert merged.rows == 1
    (refused,) = merged.refused
    assert refused.startswith(f"{a}:{len(a.read_text().splitlines())}: ")


def test_files_that_cannot_be_read_or_written_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(kind: type[OpmuxError], *files: Path) -> str:
        with pytest.raises(kind) as refused:
            merge(files, tmp_path / "all.measured")
        return str(refused.value)

    assert told(InvalidArgument) == "tune: `merge` expected files of measured rows, got none; name them"
    none = tmp_path / "none.measured"
    assert told(InvalidArgument, none) == f"tune: `merge` cannot read {none}: No such file or directory; name a file"

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("opmux.tuner.merging.write_measured", full)
    assert told(OpmuxError, written(tmp_path / "a.measured", row())) == (
        f"tune: {tmp_path / 'all.measured'} cannot be written: No space left on device; choose another file"
    )


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
