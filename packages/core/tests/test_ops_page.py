"""The page of an H200's figures: the speedup comes first, every case has its place, every miss its reason."""

import dataclasses
from pathlib import Path
from types import ModuleType

import pytest
from bench.test_results import GOOD, PEER, report

from opmux.bench.results import CaseResult

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """scripts/ops_page.py."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import ops_page

    return ops_page


def case(op: str = "rms_norm", name: str = "1 rows of 8", mine: float = 10.0, peer: float = 15.0) -> CaseResult:
    """A case in which opmux's choice and torch eager took this many microseconds."""
    chosen = dataclasses.replace(GOOD, name="triton", median_us=mine, ratio=peer / mine)
    (made,) = report(chosen, dataclasses.replace(PEER, median_us=peer)).cases
    return dataclasses.replace(made, op=op, case=name)


def test_the_speedup_comes_first(module: ModuleType) -> None:
    assert module.HEAD[0] == "speedup"
    row = module.case_row(case())
    assert row[:6] == ["1.50", "`rms_norm`", "1 rows of 8", "10", "15", "torch eager"]
    assert row[-1] == "1.50 of best peer"
    (empty,) = report(PEER).cases
    assert module.case_row(empty)[0] == "-"


def test_misses_have_their_reasons(module: ModuleType) -> None:
    cases = [case(), case(name="16 rows of 8", peer=5.0), case(op="layer_norm", peer=5.0)]
    assert [*module.case_misses(cases, {"rms_norm, 16 rows of 8": "Here is why."})] == [
        "- `rms_norm`, 16 rows of 8: 0.50 of best peer, wanted 0.91. Here is why.",
        "- `layer_norm`, 1 rows of 8: 0.50 of best peer, wanted 0.91. reason not found yet",
    ]


def test_every_op_of_the_run_has_a_family(module: ModuleType) -> None:
    found = report(GOOD)
    known = module.family_cases(dataclasses.replace(found, cases=(case(), case(op="linear"))))
    assert [c.op for c in known["norm"]] == ["rms_norm"]
    assert [c.op for c in known["gemm"]] == ["linear"]
    with pytest.raises(SystemExit, match=r"FAMILIES has no place for hadamard"):
        module.family_cases(dataclasses.replace(found, cases=(case(op="hadamard"),)))


def test_a_family_says_its_range_and_folds_its_table(module: ModuleType) -> None:
    text = "\n".join(module.family("norm", [case(), case(name="16 rows of 8", peer=60.0)]))
    assert text.startswith(
        '### Norm\n\n<details markdown="1">\n<summary>2 cases: geometric mean 3.00x, from 1.50x to 6.00x'
    )
    assert "](h200-norm.svg)" in text
    assert text.rstrip().endswith("</details>")
