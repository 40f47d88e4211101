"""A run of the tuner: its points in order, measured by the workers, kept in a journal, and written as rows."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from opmux import tuning
from opmux.errors import InvalidArgument, OpmuxError
from opmux.plugins import loading
from opmux.shapes import Point
from opmux.tuner.backlog import Backlog
from opmux.tuner.journal import Entry, Journal
from opmux.tuner.local_workers import Finding, measured_locally
from opmux.tuner.measuring import Measured, Request
from opmux.tuner.progress import Progress, seconds_left
from opmux.tuner.ranks import on_rank_zero
from opmux.tuner.ray_workers import measured_on_ray
from opmux.tuner.requests import (
    builders_of,
    check_numbers,
    check_workers,
    checked_backends,
    checked_ops,
    devices_of,
    implemented,
    points_of,
)
from opmux.tuner.rows import Row, merged_over, rows_of, split
from opmux.tuning.layers import user_folder
from opmux.tuning.measured import SUFFIX, read_measured, refusal_of, write_measured


@dataclass(frozen=True)
class Tuned:
    """What a run did.

    Attributes:
        file: the file of measured rows.
        measured: points that were measured in this run.
        skipped: points that an earlier run had finished.
        left: points that were not measured, because the time was up.
        rows: rows in the file.
        failed: configs that were wrong, failed or hung, in this run.
        builds: kernels that were compiled, in this run.
        build_s: seconds that compiling them took, one after another.
        problems: why nothing could be measured, for each point of this run where that is so, and why rows are not in
            the file.
        took_s: seconds.
        left_out: ops of the given shapes that were left out, since nothing but the reference implements them, and why.
    """

    file: str
    measured: int
    skipped: int
    left: int
    rows: int
    failed: int
    builds: int
    build_s: float
    problems: tuple[str, ...]
    took_s: float
    left_out: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        built = f"{self.builds} kernels compiled in {self.build_s:.1f} s" if self.builds else "no kernel compiled"
        left = f", {self.left} left: the time was up; the same command goes on" if self.left else ""
        skipped = f", {self.skipped} were finished before" if self.skipped else ""
        lines = [
            f"{self.measured} points measured in {self.took_s:.0f} s{skipped}{left}",
            f"{built}; {self.failed} configs were wrong or failed",
            f"{self.rows} rows in {self.file}",
        ]
        lines += [f"not measured: {problem}" for problem in self.problems]
        return "\n".join([*lines, *(f"left out: {reason}" for reason in self.left_out)])


@dataclass
class _Counts:
    measured: int = 0
    failed: int = 0
    builds: int = 0
    build_s: float = 0.0
    problems: list[str] = field(default_factory=list)

    def add(self, measured: Measured) -> None:
        """Count a point."""
        self.measured += 1
        self.failed += len(measured.failures)
        self.builds += measured.builds
        self.build_s += measured.build_s
        if not measured.timings:
            self.problems.append(f"{measured.point.key}: {_why(measured)}")


def tune(
    ops: Sequence[str] = (),
    *,
    shapes: str | os.PathLike[str] | Sequence[Point] | None = None,
    random: int | None = None,
    seed: int = 0,
    from_trace: str | os.PathLike[str] | None = None,
    backends: Sequence[str] | None = None,
    limit_s: float | None = None,
    out: str | os.PathLike[str] | None = None,
    device: str | torch.device | None = None,
    rounds: int = 15,
    most_configs: int | None = None,
    patience_s: float = 60.0,
    jobs: int | None = None,
    ray: str | None = None,
    workers: int | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Tuned:
    """Measure implementations in every config of their spaces, and write the best of each as measured rows.

    At each point every implementation that takes the call runs in each of its configs: checked against the reference,
    then timed in interleaved rounds, on a cold cache on a GPU, in a process of its own that is replaced when a config
    hangs or kills it. Finished points are kept in a hidden journal beside ``out``: the same call goes on where a run
    stopped.

    In a job of several ranks it is called on all of them: rank 0 measures, on the devices of its machine, and the
    others wait. Every rank returns what rank 0 did, with the records and rows of rank 0 in force.

    Args:
        ops: names of ops; with ``shapes`` or ``from_trace`` only their points are measured, without any those of every
            op that more than the reference implements.
        shapes: a file of shapes, or the points themselves; measured in their order.
        random: how many points to draw for each op, from the distributions that `opmux.tuner.drawing` states.
        seed: of ``random``.
        from_trace: a file that `opmux.trace` wrote: points on which most time is spent come first.
        backends: only these backends or implementations; None takes every one that takes the call.
        limit_s: seconds after which no further point is begun; None for no limit.
        out: the file of measured rows, which keeps the rows it has; by default one for the device model in the user's
            folder of records.
        device: ``cpu``, ``cuda`` (every GPU of this machine) or ``cuda:1``; by default GPUs if there are some.
        rounds: the largest number of rounds for a point.
        most_configs: configs of an implementation that are tried at most: the one that its heuristic picks, then those
            that its space yields first. 1 measures what a call runs that no row describes; None tries the whole space.
        patience_s: seconds that one step of a config may take, its compilation included.
        jobs: processes for each device that compile a point's configs together before they are timed; by default 0 on a
            CPU, and on GPUs one for every two processors, at most 12.
        ray: the address of a Ray cluster whose devices measure, or ``local`` for one that is started here; needs the
            extra ``ray``. ``device`` is then only read to draw points.
        workers: how many workers on Ray; by default one for each GPU, or processor, of the cluster.
        progress: called at the beginning and after each point.

    Returns:
        What was done. In a process on its own, `tuning.reload()` puts the rows in force.

    Raises:
        InvalidArgument: where an argument is wrong, or a file of shapes is refused.
        UnknownBackend: where a backend is not registered.
        OpmuxError: where another run writes the file, or it cannot be written.
    """

    def work() -> Tuned:
        loading.ensure_loaded()
        if out is not None:
            _check_file(Path(out))
        only = checked_backends(backends)
        devices = devices_of(device)
        named = checked_ops(ops)
        points = points_of(named, shapes, random, seed, from_trace, devices[0])
        check_numbers(limit_s, rounds, patience_s, jobs, most_configs)
        check_workers(workers, ray)
        points, left_out = implemented(points, named, only)
        builders = builders_of(devices) if jobs is None else jobs
        path = _own_file(devices[0]) if out is None else Path(out)

        def request_of(point: Point) -> Request:
            return Request(point, only, most_configs=most_configs, rounds=rounds)

        def findings(backlog: Backlog) -> Iterator[Finding]:
            if ray is not None:
                return measured_on_ray(backlog, request_of, ray, patience_s, jobs, workers)
            return measured_locally(backlog, request_of, devices, patience_s, builders)

        return replace(_run(path, points, limit_s, request_of, findings, progress), left_out=left_out)

    return on_rank_zero("tune", work, _follow)


def _follow(group: Any) -> None:
    """Put the rows of rank 0 in force on every rank."""
    if torch.distributed.get_rank(group) == 0:
        tuning.reload()
    tuning.follow_rank_zero(group)


def _run(
    path: Path,
    points: Sequence[Point],
    limit_s: float | None,
    request_of: Callable[[Point], Request],
    findings: Callable[[Backlog], Iterator[Finding]],
    progress: Callable[[Progress], None],
) -> Tuned:
    counts = _Counts()
    with locked(path):
        journal = Journal.beside(path)
        backlog = Backlog(points, journal.done(request_of), limit_s)
        progress(Progress(0, len(points), None, ""))
        try:
            for measured, machine in findings(backlog):
                asked = request_of(measured.point)
                journal.append(Entry(measured, machine, asked.backends, asked.most_configs))
                counts.add(measured)
                done = counts.measured + backlog.skipped
                left_s = seconds_left(counts.measured, len(points), backlog, limit_s)
                progress(Progress(done, len(points), left_s, measured.point.key))
        finally:
            rows, refused = _write(path, journal)
    return Tuned(
        str(path), counts.measured, backlog.skipped, backlog.left, rows, counts.failed, counts.builds, counts.build_s,
        (*counts.problems, *refused), backlog.took_s,
    )  # fmt: skip


def _write(path: Path, journal: Journal) -> tuple[int, list[str]]:
    """Write the file of rows: those it has, and over them those of the journal.

    Returns:
        How many rows there are, and why rows of the journal are not among them.

    Raises:
        OpmuxError: where it cannot be written.
    """
    before: list[Any] = []
    if path.exists():
        found = read_measured(path)
        if found.refused:
            first = found.refused[0]
            raise OpmuxError(
                f"tune: {path}:{first.line}: {first.reason}; the points of this run are kept in {journal.path.name}: "
                "mend or remove the file, and give the same command again"
            )
        before = [*found.rows, *found.failed]
    fresh, refused = _possible([row for entry in journal for row in rows_of(entry.measured, entry.machine)])
    rows, failed = split(merged_over(before, fresh))
    try:
        write_measured(path, rows, failed)
    except OSError as error:
        raise OpmuxError(
            f"tune: {path} cannot be written: {error.strerror or error}; the points of this run are kept in "
            f"{journal.path.name}: make room, and give the same command again"
        ) from None
    return len(rows), refused


def _possible(rows: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """The rows that a file may have, and of each other one what it is and why not: a time that cannot be, say."""
    kept: list[Row] = []
    refused: list[str] = []
    for row in rows:
        reason = refusal_of(row)
        if reason is None:
            kept.append(row)
        else:
            refused.append(f"{Point(row.op, row.dtypes, row.dims, row.options).key} by {row.implementation}: {reason}")
    return kept, refused


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file of rows against other runs.

    Raises:
        OpmuxError: where another run has it, or filelock is not installed.
    """
    try:
        import filelock  # an extra: importing the tuner does not need it
    except ImportError:
        raise OpmuxError('tune: needs filelock, which is not installed: pip install "opmux[tune]"') from None
    lock = filelock.FileLock(path.with_name(f".{path.name}.lock"), timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise OpmuxError(
            f"tune: another run writes {path}; wait for it, or write to another file and merge the two"
        ) from None
    except OSError as error:
        raise OpmuxError(f"tune: {path} cannot be locked: {error.strerror or error}; choose another file") from None
    try:
        yield
    finally:
        lock.release()


def _why(measured: Measured) -> str:
    if measured.problem:
        return measured.problem
    if measured.failures:
        return f"every config failed, the first, {measured.failures[0].implementation}: {measured.failures[0].reason}"
    return "no implementation takes the call"


def _check_file(path: Path) -> None:
    if path.suffix != SUFFIX:
        raise InvalidArgument(f"tune: `out` expected a file with the suffix {SUFFIX}, got {path}; name it so")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise InvalidArgument(f"tune: `out` expected a file in a folder that exists, got {path}; make the folder")


def _own_file(device: str) -> Path:
    """The user's file for a device model, in the folder that is read at every start."""
    name = "cpu" if device == "cpu" else torch.cuda.get_device_name(device)
    words = "".join(c if c.isalnum() else "-" for c in name.lower())
    folder = user_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(f"tune: `out` is not given, and {folder} cannot be made: {error}; name a file") from None
    return folder / f"{words}{SUFFIX}"
