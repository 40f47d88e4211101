"""What the writer emits, compared with what is committed: a change of it is seen and reviewed."""

import importlib.util
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("asm_goldens", Path(__file__).with_name("writing.py"))
assert spec is not None
assert spec.loader is not None
writing = importlib.util.module_from_spec(spec)
spec.loader.exec_module(writing)
TEXTS = writing.texts()


@pytest.mark.parametrize("name", TEXTS)
def test_the_source_is_the_golden(name: str) -> None:
    remedy = "packages/plugins-asm/tests/goldens/writing.py writes the goldens"
    assert TEXTS[name] == (writing.FOLDER / name).read_text(), remedy


def test_no_golden_is_left_over() -> None:
    assert {path.name for path in writing.FOLDER.glob("*.s")} == set(TEXTS)
