"""Registers by name, and their allocation."""

from collections.abc import Iterator
from dataclasses import dataclass

from opmux_asm.writer.errors import WriterError

ALIGNMENTS = {"s": {1: 1, 2: 2, 3: 1}, "v": {1: 1}, "a": {1: 1}}
"""By kind and number of registers; more registers than are listed are aligned to 4 (s) or 2 (v, a): gfx90a on needs
vector operands of 64 bits and more to be even."""
LIMITS = {"s": 100, "v": 256, "a": 256}


@dataclass(frozen=True)
class Register:
    """One register or consecutive ones.

    Attributes:
        kind: ``s``, ``v``, ``a``, or empty for one that has a name of its own (VCC, EXEC, M0).
        first: number of the first; for a named one that of its place in the scalar registers.
        count: how many.
        name: the symbol that stands for the first register of its allocation.
        offset: from that to ``first``.
        modifier: what stands before it as an operand, ``-`` or ``|``.
    """

    kind: str
    first: int
    count: int = 1
    name: str = ""
    offset: int = 0
    modifier: str = ""

    def __getitem__(self, key: int | slice) -> "Register":
        begin, end = (key, key + 1) if isinstance(key, int) else (key.start or 0, key.stop or self.count)
        if not 0 <= begin < end <= self.count:
            raise WriterError(f"{self.name}: it has {self.count} registers, asked for {key}")
        return Register(self.kind, self.first + begin, end - begin, self.name, self.offset + begin)

    def __iter__(self) -> Iterator["Register"]:
        return (self[k] for k in range(self.count))

    def __len__(self) -> int:
        return self.count

    def __neg__(self) -> "Register":
        return Register(self.kind, self.first, self.count, self.name, self.offset, "-")

    def __abs__(self) -> "Register":
        return Register(self.kind, self.first, self.count, self.name, self.offset, "|")

    def __str__(self) -> str:
        text = self.name if not self.kind else self._indexed()
        return f"|{text}|" if self.modifier == "|" else self.modifier + text

    def _indexed(self) -> str:
        symbol = f"{self.kind}_{self.name}"
        start = symbol + (f"+{self.offset}" if self.offset else "")
        if self.count == 1:
            return f"{self.kind}[{start}]"
        return f"{self.kind}[{start}:{symbol}+{self.offset + self.count - 1}]"

    @property
    def places(self) -> tuple[tuple[str, int], ...]:
        """Each register as kind and number; those with names of their own count as scalar."""
        return tuple((self.kind or "s", self.first + k) for k in range(self.count))


VCC = Register("", 106, 2, "vcc")
M0 = Register("", 124, 1, "m0")
EXEC = Register("", 126, 2, "exec")
SCC = Register("", 253, 1, "scc")
OFF = "off"


class File:
    """The registers of one kind: first fit, lowest first."""

    def __init__(self, kind: str, reserved: int = 0) -> None:
        self.kind, self.taken = kind, set(range(reserved))
        self.most = reserved

    def take(self, name: str, count: int) -> Register:
        """So many consecutive registers.

        Raises:
            WriterError: no room.
        """
        aligned = ALIGNMENTS[self.kind].get(count, 4 if self.kind == "s" else 2)
        for first in range(0, LIMITS[self.kind] - count + 1, aligned):
            if self.taken.isdisjoint(range(first, first + count)):
                self.taken.update(range(first, first + count))
                self.most = max(self.most, first + count)
                return Register(self.kind, first, count, name)
        raise WriterError(f"{name}: no {count} registers of kind {self.kind!r} are free, {len(self.taken)} are taken")

    def give_back(self, register: Register) -> None:
        """Free registers, which must be taken.

        Raises:
            WriterError: they are free already.
        """
        numbers = set(range(register.first, register.first + register.count))
        if not numbers <= self.taken:
            raise WriterError(f"{register.name}: it is freed twice")
        self.taken -= numbers
