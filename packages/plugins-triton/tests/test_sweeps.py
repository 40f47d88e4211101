"""Every sweep lists what it would run on a machine without a GPU: its configs fit their schemas, its targets load."""

import re
import runpy
import sys
from pathlib import Path

import pytest

SWEEPS = sorted((Path(__file__).parents[1] / "benchmarks").glob("sweep_*.py"))


def test_there_are_sweeps() -> None:
    assert {path.stem for path in SWEEPS} == {
        "sweep_attention_backward",
        "sweep_attention_forward",
        "sweep_decode",
        "sweep_linear",
        "sweep_memory",
        "sweep_paged",
    }


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_a_dry_run_lists_cases_with_their_variants(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(path), "--dry"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 0
    cases = re.split(r"\n(?=\S)", capsys.readouterr().out.strip())
    titles = [case.splitlines()[0] for case in cases]
    assert len(set(titles)) == len(titles)
    variants = [case.splitlines()[1:] for case in cases]
    assert all(variants)
    assert max(map(len, variants)) >= 5


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_no_config_is_tried_twice_on_a_shape(path: Path) -> None:
    for case in runpy.run_path(str(path))["CASES"]:
        configs = [repr(variant) for name, variant in case.variants.items() if "chosen" not in name]
        assert len(set(configs)) == len(configs), case.title
