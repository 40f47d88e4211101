"""The checks on a GPU, without one: their parts, and that what a sanitizer runs compiles and is legal."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import checks
import gradients_on_gpu
import grouped_on_gpu
import on_gpu

from opmux_deepgemm.generation.source import text


def test_every_family_is_a_part_under_each_tool() -> None:
    parts = checks.parts()
    families = (*on_gpu.FAMILIES, "added fp8", "across bf16", *grouped_on_gpu.FAMILIES, *gradients_on_gpu.FAMILIES)
    assert set(parts) == {"conformance", *(f"{tool} {family}" for tool in checks.TOOLS for family in families)}
    assert parts["racecheck added fp8"] == ("on_gpu.py", "added fp8", "racecheck")


def test_what_a_sanitizer_runs_can_be_written() -> None:
    kernels = [kernel for module in checks.SCRIPTS for kernel in module.sanitized()]
    assert len(kernels) == len(set(kernels))
    for product, config in kernels:
        assert "product(" in text(product, config)
    large = [(product, config) for product, config in kernels if product.scaled and config.kernel == "large"]
    assert any(product.accumulate for product, _ in large)
    assert {config.alternate > 0 for _, config in large} == {False, True}
    assert {config.cluster for _, config in large} == {1, 2}


def test_parts_that_do_not_exist_are_refused(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["checks.py", "--parts", "memcheck large fp16"])
    with pytest.raises(SystemExit):
        checks.main()
    assert "memcheck large fp16" in capsys.readouterr().err
