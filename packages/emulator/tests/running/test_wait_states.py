"""Each hazard of the manuals' tables: one wait state too few is judged, as many as the table asks for are not.

The tables: CDNA3 ISA, section 4.5 "Manually Inserted Wait States (NOPs)" and section 7.5 "Dependency Resolution:
Required Independent Instructions"; CDNA2 ISA, sections 4.5 and 7.4; CDNA4 ISA, the same sections. Where the tables
leave room, LLVM's GCNHazardRecognizer decides: what it inserts is what compiled code has.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
from assembling import assemble

from opmux_emulator import JudgedError, Judgement, Memory, launch

CDNA3_ON = ("gfx942", "gfx950")
EVERY = ("gfx90a", *CDNA3_ON)

# v1: 16 bytes a lane, v3: 4 bytes a lane; s[8:9]: memory to read, s[10:11]: memory to write; v2: s8; v4 on: numbers.
PREPARE = (
    """
  s_load_dwordx4 s[8:11], s[0:1], 0x0
  v_and_b32 v0, 0x3ff, v0
  v_lshlrev_b32 v1, 4, v0
  v_lshlrev_b32 v3, 2, v0
  s_waitcnt lgkmcnt(0)
  v_mov_b32 v2, s8
"""
    + "".join(f"  v_mov_b32 v{k}, 0\n" for k in range(4, 64))
    + "  s_mov_b32 s6, 0\n"
)


class Hazard(NamedTuple):
    """``second`` needs so many wait states after ``first``."""

    name: str
    archs: tuple[str, ...]
    first: str
    second: str
    states: int
    between: str = ""
    """Instructions that lie between in any case; each counts as a wait state."""


DPP = "quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf"
CMPX, CMP = "v_cmpx_eq_u32_e32 vcc, v4, v4", "v_cmp_eq_u32 vcc, v4, v4"
TO_SGPR = "v_readfirstlane_b32 s12, v4"
SDWA = "dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:WORD_0 src1_sel:WORD_0"
MODE = "hwreg(HW_REG_MODE, 4, 2)"

SECTION_4_5 = [
    Hazard("VALU writes SGPR, VMEM reads it", EVERY, "v_readfirstlane_b32 s8, v2",
           "global_load_dword v5, v3, s[8:9]", 5),
    Hazard("VALU writes SGPR, VALU reads it", CDNA3_ON, TO_SGPR, "v_add_u32 v5, s12, v4", 2),
    Hazard("VALU writes VCC, VALU reads it", CDNA3_ON, CMP, "v_cndmask_b32 v5, v4, v6, vcc", 2),
    Hazard("VALU writes SGPR, lane select", EVERY, TO_SGPR, "v_readlane_b32 s13, v5, s12", 4),
    Hazard("VALU writes SGPR, lane select of a write", EVERY, TO_SGPR, "v_writelane_b32 v5, 1, s12", 4),
    Hazard("VALU writes VCC, v_div_fmas", EVERY, CMP, "v_div_fmas_f32 v5, v4, v4, v4", 4),
    Hazard("v_div_scale writes VCC, v_div_fmas", EVERY, "v_div_scale_f32 v6, vcc, v4, v4, v4",
           "v_div_fmas_f32 v5, v4, v4, v4", 4),
    Hazard("VALU writes VCC, VCCZ as an operand", EVERY, CMP, "v_add_u32 v5, src_vccz, v4", 5),
    Hazard("VALU writes EXEC, EXECZ as an operand", EVERY, CMPX, "v_add_u32 v5, src_execz, v4", 5),
    Hazard("VALU writes EXEC, DPP", EVERY, CMPX, f"v_mov_b32_dpp v5, v6 {DPP}", 5),
    Hazard("VALU writes VGPR, DPP reads it", EVERY, "v_mov_b32 v6, v4", f"v_mov_b32_dpp v5, v6 {DPP}", 2),
    Hazard("VALU writes VGPR, v_readlane reads it", CDNA3_ON, "v_mov_b32 v6, v4", "v_readlane_b32 s12, v6, 0", 1),
    Hazard("VALU writes VGPR, v_readfirstlane", CDNA3_ON, "v_mov_b32 v6, v4", "v_readfirstlane_b32 s12, v6", 1),
    Hazard("VALU writes EXEC, v_readfirstlane", CDNA3_ON, CMPX, "v_readfirstlane_b32 s12, v6", 4),
    Hazard("VALU writes EXEC, v_writelane", CDNA3_ON, CMPX, "v_writelane_b32 v5, 1, 0", 4),
    Hazard("transcendental result, VALU", CDNA3_ON, "v_exp_f32 v5, v4", "v_add_f32 v6, v5, v4", 1),
    Hazard("SDWA writes a part, VALU", CDNA3_ON, f"v_add_f16_sdwa v5, v4, v4 {SDWA}", "v_add_u32 v6, v5, v4", 1),
    Hazard("op_sel writes a half, VALU", CDNA3_ON, "v_fma_f16 v5, v4, v4, v4 op_sel:[0,0,0,1]",
           "v_add_u32 v6, v5, v4", 1),
    Hazard("store of 128 bits, VALU writes its data", CDNA3_ON, "global_store_dwordx4 v1, v[4:7], s[10:11]",
           "v_mov_b32 v5, 1", 2),
    Hazard("store of 128 bits, VALU writes its data", ("gfx90a",), "global_store_dwordx4 v1, v[4:7], s[10:11]",
           "v_mov_b32 v5, 1", 1),
    Hazard("SALU writes M0, load into LDS", CDNA3_ON, "s_mov_b32 m0, s6", "global_load_lds_dword v3, s[8:9]", 1),
    Hazard("SALU writes M0, s_sendmsg", EVERY, "s_mov_b32 m0, s6", "s_sendmsg sendmsg(MSG_INTERRUPT)", 1),
    Hazard("s_setreg, s_getreg", EVERY, f"s_setreg_imm32_b32 {MODE}, 3", f"s_getreg_b32 s12, {MODE}", 2),
    Hazard("s_setreg, s_setreg", EVERY, f"s_setreg_imm32_b32 {MODE}, 3", f"s_setreg_imm32_b32 {MODE}, 3", 2),
]  # fmt: skip

DOT = "v_dot2_f32_f16 v5, v4, v4, v4"
OF_DOTS = [
    Hazard("dot product, VALU reads it", EVERY, DOT, "v_add_u32 v6, v5, v4", 3),
    Hazard("dot product, store reads it", EVERY, DOT, "global_store_dword v1, v5, s[10:11]", 3),
    Hazard("dot product, the same as a factor", EVERY, DOT, "v_dot2_f32_f16 v6, v4, v5, v4", 3),
    Hazard("dot product, the same as addend", EVERY, DOT, "v_dot2_f32_f16 v6, v4, v4, v5", 0),
    Hazard("dot product, VALU overwrites it", EVERY, DOT, "v_mov_b32 v5, 1", 3),
]

OF_CONVERSIONS_AND_SWAPS = [
    Hazard("VALU writes VGPR, v_permlane32_swap", ("gfx950",), "v_mov_b32 v5, 1", "v_permlane32_swap_b32 v5, v6", 2),
    Hazard("VALU writes VGPR, v_permlane16_swap", ("gfx950",), "v_mov_b32 v6, 1", "v_permlane16_swap_b32 v5, v6", 2),
    Hazard("VALU writes EXEC, v_permlane32_swap", ("gfx950",), CMPX, "v_permlane32_swap_b32 v5, v6", 4),
    Hazard("conversion to fp4, VALU", ("gfx950",), "v_cvt_scalef32_pk_fp4_f32 v6, v4, v5, 1.0",
           "v_add_u32 v8, v6, v4", 1),
    Hazard("conversion to fp8, VALU", ("gfx950",), "v_cvt_scalef32_pk_fp8_f32 v6, v4, v5, 1.0",
           "v_add_u32 v8, v6, v4", 0),
    Hazard("conversion to fp8 in the upper half, VALU", ("gfx950",),
           "v_cvt_scalef32_pk_fp8_f32 v6, v4, v5, 1.0 op_sel:[0,0,0,1]", "v_add_u32 v8, v6, v4", 1),
    Hazard("conversion to fp8 in the upper half, VALU", ("gfx942",), "v_cvt_pk_fp8_f32 v6, v4, v5 op_sel:[0,0,1]",
           "v_add_u32 v8, v6, v4", 1),
]  # fmt: skip


class Matrix(NamedTuple):
    """A matrix instruction by arch: its name, 32-bit registers of A and B and of the result, and its wait states."""

    arch: str
    name: str
    factor: int
    result: int
    read: int
    """By a VALU, or as A or B of another one."""
    stored: int
    """By a memory instruction."""
    addend: int
    """As part of the addend of the same instruction; -1 where it takes part in no such test."""
    early: int = 0
    """From reading its addend to a VALU that overwrites it."""


MATRIX = [
    Matrix("gfx90a", "v_mfma_f32_4x4x4f16", 2, 4, 5, 5, 2, 1),
    Matrix("gfx90a", "v_mfma_f32_16x16x16f16", 2, 4, 11, 11, 8, 7),
    Matrix("gfx90a", "v_mfma_f32_32x32x8f16", 2, 16, 19, 19, 16, 15),
    Matrix("gfx90a", "v_mfma_f32_16x16x4f32", 1, 4, 11, 11, 8, 7),
    Matrix("gfx90a", "v_mfma_f64_4x4x4f64", 2, 2, 6, 9, -1),
    Matrix("gfx90a", "v_mfma_f64_16x16x4f64", 2, 8, 11, 18, 9),
    Matrix("gfx942", "v_mfma_f32_4x4x4_16b_f16", 2, 4, 5, 5, 3, 1),
    Matrix("gfx942", "v_mfma_f32_16x16x16_f16", 2, 4, 7, 7, 5, 3),
    Matrix("gfx942", "v_mfma_f32_32x32x8_f16", 2, 16, 11, 11, 9, 7),
    Matrix("gfx942", "v_mfma_f32_32x32x4_2b_f16", 2, 32, 19, 19, 17, 15),
    Matrix("gfx942", "v_mfma_f32_16x16x32_fp8_fp8", 2, 4, 7, 7, 5, 3),
    Matrix("gfx942", "v_mfma_i32_32x32x16_i8", 2, 16, 11, 11, 9, 7),
    Matrix("gfx942", "v_mfma_f32_4x4x1_16b_f32", 1, 4, 4, 4, 2),
    Matrix("gfx942", "v_mfma_f32_16x16x4_f32", 1, 4, 10, 10, 8),
    Matrix("gfx942", "v_mfma_f32_32x32x2_f32", 1, 16, 18, 18, 16),
    Matrix("gfx942", "v_mfma_f64_4x4x4_4b_f64", 2, 2, 6, 9, -1),
    Matrix("gfx942", "v_mfma_f64_16x16x4_f64", 2, 8, 11, 18, 9),
    Matrix("gfx950", "v_mfma_f32_4x4x4_16b_f16", 2, 4, 5, 5, 4, 1),
    Matrix("gfx950", "v_mfma_f32_16x16x32_f16", 4, 4, 8, 8, 6, 3),
    Matrix("gfx950", "v_mfma_f32_32x32x16_f16", 4, 16, 12, 12, 10, 7),
    Matrix("gfx950", "v_mfma_f32_32x32x4_2b_f16", 2, 32, 20, 20, 18, 15),
    Matrix("gfx950", "v_mfma_f32_16x16x4_f32", 1, 4, 10, 10, 8),
    Matrix("gfx950", "v_mfma_f64_16x16x4_f64", 2, 8, 19, 18, 17),
]


def registers(first: int, count: int) -> str:
    return f"v{first}" if count == 1 else f"v[{first}:{first + count - 1}]"


def section_7_5() -> Iterator[Hazard]:
    """What follows a matrix instruction: its factors are v4 on and v8 on, its result and its addend overlap nothing."""
    for m in MATRIX:
        archs, a, b = (m.arch,), registers(4, m.factor), registers(8, m.factor)
        at, far = 16, 96
        first = f"{m.name} {registers(at, m.result)}, {a}, {b}, {registers(far, m.result)}"
        yield Hazard(f"{m.name}, VALU reads", archs, first, f"v_mov_b32 v12, v{at}", m.read)
        yield Hazard(f"{m.name}, VALU overwrites", archs, first, f"v_mov_b32 v{at}, v12", m.read)
        yield Hazard(f"{m.name}, load overwrites", archs, first, f"global_load_dword v{at}, v3, s[8:9]", m.read)
        yield Hazard(f"{m.name}, store", archs, first, f"global_store_dword v1, v{at}, s[10:11]", m.stored)
        factors = f"{m.name} {registers(far, m.result)}, {registers(at, m.factor)}, {b}, {registers(far, m.result)}"
        yield Hazard(f"{m.name}, factor of the next", archs, first, factors, m.read)
        if m.addend >= 0:
            partly = f"{m.name} {registers(far, m.result)}, {a}, {b}, {registers(at + 2, m.result)}"
            yield Hazard(f"{m.name}, part of the next addend", archs, first, partly, m.addend)
        if m.early:
            yield Hazard(f"{m.name}, VALU overwrites the addend", archs, first, f"v_mov_b32 v{far}, v12", m.early)
        yield Hazard(f"VALU, {m.name} reads", archs, "v_mov_b32 v4, 1", first, 2)
        yield Hazard(f"VALU writes EXEC, {m.name}", archs, CMPX, first, 4)
        if "f64" in m.name:
            yield Hazard(f"{m.name}, v_fma_f64", archs, first, "v_fma_f64 v[12:13], v[4:5], v[4:5], v[4:5]", 2)
    yield Hazard(
        "VALU, double-precision matrix instruction, store", ("gfx90a",), "v_mov_b32 v12, 1",
        "global_store_dword v1, v12, s[10:11]", 2, "  v_mfma_f64_4x4x4f64 v[16:17], v[4:5], v[8:9], v[18:19]\n",
    )  # fmt: skip


HAZARDS = [*SECTION_4_5, *OF_DOTS, *OF_CONVERSIONS_AND_SWAPS, *section_7_5()]
CASES = [pytest.param(h, arch, id=f"{h.name}-{arch}") for h in HAZARDS for arch in h.archs]


def nops(states: int) -> str:
    return "".join(f"  s_nop {min(states - k, 8) - 1}\n" for k in range(0, states, 8))


def judge(hazard: Hazard, arch: str, states: int) -> tuple[Judgement, ...]:
    more = "".join(f"  v_mov_b32 v{k}, 0\n" for k in range(64, 128)) + nops(24)
    done = nops(24) + "  s_waitcnt vmcnt(0)\n"
    body = f"{PREPARE}{more}  {hazard.first}\n{hazard.between}{nops(states)}  {hazard.second}\n{done}"
    memory = Memory()
    x = memory.add(np.zeros(256, "f4"), "x")
    out = memory.empty(1024, "out")
    try:
        launch(assemble(body, arch, lds=1024, accum=128), "k", (1,), (64,), [x, out], memory=memory)
    except JudgedError as error:
        return tuple(error.findings)  # type: ignore[arg-type]
    return ()


@pytest.mark.parametrize(("hazard", "arch"), CASES)
def test_one_wait_state_too_few_is_judged_and_enough_are_not(hazard: Hazard, arch: str) -> None:
    own = hazard.between.count("\n")
    assert judge(hazard, arch, hazard.states - own) == ()
    if hazard.states:
        found = judge(hazard, arch, hazard.states - own - 1)
        assert [j.rule for j in found] == ["wait-states"]
        assert f"needs {hazard.states} wait states" in found[0].detail


def test_a_hardware_register_is_named() -> None:
    (hazard,) = (h for h in SECTION_4_5 if h.name == "s_setreg, s_getreg")
    (found,) = judge(hazard, "gfx942", 0)
    assert found.detail == "a hardware register needs 2 wait states after the s_setreg that wrote it"
