"""Every rule has a planted kernel that breaks it and a clean one that does not."""

import re

import numpy as np
import pytest
from assembling import assemble

from opmux_emulator import RULES, JudgedError, Judgement, LaunchError, Memory, launch

LOAD = """
  s_load_dwordx4 s[8:11], s[0:1], 0x0
  v_and_b32 v0, 0x3ff, v0
  v_lshlrev_b32 v1, 2, v0
  s_waitcnt lgkmcnt(0)
"""
STORE = "  global_store_dword v1, v2, s[10:11]\n"
LDS_ROUND = """
  ds_write_b32 v1, v0
  s_waitcnt lgkmcnt(0)
  {barrier}
  v_xor_b32 v3, 0x100, v1
  ds_read_b32 v2, v3
  s_waitcnt lgkmcnt(0)
"""
PLANTED = {  # rule: (planted, clean, threads, bytes of LDS, workgroups)
    "outstanding": (
        LOAD + "  global_load_dword v2, v1, s[8:9]\n" + STORE,
        LOAD + "  global_load_dword v2, v1, s[8:9]\n  s_waitcnt vmcnt(0)\n" + STORE,
        64, 0, 1,
    ),
    "unwritten-register": (LOAD + STORE, LOAD + "  v_mov_b32 v2, 1\n" + STORE, 64, 0, 1),
    "unwritten-memory": (
        LOAD + "  global_load_dword v2, v1, s[10:11]\n  s_waitcnt vmcnt(0)\n" + STORE,
        LOAD + "  v_mov_b32 v2, 1\n" + STORE + "  s_waitcnt vmcnt(0)\n  global_load_dword v2, v1, s[10:11]\n",
        64, 0, 1,
    ),
    "unwritten-lds": (
        LOAD + "  ds_read_b32 v2, v1\n  s_waitcnt lgkmcnt(0)\n" + STORE,
        LOAD + "  ds_write_b32 v1, v0\n  ds_read_b32 v2, v1\n  s_waitcnt lgkmcnt(0)\n" + STORE,
        64, 1024, 1,
    ),
    "lds-race": (
        LOAD + LDS_ROUND.format(barrier="") + STORE,
        LOAD + LDS_ROUND.format(barrier="s_barrier") + STORE,
        128, 512, 1,
    ),
    "global-race": (
        LOAD + "  v_mov_b32 v2, 1\n" + STORE,
        LOAD + "  v_mov_b32 v2, 1\n  s_lshl_b32 s5, s2, 8\n  v_add_u32 v1, s5, v1\n" + STORE,
        64, 0, 2,
    ),
    "out-of-bounds": (
        LOAD + "  v_mov_b32 v2, 1\n  global_store_dword v1, v2, s[10:11] offset:1024\n",
        LOAD + "  v_mov_b32 v2, 1\n  global_store_dword v1, v2, s[10:11] offset:256\n",
        64, 0, 1,
    ),
    "lds-bounds": (
        LOAD + "  ds_write_b32 v1, v0 offset:4\n",
        LOAD + "  ds_write_b32 v1, v0\n",
        64, 256, 1,
    ),
    "misaligned": (
        LOAD + "  v_mov_b32 v2, 1\n  global_store_dword v1, v2, s[10:11] offset:2\n",
        LOAD + "  v_mov_b32 v2, 1\n  global_store_dword v1, v2, s[10:11] offset:4\n",
        64, 0, 1,
    ),
    "wait-states": (
        LOAD + "  v_mov_b32 v2, v0\n  v_mov_b32_dpp v3, v2 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf\n",
        LOAD + "  v_mov_b32 v2, v0\n  s_nop 1\n  v_mov_b32_dpp v3, v2 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf\n",
        64, 0, 1,
    ),
    "barrier": (
        LOAD + "  v_readfirstlane_b32 s6, v0\n  s_cmp_lt_u32 s6, 64\n  s_cbranch_scc1 done\n  s_barrier\ndone:\n",
        LOAD + "  v_readfirstlane_b32 s6, v0\n  s_cmp_lt_u32 s6, 64\n  s_barrier\n",
        128, 0, 1,
    ),
    "resources": ("  v_mov_b32 v130, 1\n", "  v_mov_b32 v100, 1\n", 64, 0, 1),
    "endless": ("again:\n  s_branch again\n", "  s_branch on\non:\n", 64, 0, 1),
    "unsupported": ("  s_trap 2\n", "  s_nop 0\n", 64, 0, 1),
}  # fmt: skip


