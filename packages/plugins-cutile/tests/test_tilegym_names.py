"""TileGym's names: what the documentation calls in their place computes what TileGym documents."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from tilegym_names import ROWS, Row, apart

MAKERS = {"get_swiglu_module", "get_fused_swiglu_module", "get_rms_norm_module", "get_apply_rope_func"}
"""Names that make modules and functions of models: no functions of tensors."""
PAGE = Path(__file__).parents[3] / "docs" / "users" / "coming-from.md"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_calls_here_mean_what_theirs_do(row: Row) -> None:
    tensors = row.make("cpu")
    assert apart(row.here(*tensors), row.meaning(*tensors)) <= row.room


def test_every_function_of_tensors_on_the_page_is_called() -> None:
    text = PAGE.read_text(encoding="utf-8")
    table = text.partition("## TileGym")[2].partition("\n## ")[0].partition("There is no op here yet")[0]
    named = set(re.findall(r"`ops\.(?:activation\.)?(\w+)", table))
    assert len(ROWS) == len({row.name for row in ROWS})
    assert named - MAKERS == {row.name for row in ROWS}
    assert named > MAKERS
    assert f"calls {len(ROWS)} of the names above" in text
