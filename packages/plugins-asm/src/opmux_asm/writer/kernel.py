"""A kernel as it is written: instruction by instruction, with what is outstanding and what must be waited for."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from opmux_asm.writer.errors import WriterError
from opmux_asm.writer.hazards import Slots
from opmux_asm.writer.instructions import Instruction, Operand
from opmux_asm.writer.registers import File, Register
from opmux_asm.writer.waits import Outstanding

SIZES = {"p": 8, "q": 8, "i": 4, "I": 4, "f": 4}
LDS_BYTES = {"gfx942": 65536, "gfx950": 163840}
WAVE = 64


@dataclass(frozen=True)
class Argument:
    """An argument: ``letter`` as for opmux-jit's launcher, ``p`` a pointer, ``i I q`` integers, ``f`` float32."""

    name: str
    letter: str


class Kernel:
    """A kernel; a mnemonic is a method: ``k.v_add_f32(total, x[0], x[1])``.

    The first scalar registers are what the launch fills: the address of the arguments, then the workgroup's ids.

    Attributes:
        name: its symbol.
        arch: gfx942 or gfx950.
        threads: of a workgroup.
        about: what it computes, in a line or more; a comment in the source.
        group: ids of the workgroup, x y z.
        thread: id of the thread in its workgroup.
        lds: bytes of LDS.
    """

    def __init__(
        self, name: str, arch: str, threads: int, arguments: Sequence[Argument], about: str, dims: int = 1
    ) -> None:
        self.name, self.arch, self.threads, self.arguments, self.about = name, arch, threads, tuple(arguments), about
        self.dims = dims
        self.files = {kind: File(kind) for kind in "sva"}
        self.lines: list[str | Instruction] = []
        self.outstanding, self.slots = Outstanding(), Slots()
        self.lds, self._labels = 0, 0
        self.live: set[tuple[str, str]] = set()
        self._segment = self.s("kernarg", 2)
        self.group = self.s("group", dims)
        self.thread = self.v("thread")

    # Registers and LDS

    def s(self, name: str, count: int = 1) -> Register:
        """Scalar registers."""
        return self._take("s", name, count)

    def v(self, name: str, count: int = 1) -> Register:
        """Vector registers."""
        return self._take("v", name, count)

    def a(self, name: str, count: int = 1) -> Register:
        """Accumulation registers."""
        return self._take("a", name, count)

    def _take(self, kind: str, name: str, count: int) -> Register:
        if (kind, name) in self.live:
            raise WriterError(f"{self.name}: {kind}_{name} is taken: free it, or choose another name")
        register = self.files[kind].take(name, count)
        self.live.add((kind, name))
        self.lines.append(f"  .set {kind}_{name}, {register.first}")
        return register

    def free(self, *registers: Register) -> None:
        """Give allocations back, whole."""
        for register in registers:
            self.files[register.kind].give_back(register)
            self.live.discard((register.kind, register.name))

    @contextmanager
    def temporary(self, name: str, count: int = 1, kind: str = "v") -> Iterator[Register]:
        """Registers that are free again afterwards."""
        register = self._take(kind, name, count)
        yield register
        self.free(register)

    def allocate_lds(self, size: int, aligned: int = 16) -> int:
        """So many bytes of LDS; their offset.

        Raises:
            WriterError: a workgroup has no room for them.
        """
        at = -(-self.lds // aligned) * aligned
        if at + size > LDS_BYTES[self.arch]:
            raise WriterError(
                f"{self.name}: {self.arch} has {LDS_BYTES[self.arch]} bytes of LDS, asked for {at + size}"
            )
        self.lds = at + size
        return at

    # Arguments

    @property
    def layout(self) -> list[tuple[Argument, int]]:
        """Each argument with its byte offset in the kernarg segment."""
        placed, at = [], 0
        for argument in self.arguments:
            size = SIZES[argument.letter]
            at = -(-at // size) * size
            placed.append((argument, at))
            at += size
        return placed

    @property
    def kernarg_bytes(self) -> int:
        """Bytes of the kernarg segment, a multiple of 8."""
        argument, at = self.layout[-1]
        return -(-(at + SIZES[argument.letter]) // 8) * 8

    @property
    def signature(self) -> str:
        """The arguments' letters."""
        return "".join(a.letter for a in self.arguments)

    def load_arguments(self) -> dict[str, Register]:
        """Load every argument into scalar registers, and wait for them."""
        size = self.kernarg_bytes // 4
        whole = self.s("arguments", -(-size // 4) * 4)
        at = 0
        while at < size:
            step = next(n for n in (16, 8, 4, 2) if n <= size - at and at % min(n, 4) == 0)
            suffix = f"x{step}"
            self.emit(Instruction(f"s_load_dword{suffix}", (whole[at : at + step], self._segment, 4 * at)))
            at += step
        self.wait(lgkm=0)
        found = {}
        for argument, offset in self.layout:
            count = SIZES[argument.letter] // 4
            register = Register("s", whole.first + offset // 4, count, f"{argument.name}")
            self.lines.append(f"  .set s_{argument.name}, {register.first}")
            self.live.add(("s", argument.name))
            found[argument.name] = register
        return found

    # Instructions

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith(("v_", "s_", "ds_", "buffer_", "global_")):
            raise AttributeError(name)

        def write(*operands: Operand, mods: str = "", note: str = "") -> None:
            self.emit(Instruction(name, operands, mods, note))

        return write

    def emit(self, instruction: Instruction) -> None:
        """Append an instruction, after the wait states that it needs.

        Raises:
            WriterError: it uses a register whose load is not waited for.
        """
        try:
            self.outstanding.issue(instruction)
        except WriterError as error:
            raise WriterError(f"{self.name}: {error}") from None
        missing = self.slots.needed(instruction)
        while missing > 0:
            pause = Instruction("s_nop", (min(missing, 8) - 1,))
            self.slots.issue(pause)
            self.lines.append(pause)
            missing -= 8
        self.slots.issue(instruction)
        self.lines.append(instruction)

    def emit_read(self, target: Register, address: Register, offset: int) -> None:
        """Read 4, 8 or 16 bytes of LDS."""
        name = {1: "ds_read_b32", 2: "ds_read_b64", 4: "ds_read_b128"}[len(target)]
        self.emit(Instruction(name, (target, address), f"offset:{offset}" if offset else ""))

    def emit_buffer(
        self, what: str, data: Register, offset: Register, buffer: Register, immediate: int = 0,
        scalar: Register | int = 0,
    ) -> None:  # fmt: skip
        """``buffer_load`` or ``buffer_store`` of 4, 8 or 16 bytes.

        Args:
            what: ``load`` or ``store``.
            data: the registers.
            offset: of each lane, in bytes.
            buffer: the descriptor.
            immediate: added to the offset, up to 4095.
            scalar: an offset of all lanes.
        """
        name = {1: "dword", 2: "dwordx2", 3: "dwordx3", 4: "dwordx4"}[len(data)]
        mods = "offen" + (f" offset:{immediate}" if immediate else "")
        self.emit(Instruction(f"buffer_{what}_{name}", (data, offset, buffer, scalar), mods))

    def comment(self, text: str) -> None:
        """A comment on lines of its own, after an empty line."""
        self.lines.append("")
        self.lines += [f"  // {line}" for line in text.splitlines()]

    def wait(self, vm: int | None = None, lgkm: int | None = None) -> None:
        """``s_waitcnt``: until at most so many operations of each counter are outstanding."""
        words = ([] if vm is None else [f"vmcnt({vm})"]) + ([] if lgkm is None else [f"lgkmcnt({lgkm})"])
        if not words:
            return
        self.outstanding.wait(vm, lgkm)
        waiting = Instruction("s_waitcnt", (" ".join(words),))
        self.slots.issue(waiting)
        self.lines.append(waiting)

    def wait_for(self, *registers: Register) -> None:
        """Wait until the loads into these registers are complete, and no longer."""
        self.wait(*self.outstanding.needed(registers))

    def barrier(self) -> None:
        """Let all waves of the workgroup come here; LDS accesses before it are complete."""
        if self.outstanding.scalar:
            self.wait(lgkm=0)
        self.s_barrier()

    # Control flow

    def label(self, name: str) -> str:
        """A new label's text, not placed yet."""
        self._labels += 1
        return f"{self.name}.{name}.{self._labels}"

    def place(self, label: str) -> None:
        """Put a label here."""
        self.lines.append(f"{label}:")

    @contextmanager
    def loop(self, name: str, times: Register) -> Iterator[None]:
        """Repeat the body ``times`` times, at least once; counts the register down to 0.

        Wait states that only a second iteration needs are written at the end of the body.

        Raises:
            WriterError: the second iteration uses a register that the end of the first leaves outstanding.
        """
        label = self.label(name)
        self.place(label)
        start = len(self.lines)
        yield
        end = len(self.lines)
        self.s_sub_u32(times, times, 1)
        self.s_cmp_lg_u32(times, 0)
        self.s_cbranch_scc1(label)
        missing = self._missing_when_repeated(name, start)
        for states in [8] * (missing // 8) + [missing % 8] * (missing % 8 > 0):
            self.lines.insert(end, Instruction("s_nop", (states - 1,)))

    @contextmanager
    def skipped_if(self, condition: str) -> Iterator[None]:
        """Instructions that are skipped if a condition holds, as ``scc1`` or ``vccz``.

        What comes after them is checked against both ways there. They may wait for what is outstanding, but all that
        they issue themselves must be complete at their end.

        Raises:
            WriterError: they leave a load or a store of their own outstanding.
        """
        label = self.label("after")
        self.emit(Instruction(f"s_cbranch_{condition}", (label,)))
        outstanding, slots = self.outstanding.copy(), self.slots.copy()
        yield
        if not self.outstanding.is_end_of(outstanding):
            raise WriterError(f"{self.name}: instructions that may be skipped leave an access outstanding: wait for it")
        self.outstanding = outstanding
        self.slots.join(slots)
        self.place(label)

    def _missing_when_repeated(self, name: str, start: int) -> int:
        """Go through the body once more, from what its end leaves behind; the wait states that it lacks."""
        missing = 0
        outstanding, slots = self.outstanding.copy(), self.slots.copy()
        skipped: dict[str, tuple[Outstanding, Slots]] = {}
        for line in self.lines[start:]:
            if not isinstance(line, Instruction):
                if line.removesuffix(":") in skipped:
                    outstanding, others = skipped.pop(line.removesuffix(":"))
                    slots.join(others)
                continue
            if line.name.startswith("s_cbranch_"):
                skipped[str(line.operands[0])] = outstanding.copy(), slots.copy()
            if line.name == "s_waitcnt":
                outstanding.wait(*counts_of(str(line.operands[0])))
            else:
                try:
                    outstanding.issue(line)
                except WriterError as error:
                    raise WriterError(f"{self.name}, again in loop {name}: {error}") from None
            missing = max(missing, slots.needed(line))
            slots.issue(line)
        return missing

    def note(self, text: str) -> None:
        """A comment at the end of the last instruction's line."""
        last = self.lines[-1]
        if isinstance(last, Instruction):
            self.lines[-1] = replace(last, note=text)


def counts_of(text: str) -> tuple[int | None, int | None]:
    """The counts of a written ``s_waitcnt``."""
    found = dict(word.rstrip(")").split("(") for word in text.split())
    vector, scalar = found.get("vmcnt"), found.get("lgkmcnt")
    return None if vector is None else int(vector), None if scalar is None else int(scalar)
