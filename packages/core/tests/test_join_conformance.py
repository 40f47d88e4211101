"""Reports of conformance, of which ops were run again."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


def op(name: str, cases: int, failures: int = 0, **skips: int) -> dict[str, Any]:
    return {"op": name, "cases": cases, "failures": [{"case": f"{i}"} for i in range(failures)], "skips": skips}


def report(seconds: float, unbroken: list[str], *ops: dict[str, Any], **other: Any) -> dict[str, Any]:
    environment = {"arch": "sm_90", "device": "D", "profile": "model", "torch": "2", "opmux": "0", "within": ""}
    environment |= {"seconds": seconds, "constraints_not_broken": unbroken, **other}
    return {
        "backend": "b",
        "version": "0",
        "passed": 0,
        "failed": 0,
        "skipped": 0,
        "ops": [*ops],
        "environment": environment,
    }


@pytest.fixture
def join(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import join_conformance

    return join_conformance


def test_ops_that_were_run_again_take_the_place_of_the_first_ones(
    join: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = report(
        100.0, ["linear: b: A", "norm: b: B"], op("linear", 10, failures=2, memory=3), op("norm", 5, dtype=1)
    )
    again = report(20.5, ["linear: b: C"], op("linear", 10, dtype=1))
    paths = [tmp_path / name for name in ("whole.json", "again.json", "joined.json")]
    for path, one in zip(paths, (whole, again), strict=False):
        path.write_text(json.dumps(one))
    monkeypatch.setattr(sys, "argv", ["join", str(paths[0]), str(paths[1]), "--out", str(paths[2])])
    assert join.main() == 0
    assert capsys.readouterr().out == "13 passed, 0 failed, 2 skipped\n"
    made = json.loads(paths[2].read_text())
    assert [one["op"] for one in made["ops"]] == ["linear", "norm"]
    assert (made["passed"], made["failed"], made["skipped"]) == (13, 0, 2)
    assert made["environment"]["seconds"] == 120.5
    assert made["environment"]["constraints_not_broken"] == ["linear: b: C", "norm: b: B"]


def test_reports_that_do_not_belong_together_are_refused(join: Any) -> None:
    whole = report(1.0, [], op("linear", 1))
    with pytest.raises(ValueError, match=r"`device` expected 'D' in both reports, got 'E'"):
        join.joined(whole, report(1.0, [], op("linear", 1), device="E"))
    with pytest.raises(ValueError, match="ops expected in the whole report too, got norm"):
        join.joined(whole, report(1.0, [], op("norm", 1)))
