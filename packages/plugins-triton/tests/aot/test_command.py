"""The command ``opmux machine-code``."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planted_launches import COPY, facts_with, launch_of
from typer.testing import CliRunner

from opmux_triton.aot import checks, expected, jobs
from opmux_triton.aot import run as aot
from opmux_triton.aot.facts import Facts


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``opmux machine-code`` on one small kernel, whose facts a test may change."""

    def invoke(*words: str, facts: Facts | None = None) -> Any:
        import typer

        from opmux_triton.aot.command import machine_code

        job = jobs.Job(
            "rms_norm", "triton", "copy", {"block": 1024}, "bfloat16", launch_of(*COPY, BLOCK=1024, num_warps=2)
        )
        found = jobs.Enumeration("gfx942", {job.key: job}, cases=1, claimed=1, launches=1)
        monkeypatch.setattr(aot, "enumerate_jobs", lambda arch: found)
        if facts is not None:
            monkeypatch.setattr(checks, "read", lambda built: facts)
        application = typer.Typer()
        application.command()(machine_code)
        return CliRunner().invoke(application, list(words))

    return invoke


def test_the_command_prints_a_table_and_counts(command: Callable[..., Any]) -> None:
    done = command("gfx942")
    assert done.exit_code == 0
    assert "copy" in done.stdout
    assert "gfx942: 1 cases, 1 of them claimed, 1 launches, 1 different (kernel, config, flags)" in done.stdout


def test_without_the_extra_it_says_how_to_install_it() -> None:
    program = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "from opmux.cli import main; sys.argv = ['opmux', 'machine-code', 'gfx942']; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        'error: machine-code needs hypothesis, which is not installed: pip install "opmux[testing]"\n'
    )


def test_what_is_recorded_is_held_to(command: Callable[..., Any], tmp_path: Path) -> None:
    record = tmp_path / "gfx942.json"
    done = command("gfx942", "--expected", str(record))
    assert done.exit_code == 1
    assert "nothing is recorded under triton" in done.output
    assert command("gfx942", "--expected", str(record), "--write").exit_code == 0
    assert command("gfx942", "--expected", str(record)).exit_code == 0
    slower = facts_with(matrix={}, registers={"vgpr": 300, "agpr": 0, "sgpr": 30}, occupancy=1, shared=0)
    done = command("gfx942", "--expected", str(record), facts=slower)
    assert done.exit_code == 1
    assert "300 vgpr, was" in done.output
    assert "occupancy 1, was 8" in done.output


def test_rows_that_came_and_rows_that_went_are_said(command: Callable[..., Any], tmp_path: Path) -> None:
    import triton

    record = tmp_path / "gfx942.json"
    expected.write(record, triton.__version__, {"gone|block=1|bfloat16": facts_with()})
    done = command("gfx942", "--expected", str(record))
    assert done.exit_code == 1
    assert "copy|block=1024|bfloat16: not recorded yet: record it with --write" in done.output
    assert "gone|block=1|bfloat16: recorded, but no longer launched" in done.output


def test_json_has_every_row(command: Callable[..., Any]) -> None:
    done = command("gfx942", "--json")
    data = json.loads(done.stdout)
    assert data["arch"] == "gfx942"
    assert [row["kernel"] for row in data["rows"]] == ["copy"]
    assert data["rows"][0]["facts"]["wide_loads"] > 0
    assert data["complaints"] == []
