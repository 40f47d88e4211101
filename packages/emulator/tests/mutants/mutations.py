"""Mutations: one small mistake in a kernel's assembly, chosen by a seed."""

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mutants.kernels import KERNELS, source_of


@dataclass(frozen=True)
class Mutant:
    """A kernel with one mistake.

    Attributes:
        seed: what it was drawn with.
        line: number of the line in the kernel's file, from 1.
        kind: which mutation.
        before, after: the line without and with the mistake; an empty ``after`` is a line that was dropped.
    """

    seed: int
    kernel: str
    line: int
    kind: str
    before: str
    after: str

    @property
    def arch(self) -> str:
        return self.kernel.rpartition("-")[2]

    def text(self) -> str:
        """The mutated assembly."""
        lines = source_of(self.kernel).splitlines()
        lines[self.line - 1] = f"\t{self.after}" if self.after else ""
        return "\n".join(lines) + "\n"


Mutation = Callable[[str], Iterator[str]]
"""What may stand in place of an instruction; nothing where the mutation does not apply."""

COUNTER = re.compile(r"(vmcnt|lgkmcnt)\((\d+)\)")
VECTOR = re.compile(r"\bv(\d+)\b")
ACCESS = ("global_", "buffer_", "ds_read", "ds_write", "flat_")
LIKE = {
    "v_add_f32": "v_sub_f32", "v_sub_f32": "v_add_f32", "v_max_f32": "v_min_f32", "v_mul_f32": "v_add_f32",
    "v_add_u32": "v_sub_u32", "v_and_b32": "v_or_b32", "v_or_b32": "v_and_b32", "v_lshlrev_b32": "v_lshrrev_b32",
    "s_cbranch_scc0": "s_cbranch_scc1", "s_cbranch_scc1": "s_cbranch_scc0", "s_add_u32": "s_sub_u32",
    "s_lshl_b32": "s_lshr_b32", "s_cmp_lg_u32": "s_cmp_eq_u32", "s_add_i32": "s_sub_i32", "v_exp_f32": "v_log_f32",
    "s_and_saveexec_b64": "s_or_saveexec_b64", "s_cbranch_vccnz": "s_cbranch_vccz",
    "s_cbranch_execz": "s_cbranch_execnz",
    "s_and_b64": "s_or_b64", "v_cmp_gt_i32": "v_cmp_le_i32", "v_cmp_gt_u32": "v_cmp_le_u32",
}  # fmt: skip


def wait_weakened(text: str) -> Iterator[str]:
    """One more operation may be outstanding."""
    if text.startswith("s_waitcnt"):
        for found in COUNTER.finditer(text):
            more = f"{found[1]}({int(found[2]) + 1})"
            yield text[: found.start()] + more + text[found.end() :]


def wait_dropped(text: str) -> Iterator[str]:
    if text.startswith("s_waitcnt"):
        yield ""


def nop_shortened(text: str) -> Iterator[str]:
    """One wait state fewer."""
    if text.startswith("s_nop"):
        states = int(text.split()[1])
        yield f"s_nop {states - 1}" if states else ""


def barrier_dropped(text: str) -> Iterator[str]:
    if text == "s_barrier":
        yield ""


def offset_moved(text: str) -> Iterator[str]:
    """An access moved by its width, by two bytes, or past the end."""
    if text.startswith(ACCESS) and "buffer_wbl2" not in text and "buffer_inv" not in text:
        found = re.search(r"offset:(\d+)", text)
        own = int(found[1]) if found else 0
        for more in (2, 16, 3968):
            if own + more < 4096:
                bare = text.replace(found[0], "").rstrip() if found else text
                yield f"{bare} offset:{own + more}"


def register_swapped(text: str) -> Iterator[str]:
    """Another register read or written: the next one."""
    for found in VECTOR.finditer(text):
        yield text[: found.start()] + f"v{int(found[1]) + 1}" + text[found.end() :]


def operands_swapped(text: str) -> Iterator[str]:
    """The first two sources of an instruction in each other's place."""
    name, _, rest = text.partition(" ")
    operands = [part.strip() for part in re.split(r",(?![^\[]*\])", rest)]
    if name.startswith(("v_", "s_")) and len(operands) >= 3 and operands[1] != operands[2]:
        operands[1], operands[2] = operands[2], operands[1]
        yield f"{name} {', '.join(operands)}"


def opcode_replaced(text: str) -> Iterator[str]:
    name, space, rest = text.partition(" ")
    bare = re.sub(r"_(e32|e64|dpp)$", "", name)
    if bare in LIKE:
        yield LIKE[bare] + name[len(bare) :] + space + rest


def instruction_dropped(text: str) -> Iterator[str]:
    if not text.startswith(("s_waitcnt", "s_nop", "s_barrier", "s_endpgm")):
        yield ""


def constant_changed(text: str) -> Iterator[str]:
    """A literal or inline number one larger."""
    found = re.search(r", (0x[0-9a-f]+|\d+)$", text)
    if found and not text.startswith(("s_nop", "s_branch", "s_cbranch")):
        yield f"{text[: found.start()]}, {int(found[1], 0) + 1:#x}"


MUTATIONS: dict[str, Mutation] = {
    "wait count off by one": wait_weakened,
    "wait dropped": wait_dropped,
    "wait state removed": nop_shortened,
    "barrier dropped": barrier_dropped,
    "address moved": offset_moved,
    "register swapped": register_swapped,
    "operands swapped": operands_swapped,
    "opcode replaced": opcode_replaced,
    "instruction dropped": instruction_dropped,
    "constant off by one": constant_changed,
}


def instructions(kernel: str) -> list[tuple[int, str]]:
    """The lines of a kernel's file that are instructions: number and text."""
    found = []
    for number, line in enumerate(source_of(kernel).splitlines(), 1):
        text = " ".join(line.split())
        if re.match(r"[vs]_\w+|ds_\w+|global_\w+|buffer_\w+|flat_\w+", text) and not text.endswith(":"):
            found.append((number, text))
    return found


def draw(seed: int) -> Iterator[Mutant]:
    """Mutants in the order in which a seed tries them: the first that the assembler takes is the seed's."""
    chance = random.Random(seed)
    kind = list(MUTATIONS)[seed % len(MUTATIONS)]
    while True:
        kernel = chance.choice(KERNELS)
        places = [(n, text, after) for n, text in instructions(kernel) for after in MUTATIONS[kind](text)]
        if places:
            number, before, after = chance.choice(places)
            yield Mutant(seed, kernel, number, kind, before, after)
