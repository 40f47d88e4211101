"""docs/users/transformers.md holds: its code runs and prints what it says, its command does, its JSON has those fields.

A fence marked ``py`` is run, a ``text`` fence right after one is what it prints; of a fence marked ``sh`` each line
``$ opmux ...`` is run. ``...`` stands for anything.
"""

import contextlib
import doctest
import io
import json
import re
import shlex
from pathlib import Path

import pytest
from samples import opmux_cli

PAGE = Path(__file__).resolve().parents[3] / "docs" / "users" / "transformers.md"
FENCES = [
    (match["mark"], match["body"])
    for match in re.finditer(r"^```(?P<mark>\w*)[^\n]*\n(?P<body>.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
]
AS_PRINTED = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def assert_prints(wanted: str, given: str) -> None:
    assert doctest.OutputChecker().check_output(wanted.strip() + "\n", given.strip() + "\n", AS_PRINTED), given


def test_the_code_of_the_page() -> None:
    namespace: dict[str, object] = {"__name__": "page"}
    printed = ""
    runs = 0
    for mark, body in FENCES:
        if mark == "py":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(body, str(PAGE), "exec"), namespace)
            printed, runs = out.getvalue(), runs + 1
        elif mark == "text":
            assert_prints(body, printed)
    assert runs >= 6


@pytest.mark.parametrize("body", [body for mark, body in FENCES if mark == "sh"])
def test_the_command_of_the_page(body: str, monkeypatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    command, _, wanted = body.partition("\n")
    done = opmux_cli(*shlex.split(command)[2:])
    assert done.exit_code == 0
    assert_prints(wanted, done.stdout)


def test_the_json_of_the_page() -> None:
    (documented,) = (json.loads(body) for mark, body in FENCES if mark == "json")
    printed = json.loads(opmux_cli("models", "check", "qwen3", "--json").stdout)
    assert documented.keys() == printed.keys()
    assert documented["report"].keys() == printed["report"].keys()
    for key in ("comparisons",):
        assert documented[key][0].keys() == printed[key][0].keys()
    assert documented["report"]["rows"][0] == printed["report"]["rows"][0]
    assert documented["report"]["counts"].items() <= printed["report"]["counts"].items()
