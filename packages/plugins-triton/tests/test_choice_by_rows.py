"""What other rows would choose: of the implementations that were timed, by times that the rows predict."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from opmux.plugins import loading
from opmux.tuning.measured import Machine, MeasuredRow, write_measured

MACHINE = Machine("sm_90", "D", multiprocessors=132, clock_mhz=1980, memory_gbps=4800)
DIMS = {"tokens": 16, "k": 4096, "n": 4096}
RUN = {
    "arch": "sm_90", "device": "D", "multiprocessors": 132, "clock_mhz": 1980.0, "memory_gbps": 4800.0,
    "rows": [
        {
            "key": "one", "group": "linear-decode", "chosen": "triton:hopper",
            "point": {"op": "linear", "dtypes": {"x": "bf16", "w": "bf16"}, "dims": {**DIMS, "tokens": 17}},
            "opmux": {"triton:hopper": [12.0, 12.0, 12.0, 9], "vendor:blas": [10.0, 10.0, 10.0, 9]},
        }
    ],
}  # fmt: skip


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The program as a module."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import choice_by_rows

    yield choice_by_rows
    for name in ("choice_by_rows", "leave_one_out"):
        sys.modules.pop(name, None)


def rows_file(folder: Path, **times_us: float) -> Path:
    """A file with a row of each implementation near the call."""
    rows = [
        MeasuredRow(
            op="linear", dtypes={"x": torch.bfloat16, "w": torch.bfloat16}, options={}, dims=DIMS,
            implementation=name.replace("_", ":"), machine=MACHINE, time_us=time_us, spread=0.01, error=0.3,
            compared=("triton", "triton:hopper", "vendor:blas"),
        )
        for name, time_us in times_us.items()
    ]  # fmt: skip
    loading.ensure_loaded()
    write_measured(folder / "own.measured", rows)
    return folder / "own.measured"


def run_of(program: ModuleType, folder: Path, *words: str) -> tuple[int, Any]:
    """The program's exit status, and the file of the run after it."""
    status = program.main([str(folder / "choice.json"), str(folder / "own.measured"), *words])
    return status, json.loads((folder / "choice.json").read_text())


def test_rows_choose_between_what_was_timed(
    program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "choice.json").write_text(json.dumps(RUN))
    rows_file(tmp_path, triton_hopper=11.0, vendor_blas=9.0, triton=5.0)  # which was not timed in the run
    status, data = run_of(program, tmp_path, "--write", "its own rows")
    assert status == 0
    assert data["by_rows"] == {"its own rows": {"rows_of": {"D": 3}, "chosen": {"one": "vendor:blas"}}}
    assert data["rows"] == RUN["rows"]
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == ["linear-decode", "1", "1.200", "1.20", "1", "1.000", "1.00", "0"]
    rows_file(tmp_path, triton_hopper=8.0, vendor_blas=9.0)
    assert run_of(program, tmp_path, "--write", "others")[1]["by_rows"]["others"]["chosen"] == {"one": "triton:hopper"}


def test_a_run_is_chosen_again(program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {"whole": {"opmux": 9.0, "torch": 9.0}, "why": "priority 30", "source": None, "expected_us": {}}
    (tmp_path / "choice.json").write_text(json.dumps({**RUN, "rows": [{**RUN["rows"][0], **before}]}))
    rows_file(tmp_path, triton_hopper=11.0, vendor_blas=9.0, triton=5.0)
    status, data = run_of(program, tmp_path, "--again")
    assert (status, data["rows_of"], data["record_files"]) == (0, {"D": 3}, ["own.measured"])
    (row,) = data["rows"]
    assert (row["chosen"], row["source"]) == ("vendor:blas", "predicted, from 1 row")
    assert row["expected_us"].keys() == {"triton:hopper", "vendor:blas"}
    assert row["why"].endswith("us (predicted, from 1 row)")
    assert "whole" not in row, "it ran another implementation"
    assert capsys.readouterr().out.splitlines()[-1] == "1 choices are others"
    (tmp_path / "choice.json").write_text(json.dumps({**RUN, "rows": [{**row, **before}]}))
    assert "whole" in run_of(program, tmp_path, "--again")[1]["rows"][0], "the choice is as it was"


def test_nothing_is_written_unless_asked(program: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "choice.json").write_text(json.dumps(RUN))
    rows_file(tmp_path, triton_hopper=11.0, vendor_blas=9.0)
    assert run_of(program, tmp_path) == (0, RUN)


def test_rows_of_another_arch_are_refused(
    program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "choice.json").write_text(json.dumps({**RUN, "arch": "sm_80"}))
    rows_file(tmp_path, triton_hopper=11.0)
    with pytest.raises(SystemExit):
        run_of(program, tmp_path)
    assert "expected rows of sm_80, got none" in capsys.readouterr().err
