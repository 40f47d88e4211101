"""TileGym's names: what the documentation calls in their place computes what TileGym documents."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from tilegym_names import ROWS, Row, apart

PAGE = Path(__file__).parents[3] / "docs" / "users" / "coming-from.md"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_calls_here_mean_what_theirs_do(row: Row) -> None:
    tensors = row.make("cpu")
    assert apart(row.here(*tensors), row.meaning(*tensors)) <= row.room


def test_the_page_has_every_name() -> None:
    text = PAGE.read_text(encoding="utf-8")
    section = text.partition("## TileGym")[2].partition("\n## ")[0]
    named = set(re.findall(r"`ops\.(\w+)\(", section))
    assert {row.name for row in ROWS} <= named
