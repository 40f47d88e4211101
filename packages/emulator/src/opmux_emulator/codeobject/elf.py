"""Reading the ELF container of a code object (System V ABI; LLVM's AMDGPUUsage, "ELF Code Object")."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from opmux_emulator.errors import CodeObjectError

EM_AMDGPU = 224
MACHINES = {0x3F: "gfx90a", 0x4C: "gfx942", 0x4F: "gfx950"}
"""``EF_AMDGPU_MACH`` of the supported archs."""
SHT_SYMTAB, SHT_RELA, SHT_NOTE, SHT_DYNSYM = 2, 4, 7, 11
PT_LOAD, PT_NOTE = 1, 4
R_AMDGPU_ABS64, R_AMDGPU_RELATIVE64 = 3, 13


@dataclass(frozen=True)
class Symbol:
    """A symbol: virtual address and size in bytes."""

    name: str
    value: int
    size: int


@dataclass(frozen=True)
class Segment:
    """A loaded segment: virtual address, bytes in the file, size in memory, and whether it holds code."""

    address: int
    data: bytes
    size: int
    executable: bool


@dataclass(frozen=True)
class Relocation:
    """A place that is to hold an address in the loaded image: its virtual address, and that address's own."""

    offset: int
    addend: int


@dataclass(frozen=True)
class Elf:
    """What a code object's container holds."""

    arch: str
    segments: tuple[Segment, ...]
    symbols: tuple[Symbol, ...]
    notes: tuple[tuple[str, int, bytes], ...]
    relocations: tuple[Relocation, ...] = ()


def fields(data: bytes, layout: str, offset: int, what: str) -> tuple[int, ...]:
    """Unpack, or say that the file ends within ``what``."""
    if offset < 0 or offset + struct.calcsize(layout) > len(data):
        raise CodeObjectError(f"code object: the file is truncated: {what} at byte {offset} of {len(data)}")
    return struct.unpack_from(layout, data, offset)


def part(data: bytes, offset: int, size: int, what: str) -> bytes:
    """Bytes of the file, or say that it ends within ``what``."""
    if offset + size > len(data):
        raise CodeObjectError(
            f"code object: the file is truncated: {what} needs {offset + size} bytes, got {len(data)}"
        )
    return data[offset : offset + size]


def read_elf(data: bytes) -> Elf:
    """Read a code object.

    Raises:
        CodeObjectError: no ELF file, one for another machine, of an unsupported arch, or a truncated one.
    """
    if data[:4] != b"\x7fELF":
        raise CodeObjectError(f"code object: expected an ELF file, got one that begins with {data[:4]!r}")
    if data[4:6] != b"\x02\x01":
        raise CodeObjectError("code object: expected a 64-bit little-endian ELF file")
    header = fields(data, "<HHIQQQIHHHHHH", 16, "the header")
    _, machine, _, _, segments_at, sections_at, flags, _, segment_size, segments, section_size, sections, _ = header
    if machine != EM_AMDGPU:
        raise CodeObjectError(f"code object: expected ELF machine {EM_AMDGPU} (AMD GPU), got {machine}")
    arch = MACHINES.get(flags & 0xFF)
    if arch is None:
        known = ", ".join(MACHINES.values())
        raise CodeObjectError(f"code object: its arch (EF_AMDGPU_MACH {flags & 0xFF:#x}) is none of {known}")
    loaded, notes = [], []
    for k in range(segments):
        kind, access, offset, address, _, in_file, in_memory, _ = fields(
            data, "<IIQQQQQQ", segments_at + k * segment_size, f"program header {k}"
        )
        if kind == PT_LOAD:
            loaded.append(Segment(address, part(data, offset, in_file, f"segment {k}"), in_memory, bool(access & 1)))
        elif kind == PT_NOTE:
            notes += list(notes_of(part(data, offset, in_file, f"segment {k}")))
    symbols: dict[str, Symbol] = {}
    relocations: list[Relocation] = []
    for k in range(sections):
        _, kind, _, _, offset, size, link, _, _, _ = fields(
            data, "<IIQQQQIIQQ", sections_at + k * section_size, f"section header {k}"
        )
        if kind == SHT_NOTE and not notes:
            notes += list(notes_of(part(data, offset, size, f"section {k}")))
        if kind == SHT_RELA:
            relocations += relocations_of(
                data, part(data, offset, size, f"section {k}"), sections_at + link * section_size
            )
        if kind in (SHT_SYMTAB, SHT_DYNSYM):
            strings = fields(data, "<IIQQQQIIQQ", sections_at + link * section_size, f"section header {link}")
            names = part(data, strings[4], strings[5], f"section {link}")
            table = part(data, offset, size, f"section {k}")
            for at in range(0, len(table) - 23, 24):
                name, _, _, _, value, length = struct.unpack_from("<IBBHQQ", table, at)
                text = names[name:].split(b"\0", 1)[0].decode("utf-8", "replace")
                if text:
                    symbols[text] = Symbol(text, value, length)
    return Elf(arch, tuple(loaded), tuple(symbols.values()), tuple(notes), tuple(relocations))


def relocations_of(data: bytes, table: bytes, symbols_at: int) -> Iterator[Relocation]:
    """The dynamic relocations of 64-bit addresses in a section; ``symbols_at`` is its symbol table's header.

    Raises:
        CodeObjectError: one of another kind.
    """
    symbols = fields(data, "<IIQQQQIIQQ", symbols_at, "the section header of relocated symbols")[4]
    for at in range(0, len(table) - 23, 24):
        offset, info, addend = struct.unpack_from("<QQq", table, at)
        kind, symbol = info & 0xFFFFFFFF, info >> 32
        if kind not in (R_AMDGPU_ABS64, R_AMDGPU_RELATIVE64):
            raise CodeObjectError(f"code object: it has a relocation of kind {kind} at {offset:#x}: link it first")
        if kind == R_AMDGPU_ABS64:
            addend += fields(data, "<Q", symbols + 24 * symbol + 8, f"symbol {symbol}")[0]
        yield Relocation(offset, addend)


def notes_of(data: bytes) -> Iterator[tuple[str, int, bytes]]:
    """The notes of a section or segment: owner, type, contents."""
    at = 0
    while at + 12 <= len(data):
        name_size, size, kind = struct.unpack_from("<III", data, at)
        at += 12
        name = data[at : at + name_size].rstrip(b"\0").decode("utf-8", "replace")
        at += (name_size + 3) & ~3
        if at + size > len(data):
            raise CodeObjectError(f"code object: the note of {name!r} is truncated")
        yield name, kind, data[at : at + size]
        at += (size + 3) & ~3