def judge(body: str, threads: int = 64, lds: int = 0, groups: int = 1, arch: str = "gfx942") -> tuple[Judgement, ...]:
    memory = Memory()
    x = memory.add(np.arange(256, dtype="f4"), "x")
    out = memory.empty(1024, "out")
    program = assemble(body, arch, lds=lds)
    try:
        launch(program, "k", (groups,), (threads,), [x, out], memory=memory, limit=10_000)
    except JudgedError as error:
        return tuple(error.findings)  # type: ignore[arg-type]
    return ()


def test_every_rule_has_a_planted_kernel() -> None:
    assert set(PLANTED) == set(RULES)


@pytest.mark.parametrize("rule", PLANTED)
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950"])
def test_planted_kernel_is_caught(rule: str, arch: str) -> None:
    planted, _, *size = PLANTED[rule]
    assert rule in {j.rule for j in judge(planted, *size, arch=arch)}


@pytest.mark.parametrize("rule", PLANTED)
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950"])
def test_clean_kernel_is_not(rule: str, arch: str) -> None:
    _, clean, *size = PLANTED[rule]
    assert judge(clean, *size, arch=arch) == ()


@pytest.mark.parametrize(
    "instruction",
    [
        "v_mad_u64_u32 v[2:3], s[4:5], v0, v0, v[4:5]",
        "v_lshl_add_u64 v[2:3], v[4:5], 1, v[4:5]",
        "v_lshlrev_b64 v[2:3], 3, v[4:5]",
        "v_mov_b64 v[2:3], v[4:5]",
    ],
)
def test_the_low_half_of_a_sum_needs_no_high_halves(instruction: str) -> None:
    """Compilers leave the high half of a 64-bit operand undefined where they use the low half of the result alone."""
    body = LOAD + f"  v_mov_b32 v4, 1\n  {instruction}\n"
    assert judge(body + STORE) == ()
    found = judge(body + "  v_mov_b32 v2, v3\n" + STORE)
    assert {j.rule for j in found} == {"unwritten-register"}
    assert judge(LOAD + f"  v_mov_b32 v5, 1\n  {instruction}\n" + STORE) != ()


@pytest.mark.parametrize(
    ("instruction", "reads"),
    [
        ("v_pk_mul_f32 v[2:3], v[4:5], v[4:5] op_sel_hi:[0,0]", "v4"),
        ("v_pk_add_f32 v[2:3], v[4:5], v[4:5] op_sel:[1,1]", "v5"),
        ("v_pk_mov_b32 v[2:3], v[4:5], v[4:5] op_sel:[0,0]", "v4"),
        ("v_pk_mov_b32 v[2:3], v[4:5], v[4:5] op_sel:[1,1]", "v5"),
    ],
)
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_packed_operands_that_are_not_selected_may_be_undefined(instruction: str, reads: str, arch: str) -> None:
    body = f"  {instruction}\n  v_add_u32 v2, v2, v3\n" + STORE
    other = {"v4": "v5", "v5": "v4"}[reads]
    assert judge(LOAD + f"  v_mov_b32 {reads}, 1\n" + body, arch=arch) == ()
    assert {j.rule for j in judge(LOAD + f"  v_mov_b32 {other}, 1\n" + body, arch=arch)} == {"unwritten-register"}


