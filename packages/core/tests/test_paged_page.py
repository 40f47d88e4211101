"""The page of paged decode with few kv heads: speed over a copy's by size, and targets missed with their reasons."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]

ABOUT = """
[paged]
date = "2000-01-01"
triton = "3"
command = "the command"
text = "The text."

[paged.reasons]
"from 200 MB" = "Here is why."
"""


def case(megabytes: int, took: float, copy: float) -> dict[str, Any]:
    times = {"triton": [took - 1, took, took + 1], "copy": [copy - 1, copy, copy + 1]}
    return {"title": f"{megabytes} MB", "kv_bytes": megabytes * 10**6, "times_us": times}


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Makes the page of cases."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import paged_page

    assert isinstance(paged_page, ModuleType)

    def made(*cases: dict[str, Any]) -> str:
        (tmp_path / "data").mkdir()
        data = {"device": "D", "torch": "2", "copy_bytes_per_us": 4.2e6, "cases": cases}
        (tmp_path / "data" / "paged.json").write_text(json.dumps(data), encoding="utf-8")
        (tmp_path / "data" / "about.toml").write_text(ABOUT, encoding="utf-8")
        text: str = paged_page.paged_page(tmp_path)
        return text

    yield made
    sys.modules.pop("paged_page", None)


def test_sizes_have_their_geomean_their_least_and_their_target(page: Any) -> None:
    text = page(case(50, 20.0, 14.0), case(250, 100.0, 64.0), case(1000, 400.0, 400.0), case(100, 50.0, 25.0))
    assert "D, bfloat16, torch 2, triton 3, 2000-01-01." in text
    assert "reads and writes 4.20 TB/s on this device." in text
    assert "| under 60 MB | 1 | 0.70 | 0.70 | least 0.6 |" in text
    assert "| 60 to 200 MB | 1 | 0.50 | 0.50 |  |" in text
    assert "| from 200 MB | 2 | 0.80 | 0.64 | least 0.85 (missed) |" in text
    assert "- from 200 MB: Here is why." in text
    assert "| 0.64 | 250 MB | 100 | 64 | 2.50 |" in text


def test_a_miss_without_a_reason_says_so(page: Any) -> None:
    assert "- under 60 MB: reason not found yet" in page(case(50, 20.0, 10.0))


def test_a_band_without_shapes_is_left_out(page: Any) -> None:
    text = page(case(250, 100.0, 90.0))
    assert "under 60 MB" not in text
    assert "Here is why." not in text
