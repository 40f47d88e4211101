"""`opmux conformance`, around a suite that is not run here."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from cli.samples import BAD_OP, ENVIRONMENT, GOOD_OP, result

from opmux.errors import InvalidArgument, UnknownBackend


def test_a_pass_exits_with_0(opmux_cli, runner) -> None:
    done = opmux_cli("conformance", "rows")
    assert (done.exit_code, done.stderr) == (0, "")
    assert runner.asked == [("rows", None, "default", None, None, None, None)]
    row = next(line for line in done.stdout.splitlines() if line.startswith("rms_norm "))
    assert row.split() == ["rms_norm", "6", "8", "75%", "0.25", "0.5", "-", "2", "passed"]
    assert "rms_norm: 2 skipped: not deterministic" in done.stdout
    assert "not checked: graph capture: needs a GPU" in done.stdout
    assert "no case breaks the constraint rms_norm: AtMost('hidden', 4)" in done.stdout
    assert done.stdout.splitlines()[-1] == "rows 1.2: 6 passed, 0 failed, 2 skipped"


def test_options_are_passed_on(opmux_cli, runner) -> None:
    opmux_cli("conformance", "rows", "--op", "linear", "--op", "rms_norm", "--profile", "small")
    opmux_cli("conformance", "rows", "--jobs", "3", "--limit", "60", "--total", "300")
    opmux_cli("conformance", "rows", "--within", "somewhere:on(gfx942)")
    assert runner.asked == [
        ("rows", ["linear", "rms_norm"], "small", None, None, None, None),
        ("rows", None, "default", 3, 60.0, None, 300.0),
        ("rows", None, "default", None, None, "somewhere:on(gfx942)", None),
    ]


def test_a_failure_exits_with_1_and_prints_how_to_see_it_again(opmux_cli, runner) -> None:
    runner.answer = result(GOOD_OP, BAD_OP)
    done = opmux_cli("conformance", "rows")
    assert done.exit_code == 1
    assert "linear  x=bf16[3,4]  row\n  row 2 is [off]\n  run_case('x=[3,4]')\n" in done.stdout
    assert done.stdout.splitlines()[-1] == "rows 1.2: 6 passed, 1 failed, 2 skipped"


def test_no_case_at_all_is_no_pass(opmux_cli, runner) -> None:
    runner.answer = result(passed=0)
    done = opmux_cli("conformance", "rows")
    assert done.exit_code == 1
    assert done.stdout.splitlines()[-1] == "no case ran, so nothing is proved"


def test_json_and_report_are_the_suites_own_object(opmux_cli, runner, tmp_path: Path) -> None:
    runner.answer = result(GOOD_OP, BAD_OP)
    report = tmp_path / "report.json"
    done = opmux_cli("conformance", "rows", "--json", "--report", str(report))
    assert json.loads(done.stdout) == json.loads(report.read_text()) == runner.answer


def test_what_json_cannot_say_is_null(opmux_cli, runner) -> None:
    error = {"global": float("nan"), "row": float("inf"), "element": 0.5}
    runner.answer = result({**GOOD_OP, "max_error": error})
    told = json.loads(opmux_cli("conformance", "rows", "--json").stdout, parse_constant=pytest.fail)
    assert told["ops"][0]["max_error"] == {"global": None, "row": None, "element": 0.5}


@pytest.mark.parametrize(
    "error", [UnknownBackend("conformance: no backend `rows`"), InvalidArgument("conformance: `profile` expected ...")]
)
def test_an_unknown_backend_or_profile_is_wrong_use(opmux_cli, runner, error: Exception) -> None:
    runner.answer = error
    done = opmux_cli("conformance", "rows")
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", f"error: {error}\n")


def test_an_unknown_op_is_wrong_use(opmux_cli, runner) -> None:
    done = opmux_cli("conformance", "rows", "--op", "rmsnorm")
    assert (done.exit_code, runner.asked) == (2, [])
    assert done.stderr.startswith("error: conformance: `op` expected the name of an op, got 'rmsnorm'; did you mean ")


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("no/such/folder/a.json", "expected a file in a folder that exists, got {path}; make the folder"),
        ("", "expected a file, got the folder {path}; name a file in it"),
    ],
    ids=["no folder", "a folder"],
)
def test_a_report_that_cannot_be_written_is_refused_before_the_run(
    opmux_cli, runner, tmp_path: Path, where: str, told: str
) -> None:
    path = tmp_path / where
    done = opmux_cli("conformance", "rows", "--report", str(path))
    assert (done.exit_code, runner.asked) == (2, [])
    assert done.stderr == f"error: opmux: `--report` {told.format(path=path)}\n"


def test_a_report_that_the_system_refuses_is_wrong_use(opmux_cli, runner, tmp_path: Path, monkeypatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_text", full)
    path = tmp_path / "a.json"
    done = opmux_cli("conformance", "rows", "--report", str(path))
    assert done.exit_code == 2
    assert done.stderr.endswith(
        f"error: opmux: `--report` expected a file that can be written, got {path} (no space left); "
        "choose another file\n"
    )


@pytest.mark.parametrize("module", ["pytest", "hypothesis", "numpy"])
def test_without_the_extra_it_says_how_to_install_it(opmux_cli, monkeypatch, module: str) -> None:
    class Missing(ModuleType):
        def __getattr__(self, name: str) -> None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setitem(sys.modules, "opmux.testing", Missing("opmux.testing"))
    done = opmux_cli("conformance", "rows")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == (f'error: conformance needs {module}, which is not installed: pip install "opmux[testing]"\n')


def test_the_suite_itself_answers_in_these_words(opmux_cli) -> None:
    done = opmux_cli("conformance", "reference", "--op", "silu_mul", "--profile", "interpreter", "--json")
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    assert told.keys() == result().keys()
    assert told["environment"].keys() == ENVIRONMENT.keys()
    assert [op.keys() for op in told["ops"]] == [GOOD_OP.keys()]
    assert told["passed"] > 0
