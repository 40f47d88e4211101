"""What the machine code of a kernel must show, and what counts as worse than before."""

from collections.abc import Mapping
from typing import Any

import torch

from opmux_triton.aot import amdgcn, nvidia
from opmux_triton.aot.build import Built
from opmux_triton.aot.facts import Facts
from opmux_triton.launch import Launch

MORE_REGISTERS = 1.1
"""Registers may grow by this factor before a row counts as worse: compilers differ slightly."""

WARPGROUP = ("HGMMA", "QGMMA", "IGMMA")
"""sm_90's matrix instructions of a warpgroup: of 16-bit floats, of 8-bit floats, of int8."""


def read(built: Built) -> Facts:
    """The facts of a compiled kernel."""
    return amdgcn.read(built) if built.arch.startswith("gfx") else nvidia.read(built)


def complaints(built: Built, facts: Facts, launch: Launch) -> list[str]:
    """Everything that is wrong with one kernel; empty if nothing is."""
    amd = built.arch.startswith("gfx")
    found = amdgcn.complaints(built.arch, facts) if amd else nvidia.complaints(built.arch, facts)
    if facts.spills:
        found.append(f"spills: {facts.spills}")
    if facts.scratch:
        found.append(f"{facts.scratch} bytes of private memory a thread")
    if built.has_dot and not facts.matrix and not _by_plain_instructions(built):
        found.append("a dot, but no matrix instruction")
    if built.arch == "sm_90" and "tall" in built.dots and not any(n.startswith(WARPGROUP) for n in facts.matrix):
        found.append("a dot of 64 rows or more in 16 or 8 bits, but no warpgroup instruction")
    if not built.has_dot and could_be_wide(launch) and not facts.wide_loads:
        found.append(f"{facts.loads} global loads, none of 16 bytes")
    return found


def _by_plain_instructions(built: Built) -> bool:
    """float32 products in full precision have no matrix instruction on NVIDIA and on RDNA."""
    return (built.arch.startswith("sm") or amdgcn.is_rdna(built.arch)) and "f32_ieee" in built.dots


def could_be_wide(launch: Launch) -> bool:
    """Whether the layout of a launch's largest tensors allows reading rows 16 bytes at a time."""
    tensors = [a for a in launch.arguments if isinstance(a, torch.Tensor) and a.is_floating_point()]
    if not tensors or launch.meta.get("HALF", 0) % 8:  # rotates some dims of a head, and reads only these
        return False
    most = max(t.numel() for t in tensors)
    largest = [t for t in tensors if t.numel() == most]
    return most >= 1024 and all(_in_vectors(t) for t in largest)


def _in_vectors(tensor: torch.Tensor) -> bool:
    strides = [s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1]
    return tensor.shape[-1] % 16 == 0 and tensor.stride(-1) == 1 and all(s == 1 or s % 16 == 0 for s in strides)


def worse(before: Mapping[str, Any], now: Facts) -> list[str]:
    """In what respects a row is worse than the recorded one."""
    found = []
    if lost := set(before["matrix"]) - set(now.matrix):
        found.append(f"no {', '.join(sorted(lost))} any more")
    if now.occupancy < before["occupancy"]:
        found.append(f"occupancy {now.occupancy}, was {before['occupancy']}")
    if before["wide_loads"] and not now.wide_loads:
        found.append("no 16-byte loads any more")
    for name, count in now.registers.items():
        if name != "agpr" and count > before["registers"][name] * MORE_REGISTERS + 4:
            found.append(f"{count} {name}, was {before['registers'][name]}")
    if now.shared > before["shared"]:
        found.append(f"{now.shared} bytes of shared memory, was {before['shared']}")
    return found
