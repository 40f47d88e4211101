"""What the waves of the first workgroup executed, as the interpreter records it."""

from collections.abc import Sequence

import numpy as np

from opmux_emulator.isa.decode import Instruction
from opmux_emulator.native import library as native
from opmux_emulator.schedule.latencies import Latencies
from opmux_emulator.schedule.model import Schedule, schedule_of, step_of
from opmux_emulator.schedule.simulation import Step

LIMIT = 1 << 14
"""Instructions of a wave that are recorded: what comes after them is not modelled."""
KINDS = ("salu", "valu", "trans", "mfma", "smem", "vmem", "lds", "branch", "special")
"""Kinds of instructions, in the interpreter's order."""


class Trace:
    """Room for the instructions of a workgroup's waves."""

    def __init__(self, waves: int) -> None:
        self.steps = np.zeros((waves, LIMIT, 2), np.int32)
        self.lengths = np.zeros(waves, np.uint32)

    def attach(self, settings: native.Launch) -> None:
        """Let a launch record here."""
        settings.trace, settings.trace_limit = self.steps.ctypes.data, LIMIT
        settings.trace_lengths = self.lengths.ctypes.data

    def schedule(self, table: np.ndarray, code: Sequence[Instruction], waves: int, latencies: Latencies) -> Schedule:
        """The model of what was recorded.

        Args:
            table: the encoded program, whose first column is the interpreter's number of each opcode.
            code: the program.
            waves: how many waves fit on a SIMD.
            latencies: what is assumed of each kind of instruction.
        """
        library = native.library()
        kinds = [KINDS[library.emulator_op_class(int(op))] if op >= 0 else "special" for op in table[:, 0]]
        traces: list[list[Step]] = []
        for steps, length in zip(self.steps, self.lengths, strict=True):
            recorded = steps[: min(int(length), LIMIT)].tolist()
            traces.append([step_of(index, cost, code[index], kinds[index]) for index, cost in recorded])
        return schedule_of(traces, waves, code, bool((self.lengths > LIMIT).any()), latencies)
