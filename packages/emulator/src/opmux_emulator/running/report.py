"""What a launch did: judgements and counts."""

from dataclasses import dataclass, field

from opmux_emulator.schedule.model import Schedule

RULES = {
    "outstanding": "a register is used while the load into it, or an operation on it, is outstanding",
    "unwritten-register": "a value that nothing wrote is used",
    "unwritten-memory": "memory that nothing wrote is read",
    "unwritten-lds": "LDS that nothing wrote is read",
    "lds-race": "two waves access the same LDS with no barrier between, and one writes",
    "global-race": "two workgroups access the same memory with nothing to order them, and one writes",
    "out-of-bounds": "an access outside the allocations",
    "lds-bounds": "an access outside the workgroup's LDS",
    "misaligned": "an access that is not aligned",
    "wait-states": "too few wait states after the instruction that this one depends on",
    "barrier": "a barrier that not all waves reach",
    "resources": "a register beyond those that the descriptor allocates",
    "unsupported": "an instruction that cannot be executed",
    "endless": "the limit of instructions of a wave is reached",
}
"""Every rule, in the interpreter's order. All are errors unless a launch leaves some out."""


@dataclass(frozen=True)
class Judgement:
    """A rule broken.

    Attributes:
        rule: a key of :data:`RULES`.
        kernel: whose.
        pc: byte offset of the instruction from the start of the code.
        instruction: its text.
        group: workgroup in x, y, z.
        wave: within the workgroup.
        lane: the first lane concerned; None where all are.
        detail: what exactly: the register, the address, the wait states needed.
    """

    rule: str
    kernel: str
    pc: int
    instruction: str
    group: tuple[int, int, int]
    wave: int
    lane: int | None
    detail: str

    def __str__(self) -> str:
        lane = "" if self.lane is None else f" lane {self.lane}"
        return (
            f"{self.kernel}: {self.rule}: {self.detail}\n"
            f"  at {self.pc:#06x}: {self.instruction}   (workgroup {self.group}, wave {self.wave}{lane})"
        )


@dataclass(frozen=True)
class Counts:
    """What was counted over a launch.

    Attributes:
        instructions: wave-instructions by kind.
        opcodes: wave-instructions by mnemonic.
        mfma_share: matrix instructions of all.
        mfma_flops: operations of the matrix instructions.
        lds_accesses, lds_cycles, lds_conflict_cycles: LDS instructions, cycles of them in a model of 128 bytes a cycle,
            and those of the cycles that bank conflicts add.
        memory_requests, memory_bytes, memory_lines: vector memory instructions, bytes that their lanes asked for, and
            lines of 128 bytes that they touched, counted for each instruction by itself.
        barriers: barriers that workgroups passed.
        waves_per_simd: occupancy by registers, LDS and workgroup size.
    """

    instructions: dict[str, int]
    opcodes: dict[str, int]
    mfma_flops: int
    lds_accesses: int
    lds_cycles: int
    lds_conflict_cycles: int
    memory_requests: int
    memory_bytes: int
    memory_lines: int
    barriers: int
    waves_per_simd: int

    @property
    def total(self) -> int:
        return sum(self.instructions.values())

    @property
    def mfma_share(self) -> float:
        return self.instructions.get("mfma", 0) / self.total if self.total else 0.0

    @property
    def bytes_per_request(self) -> float:
        return self.memory_bytes / self.memory_requests if self.memory_requests else 0.0


@dataclass(frozen=True)
class Report:
    """The result of a launch: judgements, how often the same was seen again, counts, and the schedule of the model."""

    kernel: str
    arch: str
    judgements: tuple[Judgement, ...]
    repeats: int
    counts: Counts
    seconds: float = field(compare=False)
    schedule: Schedule | None = None

    @property
    def is_clean(self) -> bool:
        return not self.judgements
