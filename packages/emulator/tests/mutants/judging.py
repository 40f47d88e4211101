"""What becomes of a mutant: judged, wrong, shown to be equivalent, or a survivor."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from mutants.kernels import Call, assemble, calls_of, source_of
from mutants.mutations import Mutant, draw
from opmux_emulator import EmulatorError, JudgedError, Memory, Program, launch

LIMIT = 20_000
"""Instructions of a wave: ten times what any of the kernels takes."""

SCHEDULES: tuple[dict[str, Any], ...] = (
    {},
    {"late": True},
    {"late": True, "order": "backward"},
    {"late": True, "turn": 1},
    {"order": "backward", "turn": 7},
)
"""Ways to run a kernel that a correct one does not notice: loads that arrive late, waves in other orders."""

BY_CONSTRUCTION = ("wait state removed",)
"""Kinds that break a rule without any schedule showing it in the results: without a judgement they survive."""


def outcome(program: Program, call: Call, **schedule: Any) -> tuple[set[str], np.ndarray]:
    """The rules that a launch breaks, and what it wrote."""
    memory = Memory()
    arguments, out = call.place(memory)
    try:
        report = launch(
            program, None, call.grid, (call.threads,), arguments, memory=memory, dynamic_lds=call.lds, limit=LIMIT,
            check=False, **schedule,
        )  # fmt: skip
    except JudgedError as error:
        return {j.rule for j in error.findings}, out  # type: ignore[attr-defined]
    except EmulatorError as error:
        return {f"refused: {error}"}, out
    return {j.rule for j in report.judgements}, out


def is_right(call: Call, out: np.ndarray) -> bool:
    return bool(np.allclose(out, call.expected, rtol=call.relative, atol=call.absolute))


def verdict(mutant: Mutant, program: Program) -> str:
    """``judged: RULES``, ``wrong result``, ``equivalent`` or ``survives``.

    Equivalent is what gives the same bits as the kernel itself for every call in every schedule, loads that arrive as
    late as their waits allow included, and breaks no rule in any of them.
    """
    own = assemble(source_of(mutant.kernel), mutant.arch)
    same = True
    for call in calls_of(mutant.kernel):
        for schedule in SCHEDULES:
            rules, out = outcome(program, call, **schedule)
            if rules:
                return f"judged: {', '.join(sorted(rules))}"
            if not is_right(call, out):
                return "wrong result"
            _, right = outcome(own, call)
            same &= bool(np.array_equal(out.view("u4"), right.view("u4")))
    return "equivalent" if same and mutant.kind not in BY_CONSTRUCTION else "survives"


@contextmanager
def silenced() -> Iterator[None]:
    """Keep what the assembler says about mutants that it rejects off the screen: it writes to the descriptor itself."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def judged(seed: int) -> tuple[Mutant, str]:
    """The mutant of a seed and its verdict."""
    for mutant in draw(seed):
        try:
            with silenced():
                program = assemble(mutant.text(), mutant.arch)
        except RuntimeError:  # no such instruction: draw again
            continue
        return mutant, verdict(mutant, program)
    raise AssertionError
