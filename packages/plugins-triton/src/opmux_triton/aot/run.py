"""The whole check of one arch: enumerate, compile in several processes, check."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

from opmux.plugin import InvalidArgument, parse_arch, registered_ops
from opmux_triton.aot import checks
from opmux_triton.aot.build import build
from opmux_triton.aot.facts import Facts
from opmux_triton.aot.jobs import BACKEND, Enumeration, Job, enumerate_jobs, representatives, require_ops, samples
from opmux_triton.archs import PORTABLE


@dataclass(frozen=True)
class Row:
    """One kernel in one config, compiled: its facts and what is wrong with it."""

    job: Job
    facts: Facts | None
    complaints: tuple[str, ...]


@dataclass
class Result:
    """The result of an arch's check; ``ops`` are the ops asked for, empty for all."""

    arch: str
    enumeration: Enumeration
    ops: frozenset[str] = frozenset()
    rows: list[Row] = field(default_factory=list)

    @property
    def facts(self) -> dict[str, Facts]:
        """The facts of what compiled, by key."""
        return {row.job.key: row.facts for row in self.rows if row.facts is not None}

    @property
    def complaints(self) -> list[str]:
        """Everything that is wrong, a line each."""
        wrong = [f"{row.job.key}: {text}" for row in self.rows for text in row.complaints]
        failures = (f for f in self.enumeration.failures if not self.ops or f.partition(" ")[0] in self.ops)
        return [*failures, *wrong]


def claims(arch: str) -> bool:
    """Whether this backend has an implementation for the arch at all."""
    parsed = parse_arch(arch)
    found = (i for op in registered_ops().values() for i in op.op.implementations if i.backend == BACKEND)
    return any(parsed.matches(pattern) for i in found for pattern in i.archs)


_jobs: list[Job] = []
"""Set before the workers fork: a kernel and its arguments cannot be sent to them."""


def check_arch(
    arch: str,
    ops: Sequence[str] = (),
    every: bool = False,
    sample: bool = False,
    workers: int | None = None,
    tick: Callable[[int, int], None] = lambda *_: None,
) -> Result:
    """Compile everything that is launched on an arch, and check the machine code.

    Args:
        arch: ``gfx942``, ``sm_90``, ...
        ops: compile only what these ops launch; all ops if empty. Which launches represent a kernel is decided over
            all ops, so that the results are those of a whole run.
        every: compile every combination of flags, not only `representatives`.
        sample: compile one config only of each kernel and data width, see `samples`.
        workers: processes that compile; by default one for each CPU.
        tick: called with the number of finished jobs and of all.

    Raises:
        InvalidArgument: if no implementation of this backend is for the arch, or an op does not exist.
    """
    if not claims(arch):
        claimed = ", ".join(PORTABLE)
        raise InvalidArgument(
            f"machine-code: `ARCH` expected an arch that backend {BACKEND} claims, got {arch!r}; it claims {claimed}"
        )
    require_ops(ops)
    result = Result(arch, enumerate_jobs(arch), frozenset(ops))
    found = result.enumeration.jobs.values()
    if every:
        _jobs[:] = [job for job in found if not ops or not job.ops.isdisjoint(ops)]
    else:
        _jobs[:] = representatives(found, ops)
    if sample:
        _jobs[:] = samples(_jobs)
    count = workers or os.cpu_count() or 1
    with ProcessPoolExecutor(count, mp_context=get_context("fork")) as pool:
        for done, (facts, wrong) in enumerate(pool.map(_check_job, [(arch, i) for i in range(len(_jobs))]), 1):
            result.rows.append(Row(_jobs[done - 1], facts, tuple(wrong)))
            tick(done, len(_jobs))
    return result


def _check_job(place: tuple[str, int]) -> tuple[Facts | None, list[str]]:
    arch, index = place
    job: Any = _jobs[index]
    try:
        built = build(job.launch, arch)
        facts = checks.read(built)
    except Exception as error:  # the compiler may raise anything, and the other kernels are checked all the same
        return None, [f"did not compile: {type(error).__name__}: {' '.join(str(error).split())[:300]}"]
    return facts, checks.complaints(built, facts, job.launch)
