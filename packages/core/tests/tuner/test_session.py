"""Runs: what hangs or dies costs only itself, a run goes on where it stopped, and wrong use is one clear line."""

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import filelock
import pytest
import torch
from tuner_points import dying, norm

import opmux
from opmux.errors import InvalidArgument, OpmuxError, UnknownBackend
from opmux.shapes import Point, write_shapes
from opmux.tuner import backlog, session
from opmux.tuner.journal import Journal
from opmux.tuner.measuring import Measured
from opmux.tuner.rows import rows_of
from opmux.tuner.station import Station
from opmux.tuning.measured import read_measured

LINEAR = Point("linear", {"x": torch.float32, "w": torch.float32}, {"tokens": 4, "k": 64, "n": 32}, {})


def tune(tmp_path: Path, **fields):
    """A run on the CPU with few rounds."""
    given = {"shapes": [norm()], "out": tmp_path / "cpu.measured", "device": "cpu", "rounds": 3, "patience_s": 6.0}
    return opmux.tune(**given | fields)


def refusal(tmp_path: Path, *ops: str, kind: type[OpmuxError] = InvalidArgument, **fields) -> str:
    """The text of the error."""
    with pytest.raises(kind) as refused:
        tune(tmp_path, ops=ops, **fields)
    return str(refused.value)


@pytest.mark.long
def test_configs_that_are_wrong_hang_or_die_are_recorded_and_the_rest_is_measured(planted, tmp_path: Path) -> None:
    planted("hanging wrong dying right")
    tuned = tune(tmp_path)
    found = read_measured(tmp_path / "cpu.measured")
    assert not found.refused
    assert {row.implementation for row in found.rows} == {"planted", "planted:other", "reference"}
    assert all(row.compared == ("planted", "planted:other", "reference") for row in found.rows)
    (planted_row,) = [row for row in found.rows if row.implementation == "planted"]
    assert planted_row.config == {"kind": "right", "amount": 0}
    assert planted_row.machine.arch == "cpu"
    assert planted_row.machine.versions["opmux-planted"] == "0.3"
    reasons = {row.config["kind"]: row.reason for row in found.failed}
    assert reasons.pop("wrong").startswith("wrong: `y`[3, ")
    assert reasons == {"hanging": "not done within 6 s", "dying": "its process ended with exit code 7"}
    assert (tuned.measured, tuned.rows, tuned.failed, tuned.left, tuned.problems) == (1, 3, 3, 0, ())
    assert str(tuned).splitlines()[1:] == [
        "no kernel compiled; 3 configs were wrong or failed",
        f"3 rows in {tmp_path / 'cpu.measured'}",
    ]


def test_builders_find_what_fails_before_it_is_timed(inside, tmp_path: Path) -> None:
    inside("built raising wrong")
    tuned = tune(tmp_path, shapes=[norm(4), norm(8)], jobs=3)
    assert (tuned.rows, tuned.failed) == (6, 4)
    found = read_measured(tmp_path / "cpu.measured")
    assert sorted(row.config["kind"] for row in found.failed) == ["raising", "raising", "wrong", "wrong"]
    assert tuned.builds > 0
    assert refusal(tmp_path, shapes=[norm()], most_configs=0) == (
        "tune: `most_configs` expected 1 or more, got 0; omit it to try every config of a space"
    )
    assert refusal(tmp_path, shapes=[norm()], jobs=-1) == (
        "tune: `jobs` expected 0 or more, got -1; omit it for the default"
    )


def test_few_configs_are_built_for_several_points_at_a_time(inside, tmp_path: Path) -> None:
    inside("raising wrong built")
    points = [norm(tokens) for tokens in (4, 8, 16, 32, 64)]
    tuned = tune(tmp_path, shapes=points, jobs=4, most_configs=2)
    assert (tuned.measured, tuned.rows, tuned.failed, tuned.left, tuned.builds) == (5, 15, 5, 0, 0)
    found = read_measured(tmp_path / "cpu.measured")
    assert [row.reason for row in found.failed] == ["RuntimeError: no such instruction"] * 5


