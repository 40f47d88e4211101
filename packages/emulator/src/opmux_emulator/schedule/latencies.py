"""What the model assumes of each kind of instruction, in slots of four cycles: 16 lanes of a wave go in a cycle.

Sources: LLVM's scheduling model of these archs (SISchedule.td) for what each kind takes: SALU and VALU 1, a quarter
rate for transcendental ones, SMEM and LDS 5, branches 8, vector memory 80. Matrix instructions take their passes (CDNA3
ISA, section 7.1). Bytes a cycle of the LDS and of the vector cache of a CU: CDNA3 white paper.
"""

from dataclasses import dataclass

CYCLES = 4
"""Cycles of a slot."""


@dataclass(frozen=True)
class Latencies:
    """Slots of four cycles. Others than these defaults show how much a loop depends on them.

    Attributes:
        lds: from the time when the LDS is done with an access to the decrement of its counter.
        smem: the same of a scalar load.
        vmem: the same of an access to memory, from its last line on.
        branch: from a taken branch to the instruction after it.
        trans: for which a transcendental instruction keeps the vector unit.
        line: of the memory path for a line of 128 bytes: 64 bytes a cycle, shared by the four SIMDs of a CU, which all
            use it.
    """

    lds: int = 5
    smem: int = 5
    vmem: int = 80
    branch: int = 8
    trans: int = 4
    line: int = 2
