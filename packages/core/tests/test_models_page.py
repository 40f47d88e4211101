"""The page of whole models says of every row what was measured, and of every figure if it was met."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
WORK = ("prefill", "decode-1", "decode-8", "decode-64", "training")

ABOUT = """
[models]
date = "2000-01-01"
commands = ["the command"]
text = "The text."
notes = ["The notes."]
names = {small = "A Small One"}

[reasons]
"models, small, prefill" = "Here is why."
"models, decode-8" = "The same for all."
"""


def rows(**rates: float) -> dict[str, Any]:
    return {n.replace("_", " "): {"tokens_per_second": rate, "peak_gib": 1.25} for n, rate in rates.items()}


def folder_of(path: Path, **works: dict[str, Any]) -> Path:
    """A folder with what was measured of one model; work that is not given met everything."""
    met = rows(eager=100, compiled=150, opmux=155, opmux_compiled=160)
    found = {work: works.get(work.replace("-", "_"), met) for work in WORK}
    data = {"versions": {"torch": "2"}, "device": "D", "dtype": "bfloat16", "steps": 256, "models": {"small": found}}
    (path / "data").mkdir()
    (path / "data" / "models.json").write_text(json.dumps(data), encoding="utf-8")
    (path / "data" / "about.toml").write_text(ABOUT, encoding="utf-8")
    return path


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """scripts/models_page.py."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import models_page

    return models_page


def lines_of(page: str, start: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith(start)]


def rows_of(page: str, start: str) -> list[str]:
    """The rows of tables whose columns after the two speedups begin like this."""
    return [line for line in lines_of(page, "|") if "|".join(line.split("|")[3:]).strip().startswith(start)]


def test_everything_met(module: ModuleType, tmp_path: Path) -> None:
    page = module.models_page(folder_of(tmp_path))
    assert "D, bfloat16, torch 2, 2000-01-01." in page
    assert "| speedup over best other | speedup over eager | work | row | tokens/s | peak, GiB | target |" in page
    assert rows_of(page, "prefill 2048") == [
        "| 0.67 | 1.00 | prefill 2048 | eager | 100 | 1.2 |  |",
        "| 1.00 | 1.50 | prefill 2048 | compiled | 150 | 1.2 |  |",
        "| - | - | prefill 2048 | liger | - | - | not measured |",
        "| - | - | prefill 2048 | tilegym | - | - | not measured |",
        "| 1.03 | 1.55 | prefill 2048 | opmux | 155 | 1.2 | 1.55 of 1.3 x eager: met |",
        "| 1.07 | 1.60 | prefill 2048 | opmux compiled | 160 | 1.2 | 1.07 of 1.0 x best other: met |",
    ]
    assert len(rows_of(page, "decode 256, batch 8 | opmux graph | -")) == 1
    assert "<summary>opmux over the best other row: 1.07x in prefill 2048, 1.07x in decode 256, batch 1, " in page
    assert page.endswith("## What was missed, and why\n\nNothing.\n\nThe notes.\n")


@pytest.mark.parametrize(("best", "verdict"), [(98, "0.98 of 1.0 x best other: met"), (97.9, "best other: missed")])
def test_within_two_percent_is_equal(module: ModuleType, tmp_path: Path, best: float, verdict: str) -> None:
    page = module.models_page(folder_of(tmp_path, decode_1=rows(eager=100, opmux=best)))
    (line,) = rows_of(page, "decode 256, batch 1 | opmux |")
    assert verdict in line


def test_misses_have_their_reasons(module: ModuleType, tmp_path: Path) -> None:
    slow = rows(eager=100, compiled=150, opmux=129.9)
    page = module.models_page(folder_of(tmp_path, prefill=slow, decode_8=slow, training={}))
    assert page.partition("and why\n\n")[2].splitlines()[:3] == [
        "- small, prefill 2048: 1.299 of eager, wanted 1.3; 0.87 of best other (compiled), wanted 1.0. Here is why.",
        "- small, decode 256, batch 8: 1.30 of eager, wanted 1.5; 0.87 of best other (compiled), wanted 1.0. The same "
        "for all.",
        "- small, training 4 x 2048: not measured, wanted 1.3 of eager; not measured, wanted 1.0 of best other. reason "
        "not found yet (models, small, training)",
    ]
    assert rows_of(page, "training") == ["| - | - | training 4 x 2048 | all | - | - | not measured |"]


