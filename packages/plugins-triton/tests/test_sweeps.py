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


def test_listed_shapes_of_paged_decode_are_those_of_the_figures() -> None:
    found = runpy.run_path(str(SWEEPS[0].parent / "measure_paged.py"))["listed"](1)
    assert {(len(s.lengths), max(s.lengths), s.page_size) for s in found} == {
        (batch, length, pages) for batch, length in ((64, 8192), (1, 131072), (256, 1024)) for pages in (16, 64)
    }
    assert {(s.kv_heads, s.group, s.head_dim, s.itemsize) for s in found} == {(8, 4, 128, 1)}


def test_the_shapes_of_paged_decode_follow_from_the_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = SWEEPS[0].parent / "measure_paged.py"
    drawn = runpy.run_path(str(path))["drawn"]
    shapes = drawn(7, 3)
    assert shapes == drawn(7, 3) != drawn(8, 3)
    assert {(s.kv_heads, s.head_dim) for s in shapes} == {(n, dim) for n in (1, 2) for dim in (64, 128, 256)}
    assert all(max(s.lengths) <= 3 * min(s.lengths) for s in shapes)
    assert all(40e6 < s.kv_bytes < 1.6e9 for s in shapes)
    monkeypatch.setattr(sys, "argv", [str(path), "--seed", "7", "--each", "3", "--dry"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.splitlines() == [s.title for s in shapes]