def test_a_judgement_says_where_and_what() -> None:
    (judgement,) = judge(PLANTED["outstanding"][0])
    assert judgement.rule == "outstanding"
    assert judgement.instruction.startswith("global_store_dword")
    assert judgement.group == (0, 0, 0)
    assert str(judgement) == (
        "k: outstanding: v2 is read while a load into it is outstanding: no s_waitcnt vmcnt covers it\n"
        f"  at {judgement.pc:#06x}: {judgement.instruction}   (workgroup (0, 0, 0), wave 0)"
    )


def test_out_of_bounds_names_the_allocation() -> None:
    (judgement,) = judge(PLANTED["out-of-bounds"][0])
    assert judgement.detail == "reads or writes 4 bytes at out + 0x400, outside its 0x400 bytes"
    assert judgement.lane == 0


@pytest.mark.parametrize("rule", ["lds-race", "global-race", "unwritten-lds"])
def test_a_rule_can_be_left_out(rule: str) -> None:
    planted, _, threads, lds, groups = PLANTED[rule]
    program = assemble(planted, lds=lds)
    memory = Memory()
    arguments = [memory.add(np.zeros(256, "f4")), memory.empty(1024)]
    assert launch(
        program, "k", (groups,), (threads,), arguments, memory=memory, ignore=[rule, "unwritten-lds"]
    ).is_clean


@pytest.mark.parametrize(("used", "rules"), [("v2", {"unwritten-register"}), ("v0", set())])
def test_what_a_transposed_read_finds_unwritten_is_judged_where_it_is_used(used: str, rules: set[str]) -> None:
    """Half of the rows are written; compilers read past a narrow tile and use none of it."""
    write = "  v_cmp_gt_u32 vcc, 8, v0\n  s_and_saveexec_b64 s[12:13], vcc\n  v_mov_b32 v6, 1\n  v_mov_b32 v7, 1\n"
    write += "  v_lshlrev_b32 v5, 3, v0\n  ds_write_b64 v5, v[6:7]\n  s_mov_b64 exec, s[12:13]\n"
    read = "  v_lshlrev_b32 v5, 3, v0\n  ds_read_b64_tr_b16 v[2:3], v5\n  s_waitcnt lgkmcnt(0)\n"
    body = LOAD + write + read + STORE.replace("v2", used)
    program = assemble(body, arch="gfx950", lds=1024)
    report = launch(program, "k", (1,), (64,), [np.zeros(256, "f4"), np.zeros(256, "f4")], check=False)
    assert {judgement.rule for judgement in report.judgements} == rules


@pytest.mark.parametrize("write", ["ds_write_b32", "ds_write_b16", "ds_write_b8", "ds_write_b16_d16_hi"])
def test_waves_may_write_the_same_value_to_the_same_place(write: str) -> None:
    """Compilers store replicated data so. Another value is a race, whatever the width."""
    body = LOAD + "  v_and_b32 v4, 63, v0\n  v_lshlrev_b32 v5, 2, v4\n  {value}\n  " + write + " v5, v3\n"
    assert judge(body.format(value="v_mul_u32_u24 v3, 0x10001, v4"), 128, 512) == ()
    found = judge(body.format(value="v_mul_u32_u24 v3, 0x10001, v0"), 128, 512)
    assert {j.rule for j in found} == {"lds-race"}


def test_a_barrier_does_not_order_a_write_that_no_wait_covers() -> None:
    body = LOAD + LDS_ROUND.format(barrier="s_barrier").replace("s_waitcnt lgkmcnt(0)", "s_nop 0", 1) + STORE
    assert "lds-race" in {j.rule for j in judge(body, 128, 512)}


