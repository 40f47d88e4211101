"""Launches of the Triton backend, executed and judged: its ops run on CPU tensors as on an arch that is not there.

``opmux conformance triton --profile emulator --within "opmux_emulator.triton_launches:on(gfx942)"`` compares the
backend with the references this way. Needs ``opmux-triton``.
"""

import functools
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from triton.runtime.jit import TensorWrapper

from opmux.plugin import cpu_plays
from opmux_emulator.codeobject.program import Program
from opmux_emulator.running.launch import launch as emulate
from opmux_emulator.running.memory import Memory
from opmux_emulator.running.report import Report
from opmux_triton.aot.build import compile_launch
from opmux_triton.launch import Launch, recording


class Executing(list[Launch]):
    """A list of launches: what is appended is compiled and executed at once.

    Attributes:
        reports: the result of each launch.
    """

    def __init__(self, arch: str) -> None:
        super().__init__()
        self.arch = arch
        self.reports: list[Report] = []

    def append(self, launch: Launch) -> None:
        """Compile and execute a launch.

        Raises:
            JudgedError: the kernel broke a rule.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Triton's own, about tensors without a device
            compiled, values = compile_launch(launch, self.arch)
        memory = Memory()
        arguments = [argument_of(value, memory) for value in values]
        program = program_of(compiled.asm["hsaco"])
        threads = 64 * compiled.metadata.num_warps
        self.reports.append(
            emulate(
                program, None, launch.grid, (threads,), arguments, memory=memory, dynamic_lds=compiled.metadata.shared
            )
        )


@functools.lru_cache(maxsize=64)
def program_of(code: bytes) -> Program:
    """A code object, decoded once."""
    return Program(code)


def argument_of(value: Any, memory: Memory) -> Any:
    """An argument of a launch as the emulator takes it; a tensor is the address of its first element."""
    if isinstance(value, TensorWrapper):  # another dtype's view of a tensor
        value = value.base
    if isinstance(value, torch.Tensor):
        return place(value, memory)
    return np.float32(value) if isinstance(value, float) and math.isfinite(value) else value


def place(tensor: torch.Tensor, memory: Memory) -> int:
    """Put a tensor's whole storage into the emulator's memory, once, and return the address of its first element."""
    storage = tensor.untyped_storage()
    if not storage.nbytes():
        return 0
    offset = int(tensor.storage_offset()) * tensor.element_size()
    whole = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    for block in memory.blocks:
        if block.data.ctypes.data == whole.ctypes.data:
            return block.base + offset
    return memory.add(whole) + offset


@contextmanager
def on(arch: str) -> Iterator[Executing]:
    """Within it, calls with CPU tensors are planned for an arch, and launches run on the emulator."""
    with cpu_plays(arch), recording(arch, executing := Executing(arch)):
        yield executing
