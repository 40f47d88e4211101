"""Rows of a tensor in registers: each thread of a workgroup holds a few accesses of 16 bytes of a row."""

from dataclasses import dataclass

from opmux_asm.kernels.numbers import BYTES
from opmux_asm.writer import Kernel, Register

RAW_BUFFER = 0x00027000
"""Word 3 of a buffer descriptor: raw data of 32 bits (CDNA3 ISA, section 8.1.8)."""
ACCESS = 16
"""Bytes that a lane loads or stores at once."""


@dataclass(frozen=True)
class Tile:
    """How a workgroup holds a row.

    Attributes:
        waves: of a workgroup.
        chunks: groups of elements that each thread holds.
        per: elements of a group: 16 bytes of the first tensor.
    """

    waves: int
    chunks: int
    per: int

    @property
    def threads(self) -> int:
        return 64 * self.waves

    @property
    def columns(self) -> int:
        """The longest row."""
        return self.threads * self.chunks * self.per


def descriptor(k: Kernel, name: str, pointer: Register, size: Register, row: Register | None, stride: Register | None
) -> Register:  # fmt: skip
    """A buffer that begins at a row of a tensor and has ``size`` bytes: what lies past them reads as 0, unstored.

    Args:
        k: the kernel.
        name: of its registers.
        pointer: the tensor's address.
        size: bytes of a row.
        row: which row; None for a tensor that is one row.
        stride: bytes from a row to the next.
    """
    buffer = k.s(name, 4)
    if row is None or stride is None:
        k.s_mov_b32(buffer[0], pointer[0])
        k.s_mov_b32(buffer[1], pointer[1])
    else:
        k.s_mul_i32(buffer[0], row, stride)
        k.s_mul_hi_u32(buffer[1], row, stride)
        k.s_add_u32(buffer[0], buffer[0], pointer[0])
        k.s_addc_u32(buffer[1], buffer[1], pointer[1])
    k.s_mov_b32(buffer[2], size)
    raw_buffer(k, buffer)
    return buffer


def raw_buffer(k: Kernel, buffer: Register) -> None:
    """Complete a descriptor that has an address and a size: raw data, in steps of no stride."""
    k.s_and_b32(buffer[1], buffer[1], 0xFFFF)
    k.s_mov_b32(buffer[3], RAW_BUFFER)


class Access:
    """Where a thread's elements lie, for a dtype: an offset in bytes for each chunk, shared by all tensors of it."""

    def __init__(self, k: Kernel, tile: Tile) -> None:
        self.k, self.tile = k, tile
        self.offsets: dict[int, Register] = {}

    def of(self, dtype: str) -> Register:
        """The offsets for a dtype, a register for each chunk."""
        size = BYTES[dtype] * self.tile.per
        if size not in self.offsets:
            k = self.k
            offset = self.offsets[size] = k.v(f"at{size}", self.tile.chunks)
            k.v_lshlrev_b32(offset[0], size.bit_length() - 1, k.thread)
            for chunk in range(1, self.tile.chunks):
                k.v_add_u32(offset[chunk], chunk * size * self.tile.threads, offset[0])
        return self.offsets[size]

    def load(self, dtype: str, buffer: Register, name: str) -> list[Register]:
        """Begin to load a row; the packed elements of each chunk."""
        offsets, words = self.of(dtype), BYTES[dtype] * self.tile.per // 4
        loaded = []
        for chunk in range(self.tile.chunks):
            packed = self.k.v(f"{name}{chunk}", words)
            for i in range(0, words, 4):
                part = packed[i : i + min(4, words)]
                self.k.emit_buffer("load", part, offsets[chunk], buffer, 4 * i)
            loaded.append(packed)
        return loaded

    def store(self, dtype: str, buffer: Register, chunk: int, packed: Register) -> None:
        """Store a chunk of a row."""
        for i in range(0, len(packed), 4):
            part = packed[i : i + min(4, len(packed))]
            self.k.emit_buffer("store", part, self.of(dtype)[chunk], buffer, 4 * i)