def test_loads_complete_in_order() -> None:
    two = (
        LOAD
        + "  global_load_dword v2, v1, s[8:9]\n  global_load_dword v3, v1, s[8:9]\n  s_waitcnt vmcnt({n})\n"
        + STORE
    )
    assert judge(two.format(n=1)) == ()
    assert [j.rule for j in judge(two.format(n=2))] == ["outstanding"]


@pytest.mark.parametrize(
    ("load", "most", "wait"),
    [
        ("global_load_dword v{}, v1, s[8:9]", 63, "s_waitcnt vmcnt(62)"),
        ("ds_read_b32 v{}, v1", 15, "s_waitcnt lgkmcnt(14)"),
    ],
)
def test_a_full_counter_holds_back_the_next_load(load: str, most: int, wait: str) -> None:
    """A wait for all but one less than a counter holds is enough for the first of more loads."""

    def loads(count: int) -> str:
        first = LOAD + "  ds_write_b32 v1, v1\n  s_waitcnt lgkmcnt(0)\n" + f"  {load.format(2)}\n"
        return first + "".join(f"  {load.format(3 + k % 8)}\n" for k in range(count - 1)) + f"  {wait}\n" + STORE

    assert judge(loads(most), lds=1024) == ()
    assert judge(loads(most + 20), lds=1024) == ()
    assert [j.rule for j in judge(loads(most - 1), lds=1024)] == ["outstanding"]


def test_scalar_loads_complete_in_any_order() -> None:
    body = """
  s_load_dwordx2 s[8:9], s[0:1], 0x0
  s_load_dwordx2 s[10:11], s[0:1], 0x8
  s_waitcnt lgkmcnt({n})
  s_mov_b32 s12, s8
"""
    assert judge(body.format(n=0)) == ()
    assert [j.rule for j in judge(body.format(n=1))] == ["outstanding"]


def test_overwriting_the_target_of_a_load_is_caught() -> None:
    (judgement,) = judge(LOAD + "  global_load_dword v2, v1, s[8:9]\n  v_mov_b32 v2, 1\n")
    assert judgement.detail.startswith("v2 is overwritten while a load into it is outstanding")


def test_atomics_of_workgroups_do_not_race() -> None:
    body = LOAD + "  v_mov_b32 v2, 1\n  global_atomic_add v1, v2, s[8:9]\n"
    assert judge(body, groups=4) == ()


def test_lds_loaded_from_memory_is_ready_after_its_wait_only() -> None:
    body = """
  v_readfirstlane_b32 s6, v1
  s_nop 3
  s_mov_b32 m0, s6
  s_nop 0
  global_load_lds_dword v1, s[8:9]
  {wait}
  s_barrier
  v_xor_b32 v3, 0x100, v1
  ds_read_b32 v2, v3
  s_waitcnt lgkmcnt(0)
"""
    assert judge(LOAD + body.format(wait="s_waitcnt vmcnt(0)"), 128, 512) == ()
    assert {j.rule for j in judge(LOAD + body.format(wait="s_nop 0"), 128, 512)} == {"lds-race"}


@pytest.mark.parametrize("arch", ["gfx942", "gfx90a"])
def test_a_matrix_result_needs_its_wait_states(arch: str) -> None:
    name = "v_mfma_f32_32x32x8_f16" if arch == "gfx942" else "v_mfma_f32_32x32x8f16"
    states = {"gfx942": 11, "gfx90a": 19}[arch]
    body = "\n".join(f"  v_mov_b32 v{k}, 0" for k in range(2, 40)) + f"\n  {name} v[16:31], v[2:3], v[4:5], v[16:31]\n"
    waits = lambda n: "".join(f"  s_nop {min(n - k, 8) - 1}\n" for k in range(0, n, 8))  # noqa: E731
    assert judge(body + waits(states) + "  v_mov_b32 v50, v16\n", arch=arch) == ()
    assert [j.rule for j in judge(body + waits(states - 1) + "  v_mov_b32 v50, v16\n", arch=arch)] == ["wait-states"]


