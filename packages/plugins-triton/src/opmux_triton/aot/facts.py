"""The facts that are read from machine code, for every vendor."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Facts:
    """Facts of one compiled kernel.

    Attributes:
        matrix: matrix instructions by mnemonic, with their number.
        registers: by the vendor's names: vgpr, agpr, sgpr; or reg, for one thread.
        spills: registers spilled, or bytes of local memory.
        scratch: bytes of private memory (stack frame) of one thread.
        shared: bytes of LDS or shared memory of one workgroup.
        wide_loads: global loads of 16 bytes a thread, and bulk copies.
        loads: global loads of any width.
        occupancy: wavefronts per SIMD (AMD) or warps per multiprocessor (NVIDIA) that registers and LDS allow.
        warps: wavefronts or warps of one workgroup.
    """

    matrix: dict[str, int]
    registers: dict[str, int]
    spills: int
    scratch: int
    shared: int
    wide_loads: int
    loads: int
    occupancy: int
    warps: int

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)
