"""A loaded code object: its kernels, ready to be launched."""

import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from opmux_emulator.codeobject.descriptor import Descriptor, read_descriptor
from opmux_emulator.codeobject.elf import Elf, read_elf
from opmux_emulator.codeobject.metadata import KernelMetadata, read_metadata
from opmux_emulator.errors import CodeObjectError
from opmux_emulator.isa.decode import Decoder, Instruction

IMAGE_BASE = 1 << 40
"""Device address that virtual address 0 of a code object is loaded at."""


LARGEST = 1 << 30
"""Bytes of a loaded image: far more than any code object has, and less than what a damaged header can ask for."""


@dataclass(frozen=True)
class Kernel:
    """A kernel of a program."""

    name: str
    descriptor: Descriptor
    metadata: KernelMetadata | None
    entry: int
    """Virtual address of the first instruction."""

    @property
    def kernarg_size(self) -> int:
        """Bytes of arguments: the descriptor's, or the metadata's where that one is 0."""
        return self.descriptor.kernarg or (self.metadata.kernarg if self.metadata else 0)


class Program:
    """A code object. ``Program(data)`` or ``Program.load(path)``.

    Raises:
        CodeObjectError: not a code object of a supported arch, or a damaged one.
    """

    def __init__(self, data: bytes) -> None:
        self.elf: Elf = read_elf(data)
        self.arch = self.elf.arch
        if not self.elf.segments:
            raise CodeObjectError("code object: it has no loadable segment: link the object file first")
        size = max(s.address + s.size for s in self.elf.segments)
        if size > LARGEST:
            raise CodeObjectError(f"code object: its segments end at {size:#x}: expected at most {LARGEST:#x} bytes")
        self.image = bytearray(size)
        for segment in self.elf.segments:
            self.image[segment.address : segment.address + len(segment.data)] = segment.data
        self.metadata = read_metadata(self.elf)

    def image_at(self, base: int) -> bytes:
        """The image as it lies in memory at a device address: with the addresses that it holds."""
        image = bytearray(self.image)
        for relocation in self.elf.relocations:
            if relocation.offset + 8 <= len(image):
                struct.pack_into("<Q", image, relocation.offset, (base + relocation.addend) & (1 << 64) - 1)
        return bytes(image)

    @classmethod
    def load(cls, path: str | Path) -> "Program":
        """Read a file."""
        return cls(Path(path).read_bytes())

    @cached_property
    def kernels(self) -> dict[str, Kernel]:
        """The kernels by name."""
        found = {}
        for symbol in self.elf.symbols:
            if not symbol.name.endswith(".kd"):
                continue
            name = symbol.name.removesuffix(".kd")
            descriptor = read_descriptor(bytes(self.image[symbol.value : symbol.value + 64]), name)
            entry = symbol.value + descriptor.entry
            if not any(s.executable and s.address <= entry < s.address + s.size for s in self.elf.segments):
                raise CodeObjectError(f"{name}: its entry point {entry:#x} lies outside the code")
            by_symbol = [m for m in self.metadata.values() if m.symbol == symbol.name]
            found[name] = Kernel(name, descriptor, self.metadata.get(name, by_symbol[0] if by_symbol else None), entry)
        return found

    def kernel(self, name: str | None = None) -> Kernel:
        """A kernel by name; without one, the only kernel.

        Raises:
            CodeObjectError: no such kernel, or several and no name.
        """
        known = ", ".join(self.kernels) or "none"
        if name is None and len(self.kernels) == 1:
            return next(iter(self.kernels.values()))
        if name is None:
            raise CodeObjectError(f"code object: it has {len(self.kernels)} kernels: name one of {known}")
        if name not in self.kernels:
            raise CodeObjectError(f"code object: it has no kernel {name!r}; it has {known}")
        return self.kernels[name]

    @cached_property
    def code(self) -> tuple[int, list[Instruction]]:
        """Virtual address of the code, and its instructions (``pc`` counts from there)."""
        segment = next((s for s in self.elf.segments if s.executable), None)
        if segment is None:
            raise CodeObjectError("code object: it has no code")
        return segment.address, Decoder(self.arch).decode(segment.data)
