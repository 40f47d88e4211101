"""Wait states that the hardware does not enforce, and the assembler does not insert.

CDNA3 ISA, section 4.5 ("Manually Inserted Wait States") and section 7.5 ("Dependency Resolution"); for gfx950 the same
sections of the CDNA4 ISA. Only what the kernels here use; the emulator judges all of them.
"""

from dataclasses import dataclass, field

from opmux_asm.writer.instructions import Instruction

Place = tuple[str, int]
VECTOR = ("valu", "trans", "mfma")
FAR = -1000
PASSES = {"32x32x8": 8, "32x32x16": 8, "16x16x16": 4, "16x16x32": 4, "32x32x64": 16, "16x16x128": 8}
"""Passes of matrix instructions by shape, at most: a wait that is too long does no harm where loops end."""
MATRIX_MARGIN = 4
"""Wait states beyond the passes until a matrix result may be read (11 after 8 passes on gfx942, one more on gfx950)."""


@dataclass
class Slots:
    """At which issue slot something was last written, by register."""

    now: int = 0
    written: dict[str, dict[Place, int]] = field(default_factory=dict)
    passes: dict[Place, int] = field(default_factory=dict)

    def _since(self, what: str, place: Place) -> int:
        return self.now - self.written.get(what, {}).get(place, FAR) - 1

    def copy(self) -> "Slots":
        return Slots(self.now, {k: dict(v) for k, v in self.written.items()}, dict(self.passes))

    def join(self, other: "Slots") -> None:
        """Go on where two ways meet: of what each wrote, the latest counts, and the most passes."""
        for what, places in other.written.items():
            mine = self.written.setdefault(what, {})
            for place, at in places.items():
                mine[place] = max(mine.get(place, FAR), at - other.now + self.now)
        for place, passes in other.passes.items():
            self.passes[place] = max(self.passes.get(place, 0), passes)

    def needed(self, instruction: Instruction) -> int:
        """Wait states that must come before an instruction."""
        unit, most = instruction.unit, 0
        read = [p for r in instruction.read for p in r.places]
        written = [p for r in instruction.written for p in r.places]
        for place in read:
            for what, states in self._rules(instruction, unit, place):
                most = max(most, states - self._since(what, place))
        for place in (*read, *written):
            if unit != "mfma" and place in self.passes:
                most = max(most, self.passes[place] + MATRIX_MARGIN - self._since("mfma", place))
        if unit in VECTOR:
            for place in written:
                most = max(most, 2 - self._since("stored", place))
        if unit == "mfma":
            factors = [p for r in instruction.read[:2] for p in r.places]
            for place in factors:
                if place in self.passes:
                    most = max(most, self.passes[place] + MATRIX_MARGIN - self._since("mfma", place))
        if instruction.is_to_lds:
            most = max(most, 1 - self._since("salu", ("s", 124)))
        return most

    @staticmethod
    def _rules(instruction: Instruction, unit: str, place: Place) -> list[tuple[str, int]]:
        if place[0] == "s":
            if unit == "vmem":
                return [("valu", 5)]
            if instruction.name.startswith(("v_readlane", "v_writelane")):
                return [("valu", 4)]
            return [("valu", 2)] if unit in VECTOR else []
        if unit in ("valu", "trans"):
            rules = [("trans", 1)]
            if "_dpp" in instruction.name:
                return [*rules, ("valu", 2)]
            if instruction.name.startswith(("v_readlane", "v_readfirstlane")):
                return [*rules, ("valu", 1)]
            if instruction.name.startswith("v_permlane"):
                return [*rules, ("valu", 2)]
            return [*rules, ("part", 1)]
        return [("valu", 2)] if unit == "mfma" else []

    def issue(self, instruction: Instruction) -> None:
        """Count an instruction."""
        unit = instruction.unit
        if instruction.name == "s_nop":
            self.now += int(str(instruction.operands[0])) + 1
            return
        for register in instruction.written:
            for place in register.places:
                self._write(instruction, unit, place)
        if unit == "vmem" and "_store_" in instruction.name and instruction.name.endswith(("x3", "x4")):
            for register in instruction.read:
                for place in register.places:
                    self.written.setdefault("stored", {})[place] = self.now
        self.now += 1

    def _write(self, instruction: Instruction, unit: str, place: Place) -> None:
        for what in ("valu", "trans", "part", "mfma"):
            self.written.get(what, {}).pop(place, None)
        self.passes.pop(place, None)
        note = self.written.setdefault
        if unit in ("valu", "trans"):
            note("valu", {})[place] = self.now
        if unit == "trans":
            note("trans", {})[place] = self.now
        if "sdwa" in instruction.name or "op_sel:" in instruction.modifiers:
            note("part", {})[place] = self.now
        if unit == "mfma":
            note("mfma", {})[place] = self.now
            self.passes[place] = next((n for shape, n in PASSES.items() if shape in instruction.name), 16)
        if unit == "salu":
            note("salu", {})[place] = self.now
