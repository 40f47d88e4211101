"""Instances with their machine code, as the tests of this folder look at them."""

import functools
from collections.abc import Mapping
from typing import Any

import msgpack

from opmux_ck.building.instances import Instance, source_of
from opmux_emulator.codeobject.elf import read_elf
from opmux_jit import Entry, machine_code

seconds: dict[str, float] = {}
"""By instance, how long compiling it took, now or when it was put into the cache."""
occupancies: dict[str, int] = {}
"""By instance, the workgroups that a compute unit holds at a time."""
LDS_BYTES = {"gfx942": 64 << 10, "gfx950": 160 << 10}
"""Of a compute unit."""
SIMDS, MOST_WAVES, REGISTERS, GRANULE = 4, 8, 512, 8
"""Of a compute unit; and of a SIMD: its waves, and the vector registers of a lane, which are allocated in eights."""


@functools.cache
def entry_of(instance: Instance, arch: str = "gfx942") -> Entry:
    """The machine code of an instance, from the cache or built."""
    source, compiler = source_of(instance, arch)
    entry = machine_code(source, compiler.name)
    seconds[f"{arch} {instance.name}"] = entry.seconds
    return entry


def kernel_of(instance: Instance, arch: str = "gfx942") -> Mapping[str, Any]:
    """What the code object states of an instance's kernel."""
    (note,) = (data for owner, _, data in read_elf(entry_of(instance, arch).code).notes if owner == "AMDGPU")
    (kernel,) = msgpack.unpackb(note)["amdhsa.kernels"]
    return kernel


def check_kernel(instance: Instance, arch: str = "gfx942") -> Mapping[str, Any]:
    """No register is spilled, no scratch memory used, a compute unit holds a workgroup, the arguments are right."""
    kernel = kernel_of(instance, arch)
    assert (kernel[".vgpr_spill_count"], kernel[".sgpr_spill_count"]) == (0, 0)
    assert kernel[".private_segment_fixed_size"] == 0
    assert kernel[".max_flat_workgroup_size"] == instance.threads
    occupancies[f"{arch} {instance.name}"] = held = workgroups(kernel, arch)
    assert held >= 1
    sizes = [8 if letter == "p" else 4 for letter in instance.signature]
    given = [argument for argument in kernel[".args"] if not argument[".value_kind"].startswith("hidden_")]
    assert [argument[".size"] for argument in given] == sizes
    return kernel


def workgroups(kernel: Mapping[str, Any], arch: str) -> int:
    """The workgroups of a kernel that a compute unit holds at a time, by their registers and their LDS."""
    registers = -(-kernel[".vgpr_count"] // GRANULE) * GRANULE  # accumulation registers are among them
    waves = min(MOST_WAVES, REGISTERS // max(registers, 1)) * SIMDS
    lds = kernel[".group_segment_fixed_size"]
    return min(waves * 64 // kernel[".max_flat_workgroup_size"], LDS_BYTES[arch] // max(lds, 1))
