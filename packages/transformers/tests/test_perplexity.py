"""The program that prints what 8 bits cost in perplexity."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

PROGRAM = Path(__file__).parent.parent / "benchmarks" / "perplexity.py"


@pytest.fixture
def program() -> ModuleType:
    """benchmarks/perplexity.py as a module."""
    spec = importlib.util.spec_from_file_location("opmux_perplexity", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_eight_bits_change_the_perplexity_little(
    program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("eight bits hold a sign, an exponent and a mantissa; a scale holds the rest. " * 120)
    found = program.measure(text, steps=20, hidden=32)
    assert list(found) == ["float32", *program.FORMS]
    plain = found["float32"][0]
    assert plain < 20  # it has learned something: the text has 20 characters
    for name, (perplexity, same) in found.items():
        assert perplexity == pytest.approx(plain, rel=0.05), name
        assert same > 0.8, name
    program.show(found)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(found)
    assert lines[1].split() == ["float32", f"{plain:.4f}", "+0.000%", "100.00%"]
