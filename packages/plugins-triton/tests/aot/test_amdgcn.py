"""What is read from AMD's assembly."""

import pytest
from planted_launches import product

from opmux_triton.aot import amdgcn, checks
from opmux_triton.aot.build import build


@pytest.mark.parametrize(
    ("arch", "prefix"), [("gfx942", "v_mfma_f32_32x32x8"), ("gfx90a", "v_mfma_"), ("gfx950", "v_mfma_")]
)
def test_amd_code_is_read(arch: str, prefix: str) -> None:
    made_ = product(128, num_stages=2)
    built = build(made_, arch)
    facts = checks.read(built)
    assert any(name.startswith(prefix) for name in facts.matrix), facts.matrix
    assert 0 < facts.registers["vgpr"] <= 512
    assert facts.shared > 0
    assert facts.warps == 4
    assert facts.occupancy >= 1
    assert checks.complaints(built, facts, made_) == []


def test_the_matrix_instruction_is_the_one_asked_for() -> None:
    facts = checks.read(build(product(128, matrix_instr_nonkdim=16), "gfx942"))
    assert any("16x16x16" in name for name in facts.matrix)


@pytest.mark.parametrize(
    ("arch", "registers", "shared", "warps", "waves"),
    [
        ("gfx942", 64, 0, 4, 8),
        ("gfx942", 128, 0, 4, 4),
        ("gfx942", 512, 0, 4, 1),
        ("gfx942", 64, 32768, 4, 2),
        ("gfx950", 64, 32768, 4, 5),
        ("gfx942", 64, 65536, 1, 1),
        ("gfx942", 64, 65537, 4, 0),
    ],
)
def test_occupancy_of_amd(arch: str, registers: int, shared: int, warps: int, waves: int) -> None:
    assert amdgcn.occupancy(arch, registers, shared, warps) == waves
