"""Modes that change what vector instructions do: indexing of registers, VSKIP; and waves with code of their own."""

import numpy as np
import pytest
from assembling import assemble

from opmux_emulator import launch

START = """  s_load_dwordx4 s[8:11], s[0:1], 0x0
  v_and_b32 v0, 0x3ff, v0
  v_lshlrev_b32 v1, 2, v0
  s_waitcnt lgkmcnt(0)
"""
FILL = "".join(f"  v_mov_b32 v{k}, {k}\n" for k in range(10, 20))
END = "  global_store_dword v1, v20, s[10:11]\n"


def run(body: str, threads: int = 64, **options: int) -> np.ndarray:
    out = np.zeros(threads, np.uint32)
    launch(assemble(START + FILL + body + END, **options), "k", (1,), (threads,), [np.arange(64, dtype="u4"), out])
    return out


@pytest.mark.parametrize(("body", "expected"), [
    ("s_mov_b32 s4, 3\n s_set_gpr_idx_on s4, gpr_idx(SRC0)\n s_nop 0\n v_mov_b32 v20, v11\n s_set_gpr_idx_off\n", 14),
    ("s_mov_b32 s4, 9\n s_set_gpr_idx_on s4, gpr_idx(DST)\n s_nop 0\n v_mov_b32 v11, v17\n s_set_gpr_idx_off\n", 17),
    ("s_mov_b32 s4, 2\n s_set_gpr_idx_on s4, gpr_idx(SRC1)\n s_nop 0\n v_add_u32 v20, v10, v15\n"
     " s_set_gpr_idx_off\n", 27),
    ("s_mov_b32 s4, 2\n s_set_gpr_idx_on s4, gpr_idx(SRC0)\n s_mov_b32 s5, 4\n s_set_gpr_idx_idx s5\n s_nop 0\n"
     " v_mov_b32 v20, v11\n s_set_gpr_idx_off\n", 15),
    ("s_mov_b32 s4, 2\n s_set_gpr_idx_on s4, gpr_idx(SRC0)\n s_set_gpr_idx_mode gpr_idx(SRC1)\n s_nop 0\n"
     " v_add_u32 v20, v10, v15\n s_set_gpr_idx_off\n v_mov_b32 v10, v11\n", 27),
])  # fmt: skip
def test_indexed_registers(body: str, expected: int) -> None:
    assert (run("  " + body) == expected).all()


def test_skipped_vector_instructions() -> None:
    body = "  v_mov_b32 v20, 5\n  s_mov_b32 s4, 4\n  s_setvskip s4, 2\n  v_mov_b32 v20, 6\n  s_mov_b32 s5, 7\n"
    body += "  ds_write_b32 v1, v20 offset:65535\n  s_setvskip s4, 0\n  s_nop 0\n  v_add_u32 v20, s5, v20\n"
    assert (run(body) == 12).all()


def test_waves_may_meet_at_barriers_of_their_own() -> None:
    body = """  ds_write_b32 v1, v1
  s_waitcnt lgkmcnt(0)
  v_readfirstlane_b32 s4, v0
  s_cmp_lt_u32 s4, 64
  s_cbranch_scc1 first
  s_barrier
  s_branch both
first:
  s_barrier
both:
  v_xor_b32 v2, 0x100, v1
  ds_read_b32 v20, v2
  s_waitcnt lgkmcnt(0)
"""
    assert run(body, threads=128, lds=512).tolist() == [4 * (k ^ 64) for k in range(128)]


def test_turns_of_waves() -> None:
    """Wave 1 reads what wave 0 wrote before and after its own store: a race, whose result depends on the turns."""
    body = (
        START
        + """  v_readfirstlane_b32 s4, v0
  s_cmp_lt_u32 s4, 64
  s_cbranch_scc0 second
  s_nop 0
  s_nop 0
  s_nop 0
  s_nop 0
  ds_write_b32 v1, v1
  s_waitcnt lgkmcnt(0)
  s_endpgm
second:
  v_subrev_u32 v2, 0x100, v1
  ds_read_b32 v20, v2
  s_waitcnt lgkmcnt(0)
"""
        + END
    )
    seen = []
    for turn in (0, 1):
        out = np.zeros(128, np.uint32)
        program = assemble(body, lds=512)
        report = launch(program, "k", (1,), (128,), [np.arange(64, dtype="u4"), out], turn=turn, check=False)
        assert {j.rule for j in report.judgements} >= {"lds-race"}
        seen.append(out[64:].tolist())
    assert seen[0] == [4 * k for k in range(64)] != seen[1]


def test_lds_beyond_64_kib_is_loaded_directly_on_gfx950() -> None:
    body = (
        START
        + """  s_mov_b32 s12, s8
  s_mov_b32 s13, s9
  s_mov_b32 s14, 0x100
  s_mov_b32 s15, 0x00020000
  s_mov_b32 m0, 0x10100
  s_nop 0
  buffer_load_dword v1, s[12:15], 0 offen lds
  v_add_u32 v2, 0x10100, v1
  s_waitcnt vmcnt(0)
  ds_read_b32 v20, v2
  s_waitcnt lgkmcnt(0)
"""
        + END
    )
    out = np.zeros(64, np.uint32)
    launch(assemble(body, "gfx950", lds=0x10200), "k", (1,), (64,), [np.arange(64, dtype="u4") + 7, out])
    assert out.tolist() == list(range(7, 71))
