"""The schedule model against schedules worked out by hand, in slots of four cycles."""

import numpy as np
import pytest
from assembling import assemble

from opmux_emulator import Latencies, Memory, launch
from opmux_emulator.schedule.model import Schedule
from opmux_emulator.schedule.simulation import Simd, Step, Wave

VALU, SALU, TRANS, END = Step(0, "valu"), Step(1, "salu"), Step(2, "trans"), Step(9, "end")
ALL = 1 << 20


def issued(*waves: list[Step], groups: tuple[int, ...] = ()) -> list[list[int]]:
    simd = Simd([Wave(steps, groups[k] if groups else k) for k, steps in enumerate(waves)])
    simd.run()
    return [w.issued for w in simd.waves]


def mfma(passes: int) -> Step:
    return Step(3, "mfma", passes)


@pytest.mark.parametrize(
    ("steps", "slots"),
    [
        ([VALU, VALU, SALU, END], [0, 1, 2, 3]),
        ([TRANS, SALU, VALU], [0, 1, 4]),  # a quarter of the rate
        ([mfma(8), VALU, mfma(8), VALU], [0, 1, 8, 9]),  # vector instructions run beside it
        ([Step(4, "nop", 0, 3), VALU], [0, 3]),
        ([Step(4, "vmem", 4), Step(5, "waitcnt", 0, 0, ALL), VALU], [0, 88, 89]),  # 4 lines of 2 slots, then 80
        ([Step(4, "vmem", 4), Step(4, "vmem", 4), Step(5, "waitcnt", 0, 1, ALL)], [0, 1, 88]),
        ([Step(4, "vmem", 4), Step(4, "vmem", 4), Step(5, "waitcnt", 0, 0, ALL)], [0, 1, 96]),  # one path
        ([Step(4, "lds", 8), Step(5, "waitcnt", 0, ALL, 0)], [0, 13]),  # 8 slots of the LDS, then 5
        ([Step(4, "lds", 8), Step(4, "lds", 8), Step(5, "waitcnt", 0, ALL, 1)], [0, 1, 13]),
        ([Step(4, "smem", 0), Step(5, "waitcnt", 0, ALL, 0)], [0, 5]),
        ([Step(4, "branch"), Step(0, "valu")], [0, 8]),  # taken
        ([Step(4, "branch"), Step(5, "valu")], [0, 1]),  # not taken
    ],
)
def test_one_wave(steps: list[Step], slots: list[int]) -> None:
    assert issued(steps) == [slots]


def test_one_instruction_of_a_kind_in_a_slot_each_from_another_wave() -> None:
    assert issued([VALU, VALU], [VALU, VALU]) == [[0, 2], [1, 3]]
    assert issued([VALU, SALU], [SALU, VALU]) == [[0, 1], [0, 1]]


def test_waves_fill_the_matrix_unit_in_turn() -> None:
    assert issued([mfma(4), mfma(4)], [mfma(4), mfma(4)]) == [[0, 8], [4, 12]]


def test_a_barrier_holds_the_waves_of_its_workgroup() -> None:
    barrier = Step(6, "barrier")
    assert issued([VALU, VALU, barrier, VALU], [barrier, SALU], groups=(0, 0)) == [[0, 1, 2, 3], [0, 3]]
    assert issued([VALU, VALU, barrier, VALU], [barrier, SALU]) == [[0, 1, 2, 3], [0, 1]]


LOOP = """
  s_mov_b32 s8, {n}
again:
{body}
  s_sub_u32 s8, s8, 1
  s_cmp_lg_u32 s8, 0
  s_cbranch_scc1 again
"""


def modelled(body: str, n: int = 6, threads: int = 64, vgprs: int = 512, model: bool | Latencies = True) -> Schedule:
    prepare = "".join(f"  v_mov_b32 v{k}, 0\n" for k in range(64))
    program = assemble(prepare + "  s_nop 3\n" + LOOP.format(n=n, body=body), vgprs=vgprs, accum=64)
    report = launch(program, "k", (1,), (threads,), [np.zeros(64, "f4")] * 4, memory=Memory(), model=model)
    assert report.schedule is not None
    return report.schedule


def test_a_loop_of_vector_instructions() -> None:
    loop = modelled("  v_add_u32 v0, v1, v2\n" * 8).loop
    assert loop is not None
    assert (loop.iterations, loop.instructions) == (6, {"valu": 8, "salu": 2, "branch": 1})
    assert (loop.cycles, loop.mfma_utilisation) == (4 * (8 + 2 + 8), 0.0)


def test_a_loop_takes_what_given_latencies_say() -> None:
    body = "  v_exp_f32 v0, v1\n  v_mov_b32 v2, v3\n"
    usual, slow = modelled(body), modelled(body, model=Latencies(trans=9, branch=18))
    assert usual.loop is not None
    assert slow.loop is not None
    assert slow.loop.cycles - usual.loop.cycles == 4 * (5 + 10)


FOUR = "".join(f"  v_mfma_f32_32x32x8_f16 v[{32}:47], v[0:1], v[2:3], v[32:47]\n" for _ in range(4))


def test_a_loop_of_matrix_instructions_waits_for_its_branch() -> None:
    """Issued in slots 0, 8, 16 and 24; what follows takes longer than the passes of the last one."""
    schedule = modelled(FOUR)
    loop = schedule.loop
    assert loop is not None
    assert schedule.waves == 1
    assert loop.cycles == 4 * (24 + 1 + 2 + 8)
    assert loop.mfma_utilisation == pytest.approx(32 / 35)


def test_a_second_wave_hides_the_branch_of_the_first() -> None:
    schedule = modelled(FOUR, vgprs=256)
    assert schedule.loop is not None
    assert schedule.waves == 2
    assert schedule.loop.mfma_utilisation == pytest.approx(1.0)
    assert schedule.loop.cycles == pytest.approx(4 * 64, rel=0.05)


def test_without_a_loop_and_cut_off() -> None:
    assert modelled("", n=1).loop is None
    schedule = modelled("", n=20_000)
    assert schedule.is_cut
    assert schedule.loop is not None
    assert schedule.loop.iterations < 20_000
