"""From what waves executed to cycles: the schedule of one SIMD, and its hot loop."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from opmux_emulator.isa.decode import Instruction
from opmux_emulator.schedule.latencies import CYCLES, Latencies
from opmux_emulator.schedule.simulation import Simd, Step, Wave


@dataclass(frozen=True)
class Loop:
    """The loop in which most instructions are executed; every number is the model's.

    Attributes:
        start, end: byte offsets of its first and last instruction.
        iterations: of a wave.
        instructions: of an iteration, by kind.
        cycles: from one iteration of a wave to its next, while the SIMD's other waves run too.
        mfma_utilisation: share of the time in which the matrix unit works, all waves together.
    """

    start: int
    end: int
    iterations: int
    instructions: dict[str, int]
    cycles: float
    mfma_utilisation: float


@dataclass(frozen=True)
class Schedule:
    """A model of one SIMD that runs as many waves of a workgroup, and workgroups, as fit.

    Attributes:
        waves: waves of the SIMD.
        cycles: until the last one ends.
        mfma_utilisation: share of these in which the matrix unit works.
        loop: the hot loop; None where nothing is executed twice.
        is_cut: the waves executed more than was recorded; only the beginning was modelled.
    """

    waves: int
    cycles: int
    mfma_utilisation: float
    loop: Loop | None
    is_cut: bool


def step_of(index: int, cost: int, instruction: Instruction, kind: str) -> Step:
    """One traced instruction."""
    if instruction.name == "s_waitcnt":
        simm = instruction.immediate
        vector, other = (simm & 15) | (simm >> 10 & 0x30), simm >> 8 & 15
        return Step(index, "waitcnt", 0, 1 << 20 if vector == 63 else vector, 1 << 20 if other == 15 else other)
    if instruction.name == "s_nop":
        return Step(index, "nop", 0, (instruction.immediate & 15) + 1)
    if instruction.name in ("s_barrier", "s_endpgm"):
        return Step(index, {"s_barrier": "barrier", "s_endpgm": "end"}[instruction.name])
    return Step(index, kind, cost)


def schedule_of(
    traces: Sequence[Sequence[Step]], waves: int, code: Sequence[Instruction], is_cut: bool, latencies: Latencies
) -> Schedule:
    """Model one SIMD.

    Args:
        traces: what each wave of a workgroup executed. Wave k lies on SIMD k modulo 4.
        waves: how many waves fit on a SIMD.
        code: the program.
        is_cut: whether the traces end early.
        latencies: what is assumed of each kind of instruction.
    """
    own = traces[::4] if len(traces) >= 4 else traces[:1]
    on_simd = [Wave(own[k % len(own)], k // len(own)) for k in range(max(waves, len(own)))]
    simd = Simd(on_simd, latencies)
    simd.run()
    slots = max(simd.slot, 1)
    busy = sum(passes for _, passes in simd.busy)
    return Schedule(len(on_simd), CYCLES * slots, busy / slots, hot_loop(simd, code), is_cut)


def hot_loop(simd: Simd, code: Sequence[Instruction]) -> Loop | None:
    """The loop with the most executed instructions, innermost where several nest."""
    steps = simd.waves[0].steps
    backward = Counter((b.place, a.place) for a, b in itertools.pairwise(steps) if b.place <= a.place)
    if not backward:
        return None
    start, end = max(backward, key=lambda edge: backward[edge] * (edge[1] - edge[0] + 1))
    heads = [[w.issued[k] for k, s in enumerate(w.steps) if s.place == start] for w in simd.waves]
    if min(map(len, heads)) < 2:
        return None
    # Without the first iteration, which waits for the first loads, where there are enough.
    heads = [h[1:] if len(h) > 2 else h for h in heads]
    cycles = CYCLES * sum((h[-1] - h[0]) / (len(h) - 1) for h in heads) / len(heads)
    first, last = max(h[0] for h in heads), min(h[-1] for h in heads)
    if first >= last:  # the waves are not in the loop at the same time
        first, last = min(h[0] for h in heads), max(h[-1] for h in heads)
    busy = sum(min(at + n, last) - max(at, first) for at, n in simd.busy if at < last and at + n > first)
    entered = [k for k, s in enumerate(steps) if s.place == start]
    kinds = Counter(s.kind for s in steps[entered[0] : entered[1]])
    return Loop(
        start=code[start].pc,
        end=code[end].pc,
        iterations=backward[start, end] + 1,
        instructions=dict(kinds),
        cycles=cycles,
        mfma_utilisation=busy / (last - first),
    )
