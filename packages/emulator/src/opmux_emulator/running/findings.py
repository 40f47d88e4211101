"""From the interpreter's findings to judgements in words."""

from collections.abc import Callable

from opmux_emulator.codeobject.descriptor import Descriptor
from opmux_emulator.codeobject.program import Kernel
from opmux_emulator.isa.decode import VGPR, Instruction
from opmux_emulator.isa.text import operand, text_of
from opmux_emulator.native.library import Finding
from opmux_emulator.running.report import RULES, Judgement

HARDWARE_REGISTER = -2
"""What the interpreter gives in place of a register's code."""
COUNTERS = {1: "vmcnt", 2: "lgkmcnt", 3: "lgkmcnt"}


def register(code: int, descriptor: Descriptor) -> str:
    """The name of a register; those behind ``accum_offset`` are accumulation registers."""
    if code >= VGPR and code - VGPR >= descriptor.accum_offset:
        return f"a{code - VGPR - descriptor.accum_offset} (v{code - VGPR})"
    return operand(code)


def judgement_of(
    found: Finding,
    kernel: Kernel,
    code: list[Instruction],
    grid: tuple[int, int, int],
    describe: Callable[[int], str],
    descriptor: Descriptor,
) -> Judgement:
    """One finding in words; ``describe`` says which allocation an address is in."""
    rule = list(RULES)[found.rule]
    instruction = code[found.instruction]
    group = (found.group % grid[0], found.group // grid[0] % grid[1], found.group // grid[0] // grid[1])
    lane = None if found.lane < 0 else found.lane
    detail = words(rule, found.address, found.detail, instruction, describe, descriptor)
    return Judgement(rule, kernel.name, instruction.pc, text_of(instruction), group, found.wave, lane, detail)


def words(
    rule: str,
    address: int,
    detail: int,
    instruction: Instruction,
    describe: Callable[[int], str],
    descriptor: Descriptor,
) -> str:
    """What is wrong."""
    if rule == "outstanding":
        verb = "is overwritten" if detail & 16 else "is read"
        counter = COUNTERS.get(detail & 15, "?")
        name = register(address, descriptor)
        return f"{name} {verb} while a load into it is outstanding: no s_waitcnt {counter} covers it"
    if rule == "unwritten-register":
        return unwritten(address, detail, descriptor)
    if rule in ("unwritten-memory",):
        return f"reads {describe(address)}, which nothing wrote"
    if rule == "unwritten-lds":
        return f"reads LDS byte {address:#x}, which nothing wrote"
    if rule == "lds-race":
        return f"LDS byte {address:#x} is accessed by wave {detail} too, with no barrier between"
    if rule == "global-race":
        other = f"workgroup {detail}" if detail >= 0 else "another workgroup"
        return f"{describe(address)} is accessed by {other} too, with nothing to order them"
    if rule == "out-of-bounds":
        kind = "writes" if detail < 0 else "reads or writes"
        return f"{kind} {abs(detail)} bytes at {describe(address)}" if detail != 5 else "runs past the end of the code"
    if rule == "lds-bounds":
        return f"{detail} bytes at LDS byte {address:#x}, outside the workgroup's LDS"
    if rule == "misaligned":
        return f"address {address:#x} is not a multiple of {detail}"
    if rule == "wait-states":
        if detail == HARDWARE_REGISTER:
            return f"a hardware register needs {address} wait states after the s_setreg that wrote it"
        return f"{register(detail, descriptor)} needs {address} wait states after the instruction that wrote it"
    if rule == "barrier":
        return f"{detail} waves ended without it"
    if rule == "resources":
        of = "vector" if address >= VGPR else "scalar"
        return f"{operand(address)} is used; the descriptor allocates {detail} {of} registers"
    if rule == "endless":
        return f"a wave executed {address} instructions"
    return instruction.error or f"{instruction.name} has no semantics here"


def unwritten(address: int, detail: int, descriptor: Descriptor) -> str:
    """Where the value went that nothing wrote."""
    if detail == 1:
        return "EXEC becomes a value that nothing wrote"
    if detail == 2:
        return "a branch depends on a value that nothing wrote"
    if detail == 3:
        return "an address depends on a value that nothing wrote"
    return f"{register(address, descriptor)} is stored, and nothing wrote its value"
