"""Ranks of one job: rank 0 measures, and every rank has its result and its rows, or its error."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tuner_points import norm

from opmux.errors import InvalidArgument
from opmux.shapes import write_shapes
from opmux.tuner.ranks import launched, on_rank_zero
from opmux.tuning.measured import read_measured

JOB = """
import json
import os
import sys

import torch
import torch.distributed as dist

import opmux
from opmux import tuning

if __name__ == "__main__":
    shapes, out, meeting = sys.argv[1:]
    if meeting == "meet":
        dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    before = dict(tuning.report().measured)
    try:
        tuned = opmux.tune(shapes=shapes, out=out, device="cpu", rounds=3, progress=lambda p: print(end="", flush=True))
        again = opmux.tuner.check([out], device="cpu", rounds=3)
        said = {"rows": tuned.rows, "took_s": tuned.took_s, "checked": again.held + len(again.lapsed)}
    except opmux.errors.OpmuxError as error:
        said = {"kind": type(error).__name__, "error": str(error)}
    plan = opmux.explain(opmux.rms_norm, torch.ones(4, 32), torch.ones(32))
    said |= {"before": before, "source": plan.chosen.time_source, "time_us": plan.chosen.time_us}
    with open(f"{out}.{rank}", "w") as file:
        json.dump(said, file)
    if meeting == "meet":
        dist.destroy_process_group()
"""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def run(words: list[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command whose OMP_NUM_THREADS torchrun need not choose."""
    done = subprocess.run(
        words, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def folder(planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of records that rank 0 tunes into, with a file of shapes and the job beside it."""
    made = tmp_path / "records"
    made.mkdir()
    monkeypatch.setenv("OPMUX_TUNED", str(made))
    write_shapes(tmp_path / "shapes.json", [norm()])
    (tmp_path / "job.py").write_text(JOB)
    return made


def job(folder: Path, shapes: str, meeting: str = "meet") -> tuple[int, list[dict]]:
    """The exit code of two ranks that tune, and what each of them found."""
    above = folder.parent
    words = [*TORCHRUN, str(above / "job.py"), str(above / shapes), str(folder / "cpu.measured"), meeting]
    code, _, said = run(words)
    found = [folder / f"cpu.measured.{rank}" for rank in (0, 1)]
    assert found[1].exists(), said
    return code, [json.loads(path.read_text()) for path in found if path.exists()]


def test_every_rank_has_what_rank_zero_measured(folder: Path) -> None:
    code, (first, second) = job(folder, "shapes.json")
    assert code == 0
    assert first == second
    assert (first["rows"], first["checked"], first["before"]) == (3, 3, {})
    assert first["source"] == "measured"
    assert len(read_measured(folder / "cpu.measured").rows) == 3


def test_every_rank_has_the_error_of_rank_zero(folder: Path) -> None:
    code, (first, second) = job(folder, "none.json")
    assert code == 0
    assert first == second
    assert first["kind"] == "InvalidArgument"
    assert first["error"].startswith("tune: `shapes` cannot be read: ")


def test_without_a_process_group_the_other_ranks_say_what_to_do(folder: Path) -> None:
    _, found = job(folder, "none.json", "alone")
    assert (found[-1]["kind"], found[-1]["error"]) == (
        "InvalidArgument",
        "tune: expected an initialized process group on rank 1 of 2, got none; call "
        "torch.distributed.init_process_group() first, so that this rank waits for rank 0 and gets its rows",
    )


def test_the_command_measures_on_rank_zero_alone(folder: Path) -> None:
    out = folder / "cpu.measured"
    command = ["opmux", "tune", "--shapes", str(folder.parent / "shapes.json"), "--out", str(out), "--device", "cpu"]
    code, printed, said = run([*TORCHRUN, "-m", *command, "--rounds", "3", "--json"])
    assert code == 0, said
    assert json.loads(printed)["rows"] == 3
    assert "tune: rank 1 of 2 does nothing: rank 0 has every GPU of its machine" in said


def test_a_process_on_its_own_just_works(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launched() is None
    assert on_rank_zero("tune", lambda: 3) == 3
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert launched() is None
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "0")
    assert launched() == (0, 4)
    assert on_rank_zero("tune", lambda: 3) == 3
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(InvalidArgument, match=r"^tune: expected an initialized process group on rank 2 of 4"):
        on_rank_zero("tune", lambda: 3)
