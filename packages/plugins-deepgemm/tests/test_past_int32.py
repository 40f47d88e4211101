"""The program that compares results of more than 2^31 elements: what it compares is right, and it finds what is not."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import opmux


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The program as a module, which computes small results by the reference."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import past_int32_on_gpu

    monkeypatch.setattr(sys, "argv", ["past_int32_on_gpu.py", "--small"])
    yield past_int32_on_gpu
    sys.modules.pop("past_int32_on_gpu", None)


def test_small_results_of_the_reference_are_right(program: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [call.__name__ for call in program.CALLS]
    assert all(": 0 of 1" in line for line in lines)


def test_one_wrong_element_is_found(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = opmux.linear

    def wrong(*tensors: torch.Tensor, out: torch.Tensor, backend: str) -> None:
        right(*tensors, out=out, backend=backend)
        out[-1, -1] += 1

    monkeypatch.setattr(opmux, "linear", wrong)
    assert program.main() == 1
    assert "linear: 1 of 141,440 elements wrong" in capsys.readouterr().out
