"""Kernel descriptors: 64 bytes that say what a kernel starts with (LLVM's AMDGPUUsage, "Kernel Descriptor")."""

import struct
from dataclasses import dataclass

from opmux_emulator.errors import CodeObjectError

SIZE = 64


@dataclass(frozen=True)
class Descriptor:
    """What a kernel's descriptor says.

    Attributes:
        lds: bytes of LDS, without the dynamic part.
        scratch: bytes of scratch for each lane.
        kernarg: bytes of arguments; 0 in some hand-written kernels, whose metadata say it.
        entry: byte offset of the first instruction from the descriptor.
        vgprs: vector registers allocated, accumulation registers included.
        accum_offset: where the accumulation registers begin among them.
        sgprs: scalar registers; these archs always allocate all.
        mode: rounding, denormals, IEEE and DX10_CLAMP, laid out as the MODE register.
        preload: dwords of the arguments preloaded into user registers.
    """

    lds: int
    scratch: int
    kernarg: int
    entry: int
    rsrc1: int
    rsrc2: int
    rsrc3: int
    properties: int
    preload: int

    @property
    def vgprs(self) -> int:
        return ((self.rsrc1 & 63) + 1) * 8

    @property
    def accum_offset(self) -> int:
        return ((self.rsrc3 & 63) + 1) * 4

    @property
    def sgprs(self) -> int:
        return 102

    @property
    def mode(self) -> int:
        rounding_and_denormals = self.rsrc1 >> 12 & 0xFF
        clamp, ieee, saturate = self.rsrc1 >> 21 & 1, self.rsrc1 >> 23 & 1, self.rsrc1 >> 26 & 1
        return rounding_and_denormals | clamp << 8 | ieee << 9 | saturate << 23

    @property
    def user_sgprs(self) -> int:
        """Scalar registers that the launch fills, before the workgroup ids."""
        return self.rsrc2 >> 1 & 31

    @property
    def workgroup_ids(self) -> tuple[bool, bool, bool]:
        """Which of x, y, z come in a scalar register."""
        return bool(self.rsrc2 >> 7 & 1), bool(self.rsrc2 >> 8 & 1), bool(self.rsrc2 >> 9 & 1)

    @property
    def has_workgroup_info(self) -> bool:
        return bool(self.rsrc2 >> 10 & 1)

    @property
    def has_private_offset(self) -> bool:
        """A scalar register with the wave's scratch offset; with architected flat scratch there is none."""
        return bool(self.rsrc2 & 1)

    @property
    def workitem_ids(self) -> int:
        """0: x; 1: x and y; 2: x, y and z. All packed in v0 on these archs."""
        return self.rsrc2 >> 11 & 3


def read_descriptor(data: bytes, kernel: str) -> Descriptor:
    """The descriptor in 64 bytes.

    Raises:
        CodeObjectError: too few bytes.
    """
    if len(data) < SIZE:
        raise CodeObjectError(f"{kernel}: its descriptor is truncated: expected {SIZE} bytes, got {len(data)}")
    lds, scratch, kernarg, entry, rsrc3, rsrc1, rsrc2, properties, preload = struct.unpack_from("<III4xq20xIIIHH", data)
    return Descriptor(lds, scratch, kernarg, entry, rsrc1, rsrc2, rsrc3, properties, preload & 127)
