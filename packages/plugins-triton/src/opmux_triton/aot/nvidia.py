"""NVIDIA machine code: registers and local memory from the cubin, matrix instructions and loads from the SASS.

Sources: CUDA binary utilities manual (cuobjdump --dump-resource-usage); CUDA C++ programming guide, compute
capabilities 8.x and 9.0 (65,536 registers and 64 warps of a multiprocessor, registers allocated by eights a thread;
1 KiB of shared memory reserved for each block).
"""

import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import triton

from opmux_triton.aot.build import Built
from opmux_triton.aot.facts import Facts
from opmux_triton.archs import shared_memory

REGISTERS = 65536
REGISTER_GRANULE = 8
WARPS = 64
RESERVED_BYTES = 1024

MATRIX = ("HGMMA", "QGMMA", "IGMMA", "UTCHMMA", "UTCQMMA", "UTCIMMA", "HMMA", "QMMA", "IMMA", "DMMA")
"""Matrix instructions of a warp, of a warpgroup (sm_90) and of a multiprocessor's tensor memory (sm_100)."""

_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_OPCODE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.]+)", re.MULTILINE)


def _dump(option: str, binary: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        done = subprocess.run([_TOOLS / "cuobjdump", option, file.name], capture_output=True, text=True, check=True)
    return done.stdout


def read(built: Built) -> Facts:
    """The facts of one kernel."""
    usage = dict(re.findall(r"\b(REG|STACK|LOCAL):(\d+)", _dump("--dump-resource-usage", built.binary)))
    opcodes = Counter(_OPCODE.findall(_dump("--dump-sass", built.binary)))
    matrix = {n: c for n, c in opcodes.items() if n.startswith(MATRIX)}
    loads = {n: c for n, c in opcodes.items() if n.startswith(("LDG", "LDGSTS", "UTMALDG", "UBLKCP"))}
    local = sum(c for n, c in opcodes.items() if n.startswith(("LDL", "STL")))
    wide = sum(c for n, c in loads.items() if ".128" in n or n.startswith(("UTMALDG", "UBLKCP")))
    registers = int(usage["REG"])
    return Facts(
        matrix=dict(sorted(matrix.items())),
        registers={"reg": registers},
        spills=int(usage["LOCAL"]) + local,
        scratch=int(usage["STACK"]),
        shared=built.shared,
        wide_loads=wide,
        loads=sum(loads.values()),
        occupancy=occupancy(built.arch, registers, built.shared, built.num_warps),
        warps=built.num_warps,
    )


def occupancy(arch: str, registers: int, shared: int, warps: int) -> int:
    """Warps per multiprocessor that fit, by registers and by shared memory."""
    granules = -(-max(registers, 1) // REGISTER_GRANULE) * REGISTER_GRANULE
    blocks = min(WARPS // warps, REGISTERS // (granules * 32 * warps))
    if shared:
        whole = shared_memory(arch) + RESERVED_BYTES
        blocks = min(blocks, whole // (shared + RESERVED_BYTES))
    return blocks * warps


def complaints(arch: str, facts: Facts) -> list[str]:
    """What goes past the arch's limits."""
    limit = shared_memory(arch)
    found = [f"{facts.shared} bytes of shared memory, a block has {limit}"] if facts.shared > limit else []
    return found if facts.occupancy else [*found, "no block fits a multiprocessor"]
