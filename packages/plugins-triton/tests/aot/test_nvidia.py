"""What is read from cubins and SASS."""

import pytest
from planted_launches import product

from opmux_triton.aot import checks, nvidia
from opmux_triton.aot.build import build


def test_nvidia_code_is_read() -> None:
    built = build(product(128), "sm_90")
    facts = checks.read(built)
    assert any(name.startswith("HGMMA") for name in facts.matrix), facts.matrix
    assert "tall" in built.dots
    assert facts.spills == 0
    assert checks.complaints(built, facts, product(128)) == []
    assert any(n.startswith("HMMA") for n in checks.read(build(product(16), "sm_90")).matrix)


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "resident"),
    [(32, 0, 4, 64), (128, 0, 4, 16), (255, 0, 8, 8), (64, 100 * 1024, 4, 8), (64, 228 * 1024, 4, 0)],
)
def test_occupancy_of_nvidia(registers: int, shared: int, warps: int, resident: int) -> None:
    assert nvidia.occupancy("sm_90", registers, shared, warps) == resident