@pytest.mark.parametrize("arch", ["gfx942", "gfx90a"])
def test_a_whole_matrix_result_may_be_added_to_at_once(arch: str) -> None:
    name = "v_mfma_f32_32x32x8_f16" if arch == "gfx942" else "v_mfma_f32_32x32x8f16"
    body = "\n".join(f"  v_mov_b32 v{k}, 0" for k in range(2, 52)) + f"\n  {name} v[16:31], v[2:3], v[4:5], v[16:31]\n"
    after = "  s_nop 7\n" * 3
    assert judge(body + f"  {name} v[34:49], v[2:3], v[4:5], v[16:31]\n" + after, arch=arch) == ()
    assert judge(body + f"  {name} v[16:31], v[2:3], v[4:5], v[34:49]\n" + after, arch=arch) == ()
    shifted = judge(body + f"  {name} v[34:49], v[2:3], v[4:5], v[18:33]\n" + after, arch=arch)
    assert {j.rule for j in shifted} == {"wait-states"}


def written_by(body: str, **schedule: object) -> np.ndarray:
    memory, out = Memory(), np.zeros(256, "f4")
    arguments = [memory.add(np.arange(256, dtype="f4")), memory.add(out)]
    launch(assemble(body, lds=512), "k", (1,), (128,), arguments, memory=memory, check=False, **schedule)
    return out


@pytest.mark.parametrize("load", ["global_load_dword v2, v1, s[8:9]", "s_load_dword s12, s[8:9], 0x10"])
def test_a_late_load_arrives_with_its_wait(load: str) -> None:
    """What waits too little is wrong then, and what waits enough is not."""
    use = "  v_mov_b32 v3, s12\n" if "s12" in load else "  v_mov_b32 v3, v2\n"
    body = LOAD + f"  {load}\n  {{wait}}\n{use}  s_waitcnt vmcnt(0) lgkmcnt(0)\n" + STORE.replace("v2", "v3")
    enough, few = (body.format(wait=wait) for wait in ("s_waitcnt vmcnt(0) lgkmcnt(0)", "s_nop 0"))
    assert np.array_equal(written_by(enough, late=True), written_by(enough))
    assert np.array_equal(written_by(few), written_by(enough))
    assert np.isnan(written_by(few, late=True)[:128]).all()


def test_waves_take_turns_in_either_order() -> None:
    """A race shows in the results of one order or the other."""
    body = LOAD + LDS_ROUND.format(barrier="") + "  v_cvt_f32_u32 v2, v2\n" + STORE
    forward, backward = (written_by(body, order=order)[:128] for order in ("forward", "backward"))
    assert not np.array_equal(forward, backward)
    fair = written_by(LOAD + LDS_ROUND.format(barrier="s_barrier") + "  v_cvt_f32_u32 v2, v2\n" + STORE, turn=1)
    assert fair[:128].tolist() == [(lane + 64) % 128 for lane in range(128)]


@pytest.mark.parametrize(("schedule", "message"), [
    ({"order": "sideways"}, "`order`: expected forward or backward, got 'sideways'"),
    ({"turn": -1}, "`turn`: expected a number of instructions, got -1"),
])  # fmt: skip
def test_a_schedule_that_is_none(schedule: dict[str, object], message: str) -> None:
    with pytest.raises(LaunchError, match=re.escape(message)):
        written_by(LOAD, **schedule)


def test_waves_may_load_the_same_memory_to_the_same_place_in_lds() -> None:
    """Each wave's load writes 64 dwords from where M0 points; other memory is another value, and a race."""
    body = LOAD + "  s_mov_b32 m0, 0\n  v_and_b32 v4, {mask}, v1\n  global_load_lds_dword v4, s[8:9]\n"
    assert judge(body.format(mask="0xff"), 128, 512) == ()
    assert {j.rule for j in judge(body.format(mask="0x1ff"), 128, 512)} == {"lds-race"}
