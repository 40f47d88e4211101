"""The page of products for Hopper GPUs: targets by the line's own f, the median f for groups, reasons of misses."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]

ABOUT = """
[deepgemm]
text = "The text."
commands = ["the command"]

[deepgemm.reasons]
"added to float32, the least" = "Here is why."
"""


def line(part: str, m: int, n: int, k: int, groups: int = 0, **microseconds: float) -> dict[str, Any]:
    ours = {name: spent for name, spent in microseconds.items() if name not in ("fast", "cublas", "blocks")}
    return {
        "part": part, "m": m, "n": n, "k": k, "groups": groups, "operations": 10**9, "bytes": 10**6,
        "chosen": next(iter(ours)), "microseconds": microseconds, "failed": {},
    }  # fmt: skip


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Makes the page of lines."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import deepgemm_page

    def made(*lines: dict[str, Any], **more: Any) -> str:
        (tmp_path / "data").mkdir()
        about = {"device": "D", "torch": "2", "cuda": "13", "date": "2000-01-01", "groups_seed": 1, "shapes_seed": 2}
        (tmp_path / "data" / "deepgemm.json").write_text(json.dumps(about | more | {"lines": lines}), encoding="utf-8")
        (tmp_path / "data" / "about.toml").write_text(ABOUT, encoding="utf-8")
        text: str = deepgemm_page.deepgemm_page(tmp_path)
        return text

    yield made
    sys.modules.pop("deepgemm_page", None)


def test_a_target_is_the_figure_times_the_lines_own_f(page: Any) -> None:
    # cuBLASLt: 1000 TFLOPS, beside DeepGEMM 1459 / 1.00; the target is what cuBLASLt has times DeepGEMM's ratio.
    text = page(line("fp8 4096", 4096, 4096, 7168, fast=1.0, l128=2.0, l64=1.6))
    assert "| 4096; 4096, 7168 | TFLOPS | 1459 | 1000 | 0.69 | 1000 | 500 | 0.50 | `l128` | 625 `l64` |" in text
    assert "- fp8 of 4096 and 128 rows and groups, the least: 0.50, **missed** 0.97: reason not found yet" in text
    assert "- f is outside of 0.97 to 1.03 in 1 lines: reason not found yet" in text


def test_groups_take_the_median_f(page: Any) -> None:
    lines = [line("fp8 1", 1, n, 7168, fast=spent, s8=1.0) for n, spent in ((2112, 0.6), (576, 1.6), (4096, 0.5))]
    text = page(*lines, line("masked", 20, 6144, 7168, 32, l64=0.25))
    assert "The median of f is 1.059." in text  # GB/s: 1667, 625 and 2000, of 1552, 590 and 1994
    assert "| masked 32 x 20; 6144, 7168 | GB/s | 4023 | - | - | 4262 | 4000 | 0.94 | `l64` | 4000 `l64` |" in text
    assert "- fp8 of one row, the least: 0.57, **missed** 1.10" in text


def test_groups_of_ragged_k_count_with_what_is_added(page: Any) -> None:
    added, ragged = line("added", 4096, 4096, 7168, fast=1.0, l128=0.5), line("ragged k", 7104, 4096, 7168, 4, l128=1.5)
    text = page(added, ragged)
    assert "| ragged k 4 x 7104; 4096, 7168 | TFLOPS | 1027 | - | - | 771 | 667 | 0.87 | `l128` | 667 `l128` |" in text
    assert "- added to float32, the least: 0.87, **missed** 1.00: Here is why." in text


def test_a_miss_has_its_reason_and_what_was_not_measured_is_said(page: Any) -> None:
    text = page(line("added", 4096, 4096, 7168, fast=1.0, l128=2.0), line("bf16 1", 1, 576, 7168, cublas=2.0, s8=1.0))
    assert "- added to float32, the least: 0.68, **missed** 1.00: Here is why." in text
    assert "- bfloat16 of one row, geometric mean: 2.00, wanted 1.00" in text
    assert "- fp8 of one row, geometric mean: not measured" in text
    assert "| 1; 576, 7168 | GB/s | 500 | 1000 | 2.00 | `s8` | 1000 `s8` |" in text


def test_parts_of_an_earlier_run_have_its_f_and_count_for_no_target(page: Any) -> None:
    lines = [line("fp8 1", 1, 2112, 7168, fast=0.6, s8=1.0), line("masked", 20, 6144, 7168, 32, l64=0.25)]
    earlier = {"date": "1999-01-01", "f": 0.5, "parts": ["masked"]}
    text = page(*lines, earlier=earlier)
    assert "These parts were not run again: masked. Their lines are of 1999-01-01" in text
    assert "a median f of 0.500. They count for no target." in text
    assert "| masked 32 x 20; 6144, 7168 | GB/s | 4023 | - | - | 2012 | 4000 | 1.99 | `l64` | 4000 `l64` |" in text
    assert "- fp8 of 4096 and 128 rows and groups, geometric mean: not measured" in text
    assert "- the model's choice, shapes drawn: not measured" in text
