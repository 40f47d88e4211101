"""Issuing the waves of one SIMD in order, slot by slot."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from opmux_emulator.schedule.latencies import Latencies


class Step(NamedTuple):
    """An instruction that a wave executed.

    Attributes:
        place: which instruction of the program.
        kind: as the counts name it, or ``waitcnt``, ``nop``, ``barrier``, ``end``.
        cost: passes of a matrix instruction, cycles of the LDS, lines of memory.
        first, second: of a wait, how many vector and other operations may be outstanding; of a nop, its wait states.
    """

    place: int
    kind: str
    cost: int = 0
    first: int = 0
    second: int = 0


@dataclass
class Wave:
    """A wave on the SIMD.

    Attributes:
        group: its workgroup, for barriers.
        ready: slot in which its next instruction may issue.
        vector, other: slots in which outstanding operations complete, in order of issue.
        issued: slot of each step.
    """

    steps: Sequence[Step]
    group: int
    at: int = 0
    ready: int = 0
    waits_at_barrier: bool = False
    vector: deque[int] = field(default_factory=deque)
    other: deque[int] = field(default_factory=deque)
    issued: list[int] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return self.at >= len(self.steps)

    def clears(self, step: Step) -> int:
        """The slot from which a wait is satisfied."""
        slot = 0
        if len(self.vector) > step.first:
            slot = self.vector[len(self.vector) - step.first - 1]
        if len(self.other) > step.second:
            slot = max(slot, sorted(self.other)[len(self.other) - step.second - 1])
        return slot


@dataclass
class Simd:
    """The units that the waves of a SIMD share: slots from which each is free.

    Attributes:
        latencies: what is assumed of each kind of instruction.
        busy: slots that the matrix unit worked for, with the slot in which each work began.
    """

    waves: list[Wave]
    latencies: Latencies = field(default_factory=Latencies)
    vector: int = 0
    matrix: int = 0
    lds: int = 0
    memory: int = 0
    slot: int = 0
    busy: list[tuple[int, int]] = field(default_factory=list)

    def run(self) -> None:
        """Until every wave is done. The wave that issued longest ago goes first."""
        while live := [w for w in self.waves if not w.is_done]:
            taken: set[str] = set()
            for wave in sorted(live, key=lambda w: w.issued[-1] if w.issued else -1):
                if wave.ready <= self.slot and not wave.waits_at_barrier:
                    self.issue(wave, wave.steps[wave.at], taken)
            self.release()
            self.slot = self.slot + 1 if taken else max(self.slot + 1, self.next_event(live))

    def next_event(self, live: Sequence[Wave]) -> int:
        """The next slot in which anything can change."""
        later = [w.ready for w in live if not w.waits_at_barrier and w.ready > self.slot]
        later += [free for free in (self.vector, self.matrix) if free > self.slot]
        return min(later, default=self.slot + 1)

    def issue(self, wave: Wave, step: Step, taken: set[str]) -> None:
        """Issue an instruction if its unit takes one in this slot: one of each kind, each from another wave."""
        now, kind = self.slot, step.kind
        port = "valu" if kind in ("trans", "mfma") else kind
        after = now + 1
        if kind == "waitcnt":
            if (clear := wave.clears(step)) > now:
                wave.ready = clear
                return
        elif kind == "nop":
            after = now + step.first
        elif kind == "barrier":
            wave.waits_at_barrier = True
        elif kind not in ("end", "special"):
            if port in taken or (port == "valu" and (self.vector > now or (kind == "mfma" and self.matrix > now))):
                return
            after = self.start(wave, step, kind)
        taken.add(port)
        wave.issued.append(now)
        wave.at += 1
        wave.ready = after

    def start(self, wave: Wave, step: Step, kind: str) -> int:
        """Occupy the unit; the slot in which the wave may go on."""
        now, takes = self.slot, self.latencies
        if kind == "trans":
            self.vector = now + takes.trans
        elif kind == "mfma":
            self.matrix = now + step.cost
            self.busy.append((now, step.cost))
        elif kind == "lds":  # a CU's LDS serves four SIMDs alike: a cycle of it is a slot of each
            self.lds = max(now, self.lds) + step.cost
            wave.other.append(self.lds + takes.lds)
        elif kind == "vmem":
            self.memory = max(now, self.memory) + takes.line * step.cost
            wave.vector.append(max(self.memory + takes.vmem, wave.vector[-1] if wave.vector else 0))
        elif kind == "smem":
            wave.other.append(now + takes.smem)
        jumps = kind == "branch" and wave.at + 1 < len(wave.steps) and wave.steps[wave.at + 1].place != step.place + 1
        return now + (takes.branch if jumps else 1)

    def release(self) -> None:
        """Let the waves of a workgroup go on that all wait at a barrier, and forget what has completed."""
        for group in {w.group for w in self.waves if w.waits_at_barrier}:
            members = [w for w in self.waves if w.group == group and (w.waits_at_barrier or not w.is_done)]
            if all(w.waits_at_barrier for w in members):
                for wave in members:
                    wave.waits_at_barrier, wave.ready = False, self.slot + 1
        for wave in self.waves:
            while wave.vector and wave.vector[0] <= self.slot:
                wave.vector.popleft()
            while wave.other and max(wave.other) <= self.slot:
                wave.other.clear()
