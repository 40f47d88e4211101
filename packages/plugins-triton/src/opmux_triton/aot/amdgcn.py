"""AMD machine code: registers, LDS, occupancy, matrix instructions and loads, from the compiler's assembly.

Sources: LLVM's AMDGPU usage guide (code object metadata); AMD Instinct MI200 and MI300 ISA manuals (512 registers of
each lane and SIMD, shared by VGPRs and AGPRs; allocated by eights; 8 wavefronts per SIMD, 4 SIMDs per compute unit);
RDNA3 and RDNA4 ISA manuals (1536 registers of each lane and SIMD, 256 to a wavefront of 32; allocated by 24 in the
products with all of them; 16 wavefronts per SIMD, 2 SIMDs per compute unit; no AGPRs).
"""

import re
from collections import Counter
from dataclasses import dataclass

from opmux_triton.aot.build import Built
from opmux_triton.aot.facts import Facts
from opmux_triton.archs import shared_memory


@dataclass(frozen=True)
class Limits:
    """The resources of a compute unit.

    Attributes:
        lane: VGPRs (and AGPRs) of a lane of a SIMD.
        granule: VGPRs are allocated in multiples of this.
        wave: the most that one wavefront can address; on CDNA 256 VGPRs and 256 AGPRs.
        waves: wavefronts of a SIMD.
        simds: SIMDs of a compute unit.
    """

    lane: int
    granule: int
    wave: int
    waves: int
    simds: int


CDNA = Limits(lane=512, granule=8, wave=512, waves=8, simds=4)
RDNA = Limits(lane=1536, granule=24, wave=256, waves=16, simds=2)
SGPRS_OF_WAVE = 108
"""102, and the special registers (VCC, FLAT_SCRATCH, XNACK_MASK) that the metadata includes."""


def is_rdna(arch: str) -> bool:
    """Whether an arch is in AMD's graphics line: wavefronts of 32, no AGPRs, matrix instructions for 16 bits only."""
    return arch.startswith(("gfx10", "gfx11", "gfx12")) and arch != "gfx1250"


def limits_of(arch: str) -> Limits:
    """The limits of an arch."""
    return RDNA if is_rdna(arch) else CDNA


_MATRIX = re.compile(r"^\s+(v_s?mfmac?_\w+|v_s?wmma_\w+)", re.MULTILINE)
_LOAD = re.compile(r"^\s+((?:global|buffer|flat)_load_\w+)", re.MULTILINE)


def _number(text: str, name: str) -> int:
    found = re.search(rf"\.{name}:\s+(\d+)", text)
    if found is None:
        raise ValueError(f"the assembly does not state .{name}")
    return int(found[1])


def read(built: Built) -> Facts:
    """The facts of one kernel."""
    text = built.text
    total, agprs = _number(text, "vgpr_count"), 0 if is_rdna(built.arch) else _number(text, "agpr_count")
    loads = Counter(_LOAD.findall(text))
    return Facts(
        matrix=dict(sorted(Counter(_MATRIX.findall(text)).items())),
        registers={"vgpr": total, "agpr": agprs, "sgpr": _number(text, "sgpr_count")},
        spills=_number(text, "vgpr_spill_count") + _number(text, "sgpr_spill_count"),
        scratch=_number(text, "private_segment_fixed_size"),
        shared=built.shared,
        wide_loads=sum(n for name, n in loads.items() if name.endswith(("dwordx4", "b128"))),
        loads=sum(loads.values()),
        occupancy=occupancy(built.arch, total, built.shared, built.num_warps),
        warps=built.num_warps,
    )


def occupancy(arch: str, registers: int, shared: int, warps: int) -> int:
    """Wavefronts per SIMD that fit, by registers and by LDS."""
    limits = limits_of(arch)
    granules = -(-max(registers, 1) // limits.granule) * limits.granule
    by_registers = min(limits.waves, limits.lane // granules)
    if not shared:
        return by_registers
    groups = shared_memory(arch) // shared
    return min(by_registers, max(groups * warps // limits.simds, 1 if groups else 0))


def complaints(arch: str, facts: Facts) -> list[str]:
    """What exceeds the arch's limits."""
    found = []
    most = limits_of(arch).wave
    if facts.registers["vgpr"] > most:
        found.append(f"{facts.registers['vgpr']} VGPRs and AGPRs, a wavefront has {most}")
    if facts.registers["sgpr"] > SGPRS_OF_WAVE:
        found.append(f"{facts.registers['sgpr']} SGPRs, a wavefront has {SGPRS_OF_WAVE}")
    if facts.shared > shared_memory(arch):
        found.append(f"{facts.shared} bytes of LDS, a workgroup has {shared_memory(arch)}")
    if facts.occupancy < 1:
        found.append("no workgroup fits a compute unit")
    return found
