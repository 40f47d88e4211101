"""A program of others, what it is given, and what it should give."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from formats import Array, Slots

from opmux_emulator import Program, Report, launch


@dataclass(frozen=True)
class Case:
    """One run.

    Attributes:
        family: what it computes.
        arch: the folder of the wheel it lies in.
        file: the code object, within that folder.
        shape: sizes, in words.
        make: gives the kernarg, what to compare, and what numpy makes of the same input.
        grid: workgroups.
        threads: of a workgroup.
        bound: largest error, as a share of the largest expected value.
    """

    family: str
    arch: str
    file: str
    shape: str
    make: "Callable[[np.random.Generator], Made]"
    grid: Sequence[int]
    threads: int = 256
    bound: float = 1e-2


@dataclass(frozen=True)
class Made:
    """Input of a run: ``got`` reads the output once the program ran; ``expected`` is numpy's."""

    slots: Slots
    got: Callable[[], Array]
    expected: Array


TURN = 4
"""Instructions of a wave before another's turn: waves proceed at about the same pace, as on a compute unit."""


@dataclass(frozen=True)
class Outcome:
    """What a run gave.

    Attributes:
        case: which.
        error: the largest error as a share of the largest expected value, where waves take turns of :data:`TURN`.
        one_by_one: the same where each wave runs as far as it can before the next one starts.
        report: of the run where waves take turns.
    """

    case: Case
    error: float
    one_by_one: float
    report: Report

    @property
    def is_right(self) -> bool:
        return self.error <= self.case.bound

    @property
    def depends_on_order(self) -> bool:
        return self.is_right and self.one_by_one > self.case.bound


def error_of(case: Case, folder: Path, **options: int) -> tuple[float, Report]:
    """Load a program, run it once, and compare."""
    program = Program.load(folder / case.arch / case.file)
    kernel = program.kernel()
    made = case.make(np.random.default_rng(0))
    segment = made.slots.segment(kernel.kernarg_size)
    memory = made.slots.memory
    report = launch(program, None, case.grid, (case.threads,), segment, memory=memory, check=False, **options)
    got = made.got().astype("f8")
    error = np.abs(got - made.expected).max() / np.abs(made.expected).max()
    return float(error) if np.isfinite(got).all() else float("inf"), report


def run(case: Case, folder: Path) -> Outcome:
    """Run a program with its waves in turns, and one by one."""
    error, report = error_of(case, folder, turn=TURN)
    return Outcome(case, error, error_of(case, folder)[0], report)
