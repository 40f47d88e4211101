"""Device memory: host arrays at device addresses, far enough apart that no access past one meets the next."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from opmux_emulator.errors import LaunchError

FIRST = 1 << 41
"""The lowest device address that is given out; a code object's image lies below."""
GAP = 1 << 20
"""Bytes between allocations that belong to nobody."""

Bytes = npt.NDArray[np.uint8]


@dataclass
class Block:
    """An allocation.

    Attributes:
        base: device address.
        data: its bytes; a view of the caller's array.
        unwritten: for each byte 1 until something writes it; None where all was written from the start.
    """

    base: int
    data: Bytes
    writable: bool
    name: str
    unwritten: Bytes | None = None
    writer: npt.NDArray[np.uint64] = field(init=False)
    reader: npt.NDArray[np.uint32] = field(init=False)

    def __post_init__(self) -> None:
        self.forget_accesses()

    def forget_accesses(self) -> None:
        """Who accessed what: empty at the start of a launch."""
        self.writer = np.zeros(self.data.size // 4 + 2, np.uint64)
        self.reader = np.zeros(self.data.size // 4 + 2, np.uint32)


class Memory:
    """The allocations of a device."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._next = FIRST

    def add(
        self, array: npt.NDArray[np.generic], name: str = "", *, writable: bool = True, written: bool = True
    ) -> int:
        """Give an array a device address; the kernel works on the array itself.

        Args:
            array: contiguous, of any dtype.
            name: what reports call it.
            writable: whether the kernel may store to it.
            written: False for memory whose contents the kernel must not read before it wrote them.

        Returns:
            The device address of its first byte.

        Raises:
            LaunchError: it is not contiguous.
        """
        if not array.flags.c_contiguous:
            raise LaunchError(
                f"memory {name or len(self.blocks)}: expected a contiguous array, got strides {array.strides}"
            )
        data = array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)
        unwritten = None if written else np.ones(data.size, np.uint8)
        block = Block(self._next, data, writable, name or f"allocation {len(self.blocks)}", unwritten)
        self.blocks.append(block)
        self._next += (data.size + 2 * GAP - 1) // GAP * GAP
        return block.base

    def empty(self, size: int, name: str = "") -> int:
        """New memory of ``size`` bytes that nothing has written."""
        return self.add(np.full(size, 0xCD, np.uint8), name, written=False)

    def describe(self, address: int) -> str:
        """An address in words: which allocation it is in, or next to."""
        return describe(address, [(b.base, b.data.size, b.name) for b in self.blocks])


def describe(address: int, blocks: Sequence[tuple[int, int, str]]) -> str:
    """An address in words, among blocks of base, size and name."""
    for base, size, name in blocks:
        if base <= address < base + size:
            return f"{name} + {address - base:#x}"
    near = [(max(base - address, address - base - size), base, size, name) for base, size, name in blocks]
    distance, base, size, name = min(near, default=(GAP, 0, 0, ""))
    if distance < GAP // 2:
        return f"{name} + {address - base:#x}, outside its {size:#x} bytes"
    return f"{address:#x}, in no allocation"
