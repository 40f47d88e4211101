"""The page of attention: what FlashAttention 4 reached beside the kernel, and where that is more."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
SHAPE = "2 x 4096, 32/32 heads of 64, causal"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The generator as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import attention_page

    yield attention_page
    sys.modules.pop("attention_page", None)


def test_the_better_of_both_is_what_counts(page: ModuleType) -> None:
    rows = [page.Row(SHAPE, 64, 300.0, 330.0, 400.0)]
    text = "\n".join(page._flash_attention(rows, {"text": "The text.", "tflops": {SHAPE: [300, 320]}}))
    assert f"| {SHAPE} | 400 | 300 | 320 | 1.25 |" in text
    assert "wanted" not in text
    about = {"text": "The text.", "tflops": {SHAPE: [500, 320]}, "reason": "Here is why."}
    text = "\n".join(page._flash_attention(rows, about))
    assert f"- Where 0.9 is wanted: {SHAPE}: 0.80. Reason: Here is why." in text


def test_every_shape_that_was_compared_is_on_the_page(page: ModuleType) -> None:
    text = page.attention_page(ROOT / "docs" / "benchmarks")
    assert "### FlashAttention 4" in text
    assert "Reason: reason not found yet" not in text
