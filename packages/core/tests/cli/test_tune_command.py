"""`opmux tune` on the command line: what it prints, its JSON, its exit codes."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from opmux.cli.app import build_app
from opmux.cli.tune import left_in_words


def run(*words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    done = CliRunner().invoke(build_app(), ["tune", *words])
    return done.exit_code, done.stdout, done.stderr


def test_wrong_use_exits_with_2_and_one_clear_line(tmp_path: Path) -> None:
    code, _, said = run("linear")
    assert code == 2
    assert said == ("error: tune: expected one of `shapes`, `random` and `from_trace`, got none; say what to measure\n")
    assert run("--merge", "--check")[::2] == (
        2, "error: tune: expected one of `--merge` and `--check`, got both; drop one\n"
    )  # fmt: skip
    assert run("--merge", "a.measured")[::2] == (
        2, "error: tune: `--merge` expected a file in --out, got none; name the merged file\n"
    )  # fmt: skip
    assert run("linear", "--random", "2", "--device", "cpu", "--out", str(tmp_path / "a.measured"))[0] == 2


def test_refused_rows_of_a_merge_exit_with_1(tmp_path: Path) -> None:
    (tmp_path / "a.measured").write_text("nothing\n")
    code, printed, _ = run("--merge", str(tmp_path / "a.measured"), "--out", str(tmp_path / "b.measured"), "--json")
    assert code == 1
    made = json.loads(printed)
    assert made["rows"] == 0
    assert len(made["refused"]) == 1


@pytest.mark.parametrize(("seconds", "words"), [(None, ""), (0.2, "0:00 left"), (187.4, "3:07 left")])
def test_the_time_left_is_in_minutes(seconds: float | None, words: str) -> None:
    assert left_in_words(seconds) == words
