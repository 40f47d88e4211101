"""Merging files of measured rows."""

import errno
import os
from pathlib import Path

import pytest
from tuner_points import norm, row, written

from opmux.errors import InvalidArgument, OpmuxError
from opmux.tuner import merge
from opmux.tuning.measured import Machine, read_measured


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
