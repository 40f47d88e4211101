"""What a cubin says of its kernel: parameters, registers, stack, and instructions."""

import re
import struct
import subprocess
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import files
from pathlib import Path
from typing import NamedTuple

import torch

import opmux
from opmux.plugin import takers
from opmux_cutile.launching import TileKernel
from opmux_cutile.prebuilding import kernels_of
from opmux_jit import machine_code

OPCODE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.x]+)", re.MULTILINE)
# Attributes of the sections .nv.info, as nvdisasm and cuobjdump name them.
FRAME_SIZE, KPARAM_INFO, REGCOUNT, KPARAM_INFO_2 = 0x11, 0x17, 0x2F, 0x45
SIZES = {"p": 8, "i": 4, "f": 4}


class Cubin(NamedTuple):
    """A kernel in a cubin.

    Attributes:
        parameters: offset and size in bytes of each parameter, in order.
        registers: of a thread.
        stack: bytes of local memory of a thread.
        opcodes: how often each instruction is there.
    """

    parameters: list[tuple[int, int]]
    registers: int
    stack: int
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
    (taker,) = takers(getattr(opmux, op), *tensors, arch=arch, backend="cutile", **options)
    return kernels_of(taker)


def compiled(wanted: TileKernel, arch: str, folder: Path) -> Cubin:
    """Compile a kernel, and read the cubin."""
    code = machine_code(wanted.source(arch)).code
    path = folder / "kernel.cubin"
    path.write_bytes(code)
    (program,) = (file for file in files("nvidia-cuda-nvdisasm") or () if file.name == "nvdisasm")
    done = subprocess.run([str(program.locate()), "-c", str(path)], capture_output=True, text=True, check=True)
    parameters, registers, stack = [], 0, 0
    for attribute, data in _attributes(code):
        if attribute == KPARAM_INFO:
            _, ordinal, offset, about = struct.unpack("<IHHI", data)
            parameters.append((ordinal, offset, about >> 18))
        elif attribute == KPARAM_INFO_2:
            _, ordinal, offset, size, _ = struct.unpack("<IHHHH", data)
            parameters.append((ordinal, offset, size))
        elif attribute == REGCOUNT:
            registers = struct.unpack("<II", data)[1]
        elif attribute == FRAME_SIZE:
            stack = max(stack, struct.unpack("<II", data)[1])
    found = [(offset, size) for _, offset, size in sorted(parameters)]
    return Cubin(found, registers, stack, Counter(OPCODE.findall(done.stdout)))


def layout(letters: str) -> list[tuple[int, int]]:
    """Offset and size of each argument that the launcher gives for a signature."""
    found, end = [], 0
    for letter in letters:
        size = SIZES[letter]
        start = -(-end // size) * size
        found.append((start, size))
        end = start + size
    return found


def _attributes(code: bytes) -> Iterator[tuple[int, bytes]]:
    """The attributes in all sections .nv.info of an ELF file of 64 bits."""
    (table,) = struct.unpack_from("<Q", code, 0x28)
    entry, count, names = struct.unpack_from("<HHH", code, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", code, table + i * entry) for i in range(count)]
    for name, *_, offset, size in sections:
        start = sections[names][4] + name
        if not code[start : code.index(b"\0", start)].startswith(b".nv.info"):
            continue
        place, end = offset, offset + size
        while place < end:
            form, attribute, length = struct.unpack_from("<BBH", code, place)
            place += 4
            if form == 4:  # the only form whose value follows
                yield attribute, code[place : place + length]
                place += length
