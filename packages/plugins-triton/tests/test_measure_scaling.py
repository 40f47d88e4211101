"""The program that compares tuning with one GPU and several: what it says of a run, and a run on the CPU."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from opmux.shapes import Point, write_shapes

F32 = torch.float32


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The program as a module."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import measure_scaling

    yield measure_scaling
    sys.modules.pop("measure_scaling", None)


def norm(tokens: int) -> Point:
    return Point("rms_norm", {"x": F32, "weight": F32}, {"tokens": tokens, "hidden": 64}, {})


def test_measuring_begins_when_every_worker_has_finished_a_point(program: ModuleType) -> None:
    one = program.rates([10.0, 11.0, 12.0, 13.0, 14.0], 1)
    two = program.rates([10.5, 11.0, 11.5, 12.0, 12.5], 2)
    assert (one["whole_s"], one["measuring_s"], one["measuring_rate"]) == (14.0, 4.0, 1.0)
    assert (two["whole_s"], two["measuring_s"], two["measuring_rate"]) == (12.5, 1.5, 2.0)
    assert (
        program.line_of({"gpus": 2, "finished_s": [0.0] * 5, "builds": 0, **two}, {"gpus": 1, **one})
        == "2 GPUs: 5 points in 12.5 s, 1.12 x; measuring 2.00 points/s, 2.00 x; 0 kernels compiled"
    )


def test_the_points_that_take_least_time_in_their_order(program: ModuleType, tmp_path: Path) -> None:
    points = [norm(1 << 20), norm(32), norm(1 << 22), norm(16)]
    write_shapes(tmp_path / "shapes.json", points)
    assert program.points_of(tmp_path / "shapes.json", 3) == [points[0], points[1], points[3]]


@pytest.mark.long
def test_a_run_on_the_cpu(program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_shapes(tmp_path / "shapes.json", [norm(16), norm(32)])
    words = ["--points", str(tmp_path / "shapes.json"), "--device", "cpu", "--rounds", "3", "--gpus", "1"]
    assert program.main([*words, "--out", str(tmp_path / "scaling.json")]) == 0
    data = json.loads((tmp_path / "scaling.json").read_text())
    (run,) = data["runs"]
    assert (data["device"], data["points"], len(run["finished_s"])) == ("cpu", 2, 2)
    assert run["finished_s"] == sorted(run["finished_s"])
    untimed, timed = capsys.readouterr().out.splitlines()
    assert untimed.startswith("untimed: 0 kernels compiled in ")
    assert timed.startswith("1 GPUs: 2 points in ")


def test_points_are_drawn_where_no_file_is_named(
    program: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    monkeypatch.setattr(program, "tuned", lambda points, given: drawn.extend(points) or {})
    assert program.main(["--random", "3", "--seed", "5", "--most", "7", "--device", "cpu", "--tune"]) == 0
    assert len(drawn) == 7
    assert {point.op for point in drawn} <= set(program.OPS)
    assert capsys.readouterr().out == "{}\n"


def test_later_runs_measure_what_the_first_has_finished(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def run_of(count: int, given: object, ahead: bool = False, **more: object) -> dict[str, object]:
        asked.append((count, ahead, more))
        return {"gpus": count, **program.rates([2.0, 3.0, 4.0], count), "finished_s": [2.0, 3.0, 4.0], "builds": 0}

    monkeypatch.setattr(program, "run_of", run_of)
    words = ["--random", "3", "--device", "cpu", "--compiled", "--seconds", "9", "--gpus", "1", "--gpus", "2"]
    assert program.main([*words, "--out", str(tmp_path / "scaling.json")]) == 0
    assert asked == [(1, False, {"first": None, "seconds": 9.0}), (2, False, {"first": 3, "seconds": None})]
    assert json.loads((tmp_path / "scaling.json").read_text())["points"] == 3
    assert not capsys.readouterr().out.startswith("untimed")
