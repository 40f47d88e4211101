"""The page of products on unseen shapes: speedups by band, targets missed with their reasons, and every shape."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]

ABOUT = """
[products]
date = "2000-01-01"
triton = "3"
command = "the command"
text = "The text."

[products.reasons]
small = "Here is why."
"""


def shape(form: str, m: int, took: float, peer: float) -> dict[str, Any]:
    times = {"model: 64x64x64 none": [took, 9], "cublaslt": [peer, 9], "64x96x64 none": [1.0, 9]}
    return {"form": form, "m": m, "n": 768, "k": 1024, "times": times}


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Makes the page of rows."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import products_page

    assert isinstance(products_page, ModuleType)

    def made(*rows: dict[str, Any]) -> str:
        (tmp_path / "data").mkdir()
        data = {"device": "D", "torch": "2", "rows": rows}
        (tmp_path / "data" / "products.json").write_text(json.dumps(data), encoding="utf-8")
        (tmp_path / "data" / "about.toml").write_text(ABOUT, encoding="utf-8")
        text: str = products_page.products_page(tmp_path)
        return text

    yield made
    sys.modules.pop("products_page", None)


def test_bands_have_their_geomean_their_least_and_their_target(page: Any) -> None:
    text = page(shape("linear", 20, 10.0, 9.0), shape("linear", 500, 10.0, 4.0), shape("grad_x", 64, 2.0, 3.0))
    assert "D, bfloat16, torch 2, triton 3, 2000-01-01." in text
    assert "| `linear`, m 17 to 512 | 2 | 0.60 | 0.40 | geomean 0.97, least 0.85 (missed) |" in text
    assert "| m 17 to 64 | 1 | 0.90 | 0.90 |  |" in text
    assert "| `linear_backward`: grad_x | 1 | 1.50 | 1.50 |  |" in text
    assert "- `linear`, m 17 to 512: Here is why." in text
    assert "| 0.40 | linear | 500 | 768 | 1024 | 10 | 4 | 64x64x64 none |" in text


def test_a_target_that_is_met_needs_no_reason(page: Any) -> None:
    text = page(shape("linear", 20, 10.0, 10.0), shape("linear", 600, 10.0, 9.0))
    assert "| `linear`, m 17 to 512 | 1 | 1.00 | 1.00 | geomean 0.97, least 0.85 |" in text
    assert "- `linear`, m 513 to 16384: reason not found yet" in text
    assert "Here is why." not in text
