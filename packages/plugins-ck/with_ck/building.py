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
    """No register is spilled, no scratch memory used, a workgroup of so many threads fits, the arguments are right."""
    kernel = kernel_of(instance, arch)
    assert (kernel[".vgpr_spill_count"], kernel[".sgpr_spill_count"]) == (0, 0)
    assert kernel[".private_segment_fixed_size"] == 0
    assert kernel[".max_flat_workgroup_size"] == instance.threads
    assert kernel[".vgpr_count"] <= 512 // max(instance.threads // 256, 1)  # accumulation registers are among them
    sizes = [8 if letter == "p" else 4 for letter in instance.signature]
    given = [argument for argument in kernel[".args"] if not argument[".value_kind"].startswith("hidden_")]
    assert [argument[".size"] for argument in given] == sizes
    return kernel
