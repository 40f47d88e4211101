"""The measuring of figures, without a GPU: what hangs or crashes costs itself, and what was measured stays measured."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import apart
import figures

from opmux_deepgemm import scaled_gradient_model
from opmux_deepgemm.generation.source import Product

QUICK = apart.Limits(start=30, each=30)


def doubled(item: Any) -> Any:
    """Twice the item, or what the item says."""
    if item == "hang":
        time.sleep(600)
    if item == "crash":
        os._exit(3)
    if item == "raise":
        raise ValueError("not this one")
    if item == "fault":
        raise RuntimeError("CUDA error: an illegal memory access")
    return item * 2


def test_what_raises_hangs_or_crashes_costs_only_itself() -> None:
    items = [1, "raise", 2, "hang", 3, "crash", 4, "fault", 5]
    found = list(apart.measured(items, lambda: None, doubled, QUICK._replace(each=1)))
    assert [outcome.item for outcome in found] == items
    assert [outcome.found for outcome in found] == [2, None, 4, None, 6, None, 8, None, 10]
    assert [outcome.problem for outcome in found if outcome.problem] == [
        "ValueError: not this one",
        "hung: ended after 1 s",
        "its process ended with 3",
        "RuntimeError: CUDA error: an illegal memory access",
    ]


def test_a_gpu_that_does_not_start_is_asked_once() -> None:
    def never() -> None:
        time.sleep(600)

    found = list(apart.measured([1, 2], never, doubled, apart.Limits(start=0.2, each=30)))
    assert [outcome.problem for outcome in found] == ["the GPU did not start in 0.2 s"] * 2


def test_nothing_is_begun_when_the_time_is_up() -> None:
    found = list(apart.measured([1, 2], lambda: None, doubled, QUICK._replace(until=time.monotonic())))
    assert [outcome.problem for outcome in found] == ["not begun: the time of all parts is up"] * 2


def played(line: figures.Line) -> dict[str, Any]:
    """A line as if it had been measured, of one shape not."""
    if line.n == 576:
        raise ValueError("out of memory")
    spent = {"fast": 3.0, "a": 4.0, "b": 2.0}
    return {**line._asdict(), "operations": 12e6, "chosen": "a", "microseconds": spent, "failed": {}}


def test_a_second_run_measures_what_is_missing(tmp_path, monkeypatch, capsys) -> None:
    file = tmp_path / "lines.txt"
    file.write_text('{"device": "one"}\n{"part": "fp8 40')  # a run that was ended within a line
    file.write_text(file.read_text() + "\n")
    monkeypatch.setattr(figures, "warm", lambda: None)
    monkeypatch.setattr(figures, "measure", played)
    assert not figures.run_parts(["fp8 4096"], file, QUICK)
    about, found = figures.read_lines([file])
    assert about == {"device": "one"}
    assert len(found) == 6
    shown = capsys.readouterr().out
    assert "# FAILED Line(part='fp8 4096', m=4096, n=576, k=7168, groups=0)" in shown
    assert "fp8 4096: 4096 2112 7168 TFLOPS: fast 4, a 3, b 6 (1 of 7" in shown
    monkeypatch.setattr(figures, "measure", lambda line: played(line._replace(n=1)) | {"n": line.n})
    assert figures.run_parts(["fp8 4096"], file, QUICK)
    assert "# 1 lines of fp8 4096 are missing" in capsys.readouterr().out
    figures.collect([file], tmp_path / "page.json")
    assert len(json.loads((tmp_path / "page.json").read_text())["lines"]) == 7


@pytest.mark.parametrize("part", figures.PARTS)
def test_each_line_tries_the_models_choice_first(part) -> None:
    for line in figures.lines(part):
        configs = line.configs()
        assert len(configs) == len(set(configs))
        if part not in ("gradients", "ragged k"):
            assert configs[0] == figures.scored(line.sizes)[0].config


def test_the_line_of_ragged_k_is_deepgemms() -> None:
    (line,) = figures.lines("ragged k")
    assert line == ("ragged k", 7104, 4096, 7168, 4)
    assert line.product == Product("float8_e4m3fn", "float32", 4096, 7168, groups="ragged", accumulate=True)
    together = 4 * 7104, 4096, 7168, 4
    assert line.configs()[0] == scaled_gradient_model.scored_gradients(*together)[0].config
