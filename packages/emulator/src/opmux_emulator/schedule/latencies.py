"""What the model assumes of each kind of instruction, in slots of four cycles: 16 lanes of a wave go in a cycle.

Sources: LLVM's scheduling model of these archs (SISchedule.td) for what each kind takes: SALU and VALU 1, a quarter
rate for transcendental ones, SMEM and LDS 5, branches 8, vector memory 80. Matrix instructions take their passes (CDNA3
ISA, section 7.1). Bytes a cycle of the LDS and of the vector cache of a CU: CDNA3 white paper.
"""

TRANS = 4
"""For which a transcendental instruction keeps the vector unit."""
BRANCH = 8
"""From a taken branch to the instruction after it."""
LDS, SMEM, VMEM = 5, 5, 80
"""From the time when its unit is done with an access to the decrement of its counter."""
LINE = 2
"""Of the memory path for a line of 128 bytes: 64 bytes a cycle, shared by the four SIMDs of a CU, which all use it."""
CYCLES = 4
"""Cycles of a slot."""
