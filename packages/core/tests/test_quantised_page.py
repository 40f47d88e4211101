"""The page of 8-bit codes: what it says of drawn products, and of caches with a seed that tuning did not use."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
FIGURES = ROOT / "docs" / "benchmarks"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """scripts/quantised_page.py."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import quantised_page

    yield quantised_page
    sys.modules.pop("quantised_page", None)


@pytest.fixture
def page(program: ModuleType, tmp_path: Path) -> Callable[..., str]:
    """Makes the page of the figures that are there, with other files in the place of some."""

    def made(**others: Any) -> str:
        shutil.copytree(FIGURES / "data", tmp_path / "data")
        for name, content in others.items():
            (tmp_path / "data" / "quantised" / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
        text: str = program.quantised_page(tmp_path)
        return text

    return made


def drawn(group: str, took: float, other: float, torch: float | None) -> dict[str, Any]:
    point = {"op": "scaled_linear", "dims": {"m": 3, "n": 5}}
    times = {"a": [took, 0, 0, 7], "b": [other, 0, 0, 7]}
    peers = {} if torch is None else {"torch._scaled_mm": [torch, 0, 0, 7], "torch eager": [9 * torch, 0, 0, 7]}
    return {"group": group, "point": point, "chosen": "a", "opmux": times, "torch": peers}


def test_drawn_products_are_compared_with_the_best_of_torch(page: Callable[..., str]) -> None:
    rows = [drawn("one", 10.0, 5.0, 9.0), drawn("one", 10.0, 20.0, 16.0), drawn("two", 4.0, 8.0, None)]
    text = page(choice={"seed": 78, "rows": [*rows, {**rows[0], "chosen": "gone"}]})
    assert "## The choice on drawn products" in text
    assert "- one, geomean of 2 drawn calls: 1.20, wanted 1.00" in text
    assert "- one, least of 2 drawn calls: 0.90, **missed** 0.92: " in text
    assert "| `one` | 2 | 2 | 1.20 | 0.90 | 1 | 1.414 | 2.00 |" in text
    assert "| `two` | 1 | 0 | - | - | - | 1.000 | 1.00 |" in text
    assert "Seed 78;" in text
    assert "| 1.60 | scaled_linear m=3 n=5 | a | 10 | 16 |" in text


def test_caches_with_another_seed_have_a_target_and_rows_of_their_own(page: Callable[..., str]) -> None:
    times = {"triton": [9.0, 10.0, 11.0], "copy": [8.0, 9.0, 10.0]}
    cases = [{"title": "a shape", "kv_bytes": 3e8, "times_us": times}]
    text = page(paged_fp8_unseen={"cases": cases})
    words = (
        "- paged decode on fp8 caches from 200 MB, least of 1 shapes, a seed that tuning did not use: 0.90, wanted 0.85"
    )
    assert words in text
    assert "| 0.90 | a shape | 10 | 30 |" in text