def test_points_that_were_built_and_not_measured_are_left_for_the_next_run(
    inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside("built")
    clock, measure = [0.0], Station.measure

    def slowly(self, request):
        clock[0] += 100
        return measure(self, request)

    monkeypatch.setattr(Station, "measure", slowly)
    monkeypatch.setattr(backlog, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    points = [norm(tokens) for tokens in (4, 8, 16)]
    tuned = tune(tmp_path, shapes=points, jobs=4, most_configs=1, limit_s=50)
    assert (tuned.measured, tuned.left) == (1, 2)
    again = tune(tmp_path, shapes=points, jobs=4, most_configs=1)
    assert (again.measured, again.skipped, again.left, again.rows) == (2, 1, 0, 9)


def test_a_point_that_was_taken_is_measured_however_long_building_took(
    inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside("built")
    clock, build = [0.0], Station.build

    def slowly(self, requests):
        clock[0] += 100
        build(self, requests)

    monkeypatch.setattr(Station, "build", slowly)
    monkeypatch.setattr(backlog, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    tuned = tune(tmp_path, shapes=[norm(4), norm(8)], jobs=4, most_configs=1, limit_s=50)
    assert (tuned.measured, tuned.left) == (1, 1)


def test_points_taken_ahead_by_a_station_that_fails_are_left(
    inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside("built")
    measure = Station.measure

    def once(self, request):
        if request.point.dims["tokens"] == 8:
            raise OpmuxError("the measuring process does not start")
        return measure(self, request)

    monkeypatch.setattr(Station, "measure", once)
    tuned = tune(tmp_path, shapes=[norm(tokens) for tokens in (4, 8, 16, 32)], jobs=4, most_configs=1)
    assert (tuned.measured, tuned.left) == (1, 2)


def test_a_run_goes_on_where_it_stopped(inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside("built")
    points, seen = [norm(4), norm(8), norm(16)], []

    def stopped(progress) -> None:
        seen.append(progress)
        if progress.done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(tmp_path, shapes=points, progress=stopped)
    assert [(p.done, p.total, p.now) for p in seen] == [(0, 3, ""), (1, 3, points[0].key)]
    assert len(read_measured(tmp_path / "cpu.measured").rows) == 3, "what was measured is there"
    journal = tmp_path / ".cpu.measured.journal"
    with journal.open("a") as file:
        file.write('{"journal": 1, "po')  # the next line was cut off
    tuned = tune(tmp_path, shapes=points)
    assert (tuned.measured, tuned.skipped, tuned.rows) == (2, 1, 9)
    assert tuned.builds > 0
    assert f"{tuned.builds} kernels compiled in {tuned.build_s:.1f} s" in str(tuned)
    assert len([json.loads(line) for line in journal.read_text().splitlines()]) == 3
    assert tune(tmp_path, shapes=points).measured == 0


def test_a_run_that_asks_for_more_measures_again_what_had_less(inside, tmp_path: Path) -> None:
    inside("slow")
    journal = Journal.beside(tmp_path / "cpu.measured")
    assert tune(tmp_path, backends=["planted:other"]).rows == 1
    assert tune(tmp_path, backends=["planted:other"]).skipped == 1
    assert tune(tmp_path, backends=["planted"], most_configs=1).measured == 1, "another backend"
    assert tune(tmp_path, backends=["planted"]).measured == 1, "all configs"
    assert tune(tmp_path, backends=["planted"], most_configs=1).skipped == 1
    tuned = tune(tmp_path)
    assert (tuned.measured, tuned.rows) == (1, 3), "every backend"
    assert tune(tmp_path).skipped == 1
    asked = [json.loads(line)["backends"] for line in journal.path.read_text().splitlines()]
    assert asked == [["planted:other"], ["planted"], ["planted"], None]


def test_a_point_whose_worker_was_lost_is_measured_by_the_next_run(
    inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = Measured(norm(), problem="its worker was lost: the node went away", lost=True)
    with monkeypatch.context() as patched:
        patched.setattr(Station, "measure", lambda *_: lost)
        tuned = tune(tmp_path)
    assert (tuned.measured, tuned.rows) == (1, 0)
    assert tuned.problems == (f"{norm().key}: its worker was lost: the node went away",)
    tuned = tune(tmp_path)
    assert (tuned.measured, tuned.skipped, tuned.rows) == (1, 0, 3)
    assert tune(tmp_path).skipped == 1


def test_a_journal_of_an_older_version_was_for_every_backend(inside, tmp_path: Path) -> None:
    tune(tmp_path)
    path = tmp_path / ".cpu.measured.journal"
    line = json.loads(path.read_text())
    del line["backends"], line["most_configs"], line["lost"]
    path.write_text(json.dumps(line) + "\n")
    assert tune(tmp_path).skipped == 1


KILLED = """
import os
import signal
import sys

import opmux
from tuner_points import norm


def killed(progress):
    if progress.done == 1:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    points = [norm(tokens) for tokens in (4, 8, 16)]
    opmux.tune(shapes=points, out=sys.argv[1], device="cpu", rounds=3, progress=killed)
"""


def test_a_run_that_was_killed_goes_on_where_it_stopped(planted, tmp_path: Path) -> None:
    planted("right")
    program = tmp_path / "program.py"
    program.write_text(KILLED)
    here = Path(__file__).parent.parent
    path = os.pathsep.join([str(here), os.environ["PYTHONPATH"]])
    command = [sys.executable, str(program), str(tmp_path / "cpu.measured")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    tuned = tune(tmp_path, shapes=[norm(4), norm(8), norm(16)])
    assert (tuned.measured, tuned.skipped, tuned.left) == (2, 1, 0)
    assert {row.dims["tokens"] for row in read_measured(tmp_path / "cpu.measured").rows} == {4, 8, 16}


def test_the_time_limit_leaves_points_for_the_next_run(inside, tmp_path: Path) -> None:
    tuned = tune(tmp_path, shapes=[norm(4), norm(8), norm(16)], limit_s=1e-9)
    assert (tuned.measured, tuned.left) == (0, 3)
    assert "3 left: the time was up; the same command goes on" in str(tuned)


def test_a_call_without_memory_is_said_and_the_others_are_measured(inside, tmp_path: Path) -> None:
    huge = norm(2**38, 2**10)
    tuned = tune(tmp_path, shapes=[huge, norm()])
    assert tuned.rows == 3
    (problem,) = tuned.problems
    assert problem.startswith(f"{huge.key}: out of memory: ")


def test_rows_that_the_file_has_are_kept_unless_they_are_measured_again(inside, tmp_path: Path) -> None:
    tune(tmp_path)
    (tmp_path / ".cpu.measured.journal").unlink()
    tuned = tune(tmp_path, shapes=[norm(), norm(8)])
    assert (tuned.measured, tuned.rows) == (2, 6)


def test_a_trace_is_measured_heaviest_first(inside, tmp_path: Path) -> None:
    points = [norm(4, count=3), norm(8192, 1024, count=1000), norm(8, count=10**6)]
    write_shapes(tmp_path / "shapes.json", points)
    seen = []
    tune(tmp_path, shapes=None, from_trace=tmp_path / "shapes.json", progress=lambda p: seen.append(p.now))
    assert seen[1:] == [points[i].key for i in (1, 2, 0)] or seen[1:] == [points[i].key for i in (2, 1, 0)]


def test_a_full_disk_is_one_clear_line_and_nothing_is_lost(
    inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(tmp_path)

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    journal = tmp_path / ".cpu.measured.journal"
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        told = refusal(tmp_path, kind=OpmuxError, shapes=[norm(8)])
    assert told == (
        f"tune: {journal} cannot be written: No space left on device; the 1 points in it are kept: "
        "make room, and give the same command again"
    )
    assert len(Journal(journal).entries) in (1, 2)
    assert tune(tmp_path, shapes=[norm(), norm(8)]).rows == 6


def test_a_full_disk_for_the_rows_leaves_the_journal(inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("opmux.tuner.session.write_measured", full)
        told = refusal(tmp_path, kind=OpmuxError)
    assert told == (
        f"tune: {tmp_path / 'cpu.measured'} cannot be written: No space left on device; the points of this run are "
        "kept in .cpu.measured.journal: make room, and give the same command again"
    )
    assert tune(tmp_path).skipped == 1


def test_two_runs_do_not_write_one_file(inside, tmp_path: Path) -> None:
    with filelock.FileLock(tmp_path / ".cpu.measured.lock"):
        told = refusal(tmp_path, kind=OpmuxError)
    assert told == (
        f"tune: another run writes {tmp_path / 'cpu.measured'}; wait for it, or write to another file and merge the two"
    )


def test_a_journal_that_cannot_be_read_names_its_line(inside, tmp_path: Path) -> None:
    (tmp_path / ".cpu.measured.journal").write_text('{"journal": 2}\n')
    assert refusal(tmp_path) == (
        f"tune: {tmp_path / '.cpu.measured.journal'}:1: expected a line of a journal, got one that cannot be read "
        "(its format is 2, this opmux reads 1); delete the file to measure again"
    )


def test_a_file_of_rows_that_is_damaged_is_not_overwritten(inside, tmp_path: Path) -> None:
    path = tmp_path / "cpu.measured"
    path.write_text("nothing of the kind\n")
    told = refusal(tmp_path, kind=OpmuxError)
    assert told.startswith(f"tune: {path}:1: ")
    assert told.endswith(
        "; the points of this run are kept in .cpu.measured.journal: mend or remove the file, "
        "and give the same command again"
    )
    assert path.read_text() == "nothing of the kind\n"


def test_a_measuring_process_that_does_not_start_says_why(
    planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opmux.tuner.station.serve", dying)
    assert refusal(tmp_path, kind=OpmuxError) == (
        "tune: the measuring process on cpu does not start: its process ended with exit code 9"
    )


def test_ops_of_a_trace_that_nobody_implements_are_left_out_and_said(inside, tmp_path: Path) -> None:
    write_shapes(tmp_path / "shapes.json", [norm(), LINEAR])
    tuned = tune(tmp_path, shapes=None, from_trace=tmp_path / "shapes.json")
    assert (tuned.measured, tuned.rows, tuned.problems) == (1, 3, ())
    assert tuned.left_out == ("linear: only the reference implements it",)
    assert str(tuned).splitlines()[-1] == "left out: linear: only the reference implements it"
    told = (
        "tune: linear: expected an op with something to measure, got one of which only the reference implements it; "
        "install a backend for it, or leave it out (see `opmux backends`)"
    )
    assert refusal(tmp_path, "linear", "rms_norm", shapes=[norm(), LINEAR]) == told, "it was asked for by name"
    assert refusal(tmp_path, shapes=[LINEAR]) == told, "nothing is left"


WRONG = [
    ({}, "tune: expected one of `shapes`, `random` and `from_trace`, got none; say what to measure"),
    (
        {"shapes": [norm()], "random": 3},
        "tune: expected one of `shapes`, `random` and `from_trace`, got shapes and random; say what to measure",
    ),
    ({"random": 3}, "tune: `op` expected names of ops with `random`, got none; name those to draw for"),
    (
        {"ops": ["rms_nrm"], "random": 3},
        "tune: `op` expected the name of an op, got 'rms_nrm'; did you mean rms_norm? see `opmux ops`",
    ),
    (
        {"ops": ["linear"], "shapes": [norm()]},
        "tune: expected shapes to measure, got none of linear; record some with opmux.trace",
    ),
    ({"shapes": []}, "tune: expected shapes to measure, got none; record some with opmux.trace"),
    ({"shapes": "none.json"}, "tune: `shapes` cannot be read: [Errno 2] No such file or directory: 'none.json'; name"),
    (
        {"ops": ["linear"], "random": 3},
        "tune: linear: expected an op with something to measure, got one of which only the reference implements it; "
        "install a backend for it, or leave it out (see `opmux backends`)",
    ),
    (
        {"ops": ["linear"], "random": 3, "backends": ["planted"]},
        "tune: linear: expected an op with something to measure, got one of which planted does not implement it; "
        "install a backend for it, or leave it out (see `opmux backends`)",
    ),
    ({"ops": ["rms_norm"], "random": 0}, "tune: `random` expected 1 point or more for each op, got 0"),
    ({"shapes": [norm()], "limit_s": float("nan")}, "tune: `limit` expected more than 0 seconds, got nan; omit it"),
    ({"shapes": [norm()], "rounds": 0}, "tune: `rounds` expected 1 or more, got 0; omit it for the default of 15"),
    ({"shapes": [norm()], "patience_s": 0.0}, "tune: `patience` expected 1 second or more, got 0; omit it for"),
    (
        {"shapes": [norm()], "workers": 2},
        "tune: `workers` expected a run on Ray, got 2 without `ray`; omit it, as each device has a process of its own, "
        "or name a cluster",
    ),
    ({"shapes": [norm()], "workers": 0, "ray": "local"}, "tune: `workers` expected 1 or more, got 0; omit it for the"),
    ({"shapes": [norm()], "out": "rows.csv"}, "tune: `out` expected a file with the suffix .measured, got rows.csv;"),
    ({"shapes": [norm()], "out": "no/a.measured"}, "tune: `out` expected a file in a folder that exists, got no/a.mea"),
]


@pytest.mark.parametrize(("given", "told"), WRONG, ids=[told[6:50] for _, told in WRONG])
def test_wrong_use_is_refused_before_anything_is_measured(inside, given, told: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        opmux.tune(**{"device": "cpu", **given})
    assert str(refused.value).startswith(told)


def test_a_device_that_is_not_there_and_an_unknown_backend_are_refused(
    inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert refusal(tmp_path, device="cuda") == ("tune: `device` expected one of cpu, got 'cuda'; see `opmux doctor`")
    assert refusal(tmp_path, backends=["planed"], kind=UnknownBackend) == (
        "tune: `backend` expected one of opmux, opmux:functional, planted, planted:other, reference, got 'planed'; "
        "see `opmux backends` and, for plugins that failed to load, `opmux doctor`"
    )


def test_without_a_file_the_rows_go_to_the_users_folder(inside, tmp_path: Path) -> None:
    tuned = tune(tmp_path, out=None)
    assert Path(tuned.file).parent == tmp_path / "config" / "opmux" / "tuned"
    assert Path(tuned.file).suffix == ".measured"


def test_a_row_that_cannot_be_is_said_and_the_others_are_written(
    inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [norm(4), norm(8)]

    def impossible(measured, machine):
        rows = rows_of(measured, machine)
        return [dataclasses.replace(row, error=7.0) if row.dims["tokens"] == 4 else row for row in rows]

    monkeypatch.setattr(session, "rows_of", impossible)
    tuned = tune(tmp_path, shapes=points)
    assert tuned.rows == len(read_measured(tmp_path / "cpu.measured").rows) == 3
    assert len(tuned.problems) == 3
    assert all(p.startswith(f"{points[0].key} by ") and "`error` expected at most 1" in p for p in tuned.problems)
    assert "not measured: " in str(tuned)
