"""The conformance suite on the emulator: the Triton backend's ops as compiled for archs that are not there."""

import pytest
import torch

import opmux
from opmux.testing import run_conformance
from opmux_emulator import Memory
from opmux_emulator.isa.opcodes import ARCHS
from opmux_emulator.triton_launches import on, place


@pytest.mark.parametrize("arch", ARCHS)
def test_some_cases_pass_with_no_judgement(arch: str) -> None:
    report = run_conformance(
        "triton", ["rms_norm", "linear"], "emulator-some", within=f"opmux_emulator.triton_launches:on({arch})"
    )
    assert [op["failures"] for op in report["ops"]] == [[], []]
    assert (report["passed"], report["environment"]["arch"]) == (8, arch)


def test_a_call_is_executed_and_counted() -> None:
    x, weight = torch.randn(5, 64), torch.randn(64)
    with on("gfx942") as executed:
        got = opmux.rms_norm(x, weight, backend="triton")
    torch.testing.assert_close(got, opmux.rms_norm(x, weight, backend="reference"))
    (report,) = executed.reports
    assert (report.arch, report.is_clean) == ("gfx942", True)
    assert report.counts.memory_bytes >= 4 * (2 * x.numel() + weight.numel())


def test_a_broken_rule_fails_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here because each tensor's allocation ends half way."""
    from opmux_emulator import triton_launches

    def shorter(tensor: torch.Tensor, memory: Memory) -> int:
        return memory.add(tensor.reshape(-1).view(torch.uint8)[: tensor.nbytes // 2].numpy())

    monkeypatch.setattr(triton_launches, "place", shorter)
    report = run_conformance(
        "triton", ["rms_norm"], "emulator-some", within="opmux_emulator.triton_launches:on(gfx942)"
    )
    assert report["failed"] == 4
    failure = report["ops"][0]["failures"][0]
    assert failure["check"] == "runs"
    assert "JudgedError" in failure["message"]
    assert "out-of-bounds" in failure["message"]


def test_tensors_of_one_storage_lie_in_one_allocation() -> None:
    whole, memory = torch.arange(12.0), Memory()
    first, second = place(whole[:4], memory), place(whole[6:], memory)
    assert len(memory.blocks) == 1
    assert second - first == 24
    assert place(torch.empty(0), memory) == 0
