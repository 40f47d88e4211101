"""What a cubin says of its kernel, read from the ELF file with no toolkit; code that needs local memory is refused."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from opmux.plugin import BuildFailed
from opmux_jit import Entry

# Attributes in sections .nv.info, under the names that nvdisasm and cuobjdump print (EIATTR_FRAME_SIZE, ...).
FRAME_SIZE, KPARAM_INFO, REGCOUNT, KPARAM_INFO_2 = 0x11, 0x17, 0x2F, 0x45
WITH_VALUE = 4
"""The form of an attribute whose value follows it; all others have theirs in place of the value's length."""


class Resources(NamedTuple):
    """What a kernel in a cubin needs.

    Attributes:
        parameters: offset and size in bytes of each parameter, in order.
        registers: of a thread.
        local: bytes of local memory of a thread: a stack frame, in which registers that do not suffice are kept.
    """

    parameters: list[tuple[int, int]]
    registers: int
    local: int


def read(code: bytes) -> Resources:
    """The resources of the kernel in a cubin; of several, the most that one needs.

    Raises:
        ValueError: it is no ELF file of 64 bits, or is cut off.
    """
    parameters, registers, local = [], 0, 0
    try:
        for attribute, value in _attributes(code):
            if attribute == KPARAM_INFO:
                _, ordinal, offset, about = struct.unpack("<IHHI", value)
                parameters.append((ordinal, offset, about >> 18))
            elif attribute == KPARAM_INFO_2:
                _, ordinal, offset, size, _ = struct.unpack("<IHHHH", value)
                parameters.append((ordinal, offset, size))
            elif attribute == REGCOUNT:
                registers = max(registers, struct.unpack("<II", value)[1])
            elif attribute == FRAME_SIZE:
                local = max(local, struct.unpack("<II", value)[1])
    except (struct.error, IndexError, OverflowError, ValueError) as error:
        raise ValueError(f"not a cubin: {error}") from None
    return Resources([(offset, size) for _, offset, size in sorted(parameters)], registers, local)


class Spills(BuildFailed):
    """A kernel uses local memory in this config; in others, or for other calls, it may not."""

    one_kernel = True


def checked(entry: Entry) -> Entry:
    """Machine code, if its kernel keeps everything in registers and shared memory.

    Code that spills computes the same, many times slower: another implementation is better. So it is refused as code
    that does not compile is.

    Raises:
        Spills: it uses local memory.
        BuildFailed: it is no cubin.
    """
    source = entry.source
    try:
        local = read(entry.code).local
    except ValueError as error:
        raise BuildFailed(
            f"{source.name}: the machine code for {source.arch} expected a cubin, got {len(entry.code)} bytes that are "
            f"{error}; build it again"
        ) from None
    if not local:
        return entry
    hints = [flag.removeprefix("--hint=") for flag in source.flags if flag.startswith("--hint=")]
    raise Spills(
        f"{source.name}: the machine code for {source.arch} expected no local memory, got {local} bytes per thread, "
        f"compiled with {', '.join(hints) or 'no hints'}; registers spill: try other configs (opmux tune), or take "
        "another backend"
    )


def _attributes(code: bytes) -> Iterator[tuple[int, bytes]]:
    """The attributes that have a value, in all sections .nv.info of an ELF file of 64 bits."""
    if code[:5] != b"\x7fELF\x02":
        raise ValueError("no ELF file of 64 bits")
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
            if form == WITH_VALUE:
                yield attribute, code[place : place + length]
                place += length
