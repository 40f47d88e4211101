"""What is outstanding: loads whose registers may not be used yet, by counter (CDNA3 ISA, section 4.4)."""

from dataclasses import dataclass, field

from opmux_asm.writer.errors import WriterError
from opmux_asm.writer.instructions import Instruction
from opmux_asm.writer.registers import Register

Places = frozenset[tuple[str, int]]
MOST_VM, MOST_LGKM = 63, 15
"""The largest counts that s_waitcnt can state."""


@dataclass
class Outstanding:
    """Operations in order of issue; of each the registers that it will write (none for stores and loads into LDS).

    Attributes:
        vector: what vmcnt counts.
        scalar: what lgkmcnt counts, with whether it is a scalar load, which completes in any order.
    """

    vector: list[Places] = field(default_factory=list)
    scalar: list[tuple[Places, bool]] = field(default_factory=list)

    def copy(self) -> "Outstanding":
        return Outstanding(list(self.vector), list(self.scalar))

    def is_end_of(self, other: "Outstanding") -> bool:
        """Whether all of it is what ``other`` has outstanding too, with nothing after it."""
        vector, scalar = len(self.vector), len(self.scalar)
        return (
            self.vector == other.vector[len(other.vector) - vector :]
            and self.scalar == other.scalar[len(other.scalar) - scalar :]
        )

    def issue(self, instruction: Instruction) -> None:
        """Check an instruction's registers and count what it leaves outstanding.

        Raises:
            WriterError: it uses a register whose load is not waited for.
        """
        used = {p for r in (*instruction.read, *instruction.written) for p in r.places}
        for places in (*self.vector, *(places for places, _ in self.scalar)):
            if instruction.unit in ("vmem", "lds", "smem") and not used & places:
                continue
            if late := used & places:
                kind, number = min(late)
                raise WriterError(
                    f"{instruction.name}: {kind}{number} is used while a load into it is outstanding:"
                    f"\n{instruction}\n  try: wait_for(...) before it"
                )
        written = frozenset(p for r in instruction.written for p in r.places) if instruction.is_load else frozenset()
        if instruction.unit == "vmem":
            self.vector.append(written)
        elif instruction.unit in ("lds", "smem"):
            self.scalar.append((written, instruction.unit == "smem"))

    def wait(self, vector: int | None, scalar: int | None) -> None:
        """Forget what a wait covers."""
        if vector is not None:
            self.vector = self.vector[len(self.vector) - vector :] if vector < len(self.vector) else self.vector
            self.vector = [] if vector == 0 else self.vector
        if scalar is not None:
            if scalar == 0:
                self.scalar = []
            elif scalar < len(self.scalar):
                kept = len(self.scalar) - scalar
                self.scalar = [s for k, s in enumerate(self.scalar) if k >= kept or s[1]]

    def needed(self, registers: tuple[Register, ...]) -> tuple[int | None, int | None]:
        """The largest counts after which the loads of these registers are complete; None where none is outstanding."""
        wanted = {p for r in registers for p in r.places}
        after = [len(self.vector) - k - 1 for k, places in enumerate(self.vector) if places & wanted]
        vector = min(after, default=None)
        ordered = [len(self.scalar) - k - 1 for k, (places, _) in enumerate(self.scalar) if places & wanted]
        scalar = min(ordered, default=None)
        if scalar is not None and any(any_order for _, any_order in self.scalar):
            scalar = 0
        return None if vector is None else min(vector, MOST_VM), None if scalar is None else min(scalar, MOST_LGKM)
