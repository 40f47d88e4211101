"""What a cubin says of its kernel: parameters, registers, stack, and instructions."""

import re
import subprocess
from collections import Counter
from importlib.metadata import files
from pathlib import Path
from typing import NamedTuple

import torch

import opmux
from opmux_cutile.cubin import read
from opmux_cutile.launching import TileKernel
from opmux_cutile.prebuilding import kernels_of, takers_of
from opmux_jit import machine_code

OPCODE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.x]+)", re.MULTILINE)
SIZES = {"p": 8, "i": 4, "f": 4}


class Cubin(NamedTuple):
    """A kernel in a cubin.

    Attributes:
        parameters: offset and size in bytes of each parameter, in order.
        registers: of a thread.
        local: bytes of local memory of a thread.
        opcodes: how often each instruction is there.
    """

    parameters: list[tuple[int, int]]
    registers: int
    local: int
    opcodes: Counter[str]

    def count(self, begin: str) -> int:
        """Instructions whose name begins so."""
        return sum(number for opcode, number in self.opcodes.items() if opcode.startswith(begin))


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """A tensor without memory."""
    return torch.empty(*shape, dtype=dtype, device="meta")


def kernel(op: str, *tensors: torch.Tensor | None, arch: str = "sm_90", **options: object) -> TileKernel:
    """The kernel of a call, in the config of the heuristic; of several, the first."""
    found, *_ = kernels(op, *tensors, arch=arch, **options)
    return found


def kernels(op: str, *tensors: torch.Tensor | None, arch: str = "sm_90", **options: object) -> list[TileKernel]:
    """The kernels of a call, in the config of the heuristic."""
    (taker,) = takers_of(getattr(opmux, op), *tensors, arch=arch, **options)
    return kernels_of(taker)


def compiled(wanted: TileKernel, arch: str, folder: Path) -> Cubin:
    """Compile a kernel, and read the cubin."""
    code = machine_code(wanted.source(arch)).code
    path = folder / "kernel.cubin"
    path.write_bytes(code)
    (program,) = (file for file in files("nvidia-cuda-nvdisasm") or () if file.name == "nvdisasm")
    done = subprocess.run([str(program.locate()), "-c", str(path)], capture_output=True, text=True, check=True)
    return Cubin(*read(code), Counter(OPCODE.findall(done.stdout)))


def layout(letters: str) -> list[tuple[int, int]]:
    """Offset and size of each argument that the launcher gives for a signature."""
    found, end = [], 0
    for letter in letters:
        size = SIZES[letter]
        start = -(-end // size) * size
        found.append((start, size))
        end = start + size
    return found
