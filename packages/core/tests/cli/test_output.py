"""How commands print: JSON, tables, messages, files."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from rich.text import Text

from opmux.cli import output
from opmux.errors import InvalidArgument


def test_json_holds_what_json_can_say() -> None:
    given = {"nan": math.nan, "inf": [math.inf, 1.5], 3: (True, None), "path": Path("a"), "set": frozenset({1})}
    assert json.loads(output.to_json(given)) == {
        "nan": None, "inf": [None, 1.5], "3": [True, None], "path": "a", "set": [1],
    }  # fmt: skip


NOISY = """
import os, sys
from opmux.cli import output
print("before")
with output.stdout_to_stderr() as stream:
    print("of python")
    os.system("echo of a child")
    print("answer", file=stream)
print("after")
"""


def test_noise_of_children_goes_to_stderr_and_the_answer_to_stdout() -> None:
    done = subprocess.run([sys.executable, "-c", NOISY], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["before", "answer", "after"]
    assert sorted(done.stderr.splitlines()) == ["of a child", "of python"]


def test_without_a_file_of_its_own_stdout_is_redirected(capsys: pytest.CaptureFixture[str]) -> None:
    with output.stdout_to_stderr() as stream:
        sys.stdout.write("noise\n")
        stream.write("answer")
    assert tuple(capsys.readouterr()) == ("answer", "noise\n")


def test_a_table_has_a_header_where_its_columns_have_names(capsys: pytest.CaptureFixture[str]) -> None:
    output.console().print(output.table("", ["op", "us"], [["linear", 3], ["a", Text("14")]], right=["us"]))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [["op", "us"], ["linear", "3"], ["a", "14"]]
    assert lines[1].rstrip().endswith(" 3")
    assert len(lines[1].rstrip()) == len(lines[2].rstrip()), "numbers are flush right"
    output.console().print(output.table("", ["", ""], [["a", "[b]"]]))
    assert capsys.readouterr().out.split() == ["a", "[b]"], "no header, and no markup"


@pytest.mark.parametrize(
    ("word", "style"), [("chosen", "bold green"), ("passed", "green"), ("slower", "red"), ("other", "")]
)
def test_a_state_has_the_colour_of_its_meaning(word: str, style: str) -> None:
    assert (str(output.state(word)), str(output.state(word).style)) == (word, style)


def test_a_complaint_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    output.complain("a [long] " * 60)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: a [long] a [long]")
    assert len(told.err.splitlines()) == 1


def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    output.check_writable("report", None)
    output.check_writable("report", tmp_path / "a.json")
    with pytest.raises(InvalidArgument) as caught:
        output.check_writable("report", tmp_path)
    assert str(caught.value) == f"opmux: `report` expected a file, got the folder {tmp_path}; name a file in it"
    with pytest.raises(InvalidArgument) as caught:
        output.check_writable("report", tmp_path / "no" / "a.json")
    assert str(caught.value) == (
        f"opmux: `report` expected a file in a folder that exists, got {tmp_path / 'no' / 'a.json'}; make the folder"
    )


def test_a_file_that_the_system_refuses_is_named(tmp_path: Path) -> None:
    output.write("report", tmp_path / "a.txt", "µ")
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "µ"
    with pytest.raises(InvalidArgument) as caught:
        output.write("report", tmp_path, "text")
    assert str(caught.value).startswith(f"opmux: `report` expected a file that can be written, got {tmp_path} (")
    assert str(caught.value).endswith("; choose another file")
