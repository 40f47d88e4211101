"""The metadata note of a code object (LLVM's AMDGPUUsage, "Code Object V3 and Above Metadata")."""

from dataclasses import dataclass
from typing import Any

import msgpack

from opmux_emulator.codeobject.elf import Elf
from opmux_emulator.errors import CodeObjectError

NT_AMDGPU_METADATA = 32
LARGEST_SEGMENT = 1 << 16
"""Bytes of kernel arguments: a damaged note may claim anything."""


@dataclass(frozen=True)
class Argument:
    """One argument: byte offset and size in the kernarg segment; ``kind`` is LLVM's ``.value_kind``."""

    name: str
    offset: int
    size: int
    kind: str

    @property
    def is_hidden(self) -> bool:
        return self.kind.startswith("hidden_")

    @property
    def is_pointer(self) -> bool:
        return self.kind == "global_buffer"


@dataclass(frozen=True)
class KernelMetadata:
    """What the note says of one kernel."""

    name: str
    symbol: str
    kernarg: int
    max_workgroup: int
    arguments: tuple[Argument, ...]


def read_metadata(elf: Elf) -> dict[str, KernelMetadata]:
    """The kernels that the note describes, by name; none where there is no note.

    Raises:
        CodeObjectError: a note that is no valid MessagePack map.
    """
    for owner, kind, data in elf.notes:
        if owner != "AMDGPU" or kind != NT_AMDGPU_METADATA:
            continue
        try:
            root = msgpack.unpackb(data, strict_map_key=False)
            return {kernel[".name"]: of_kernel(kernel) for kernel in root["amdhsa.kernels"]}
        except (ValueError, KeyError, TypeError, msgpack.exceptions.ExtraData) as error:
            raise CodeObjectError(f"code object: its metadata note cannot be read: {error!r}") from None
    return {}


def of_kernel(kernel: dict[str, Any]) -> KernelMetadata:
    """One kernel's part of the note."""
    arguments = tuple(
        Argument(str(a.get(".name", "")), a[".offset"], a[".size"], str(a[".value_kind"]))
        for a in kernel.get(".args", ())
    )
    for argument in arguments:
        if argument.offset < 0 or not 0 <= argument.offset + argument.size <= LARGEST_SEGMENT or argument.size < 0:
            raise CodeObjectError(
                f"code object: argument {argument.name!r} of {kernel['.name']} has offset {argument.offset} and size "
                f"{argument.size}"
            )
    symbol = str(kernel.get(".symbol", kernel[".name"] + ".kd"))
    size, largest = int(kernel.get(".kernarg_segment_size", 0)), int(kernel.get(".max_flat_workgroup_size", 1024))
    return KernelMetadata(str(kernel[".name"]), symbol, size, largest, arguments)