def test_training_is_held_against_liger_in_rate_and_memory(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TO_LIGER", {("small", "training"): 1.12})
    found = rows(eager=100, liger=120, opmux=131, opmux_compiled=140)
    page = module.models_page(folder_of(tmp_path, training=found))
    assert "1.0 x liger in peak memory: met" in rows_of(page, "training 4 x 2048 | opmux |")[0]
    assert "1.17 of 1.12 x liger: met" in rows_of(page, "training 4 x 2048 | opmux compiled")[0]
    found["opmux"]["peak_gib"] = 1.26
    found["opmux compiled"]["tokens_per_second"] = 134.0
    works = module.works_of({"models": {"small": {"training": found}}}, "small")
    assert list(module.misses({"steps": 256}, works[-1:], {"models, small, training": "Why."})) == [
        "- small, training 4 x 2048: 1.117 of liger, wanted 1.12; 0.99 of liger in peak memory, wanted 1.0. Why."
    ]


def test_the_row_that_recomputes_is_held_against_ligers_memory(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TO_LIGER", {("small", "training"): 1.12})
    found = rows(eager=100, liger=120, opmux=131, opmux_recompute=130, opmux_compiled=140)
    found["opmux"]["peak_gib"] = 2.0
    folder = folder_of(tmp_path, training=found)
    page = module.models_page(folder)
    assert rows_of(page, "training 4 x 2048 | opmux recompute") == [
        "| 1.08 | 1.30 | training 4 x 2048 | opmux recompute | 130 | 1.2 | 1.00 of 1.0 x liger in peak memory: met |"
    ]
    assert "memory" not in rows_of(page, "training 4 x 2048 | opmux |")[0]
    assert "recompute" not in "".join(rows_of(page, "prefill"))
    assert ">opmux recompute</text>" in module.models_plot(folder)


def test_models_that_were_not_measured_are_named(module: ModuleType, tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    about = folder / "data" / "about.toml"
    about.write_text(ABOUT.replace("names = {", 'names = {large = "A Large One", '), encoding="utf-8")
    page = module.models_page(folder)
    assert lines_of(page, "## A") == ["## A Large One (`large`)", "## A Small One (`small`)"]
    assert len(lines_of(page, "- large, ")) == len(WORK)
    assert "large" not in module.models_plot(folder)


def test_what_was_left_out_or_failed_stays(module: ModuleType, tmp_path: Path) -> None:
    found = {
        **rows(eager=100, opmux=200),
        "liger": {"left_out": "LookupError: no `such` [patch](x)\n | at all"},
        "compiled": {"rounds": [], "failed": "took longer than 3 s"},
    }
    found["eager"] = {**found["eager"], "failed": "OutOfMemoryError: out of memory. Process 7 has 2.5 GiB"}
    folder = folder_of(tmp_path, training=found)
    page = module.models_page(folder)
    (liger,) = rows_of(page, "training 4 x 2048 | liger |")
    assert liger.endswith("| left out: `LookupError: no 'such' [patch](x) / at all` |")
    (compiled,) = rows_of(page, "training 4 x 2048 | compiled |")
    assert compiled == "| - | - | training 4 x 2048 | compiled | - | - | failed: `took longer than 3 s` |"
    (eager,) = rows_of(page, "training 4 x 2048 | eager |")
    assert eager.startswith("| 1.00 | 1.00 | training 4 x 2048 | eager | ")
    assert eager.endswith("| failed later: `OutOfMemoryError: out of memory` |")


def test_plot_is_the_same_each_time(module: ModuleType, tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    plot = module.models_plot(folder)
    assert plot == module.models_plot(folder)
    assert "A Small One</text>" in plot
    assert plot.count(">1.07x</text>") == len(WORK)
    assert plot.count(">decode 256, batch 8</text>") == 1


def test_command_writes_and_checks(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import make_benchmark_page

    made = {name: make for name, make in make_benchmark_page.MADE.items() if name.startswith("models")}
    monkeypatch.setattr(make_benchmark_page, "MADE", made)
    monkeypatch.setattr(make_benchmark_page, "FOLDER", folder_of(tmp_path))
    codes = []
    for words in (["--check"], [], ["--check"]):
        monkeypatch.setattr(sys, "argv", ["make_benchmark_page.py", *words])
        codes.append(make_benchmark_page.main())
    assert codes == [1, 0, 0]
    assert capsys.readouterr().err.count("is out of date") == 2

    (tmp_path / "miss").mkdir()
    missed = folder_of(tmp_path / "miss", training=rows(eager=100, opmux=100))
    monkeypatch.setattr(make_benchmark_page, "FOLDER", missed)
    for words in ([], ["--check"]):
        monkeypatch.setattr(sys, "argv", ["make_benchmark_page.py", *words])
        assert make_benchmark_page.main() == 1
        assert "about.toml gives no reason for a miss: - small, training" in capsys.readouterr().err
