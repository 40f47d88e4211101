"""A run of the tuner: its points in order, measured by the workers, kept in a journal, and written as rows."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from opmux.callpath.op import OPS
from opmux.declared.implementation import Priority
from opmux.errors import InvalidArgument, OpmuxError, UnknownBackend
from opmux.near import did_you_mean
from opmux.plugins import loading
from opmux.shapes import Point, read_shapes
from opmux.tuner.backlog import Backlog
from opmux.tuner.drawing import draw
from opmux.tuner.journal import Entry, Journal
from opmux.tuner.local_workers import Finding, measured_locally
from opmux.tuner.measuring import Measured, Request
from opmux.tuner.rows import merged_over, rows_of, split
from opmux.tuner.weights import heaviest_first
from opmux.tuning.layers import user_folder
from opmux.tuning.measured import SUFFIX, read_measured, write_measured

_LEAST_PATIENCE_S = 1.0


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes:
        done: points that are finished, those of an earlier run included.
        total: all points.
        left_s: seconds that it will take from here; None while that is not known.
        now: the point that was finished last.
    """

    done: int
    total: int
    left_s: float | None
    now: str


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
        problems: why nothing could be measured, for each point of this run where that is so.
        took_s: seconds.
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
        return "\n".join([*lines, *(f"not measured: {problem}" for problem in self.problems)])


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
    patience_s: float = 60.0,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Tuned:
    """Measure implementations in every config of their spaces, and write the best of each as measured rows.

    At each point every implementation that takes the call runs in each of its configs: checked against the reference,
    then timed in interleaved rounds, on a cold cache on a GPU, in a process of its own that is replaced when a config
    hangs or kills it. Finished points are kept in ``out.journal``: the same call goes on where a run stopped.

    Args:
        ops: names of ops; with ``shapes`` or ``from_trace`` only their points are measured, without any all are.
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
        patience_s: seconds that one step of a config may take, its compilation included.
        progress: called at the beginning and after each point.

    Returns:
        What was done; `tuning.reload()` puts the rows in force in this process.

    Raises:
        InvalidArgument: where an argument is wrong, or a file of shapes is refused.
        UnknownBackend: where a backend is not registered.
        OpmuxError: where another run writes the file, or it cannot be written.
    """
    loading.ensure_loaded()
    checked_backends = _checked_backends(backends)
    devices = _devices(device)
    points = _points(_checked_ops(ops), shapes, random, seed, from_trace, devices[0])
    _check_numbers(limit_s, rounds, patience_s)
    _refuse_unimplemented(points, devices, checked_backends)
    path = _checked_file(Path(out) if out is not None else _own_file(devices[0]))

    def request_of(point: Point) -> Request:
        return Request(point, checked_backends, rounds=rounds)

    def workers(backlog: Backlog) -> Iterator[Finding]:
        return measured_locally(backlog, request_of, devices, patience_s)

    return _run(path, points, limit_s, workers, progress)


def _run(
    path: Path,
    points: Sequence[Point],
    limit_s: float | None,
    workers: Callable[[Backlog], Iterator[Finding]],
    progress: Callable[[Progress], None],
) -> Tuned:
    started, counts = time.monotonic(), _Counts()
    with locked(path):
        journal = Journal.beside(path)
        backlog = Backlog(points, journal.done(), limit_s)
        progress(Progress(0, len(points), None, ""))
        try:
            for measured, machine in workers(backlog):
                journal.append(Entry(measured, machine))
                counts.add(measured)
                done = counts.measured + backlog.skipped
                left_s = _left(time.monotonic() - started, counts.measured, len(points) - done, limit_s)
                progress(Progress(done, len(points), left_s, measured.point.key))
        finally:
            rows = _write(path, journal)
    return Tuned(
        str(path), counts.measured, backlog.skipped, backlog.left, rows, counts.failed, counts.builds, counts.build_s,
        tuple(counts.problems), time.monotonic() - started,
    )  # fmt: skip


def _left(took_s: float, measured: int, remaining: int, limit_s: float | None) -> float:
    """Seconds from here: at the pace so far, and no more than the limit leaves."""
    left = took_s / max(1, measured) * remaining
    return left if limit_s is None else max(0.0, min(left, limit_s - took_s))


def _write(path: Path, journal: Journal) -> int:
    """Write the file of rows: those it has, and over them those of the journal; returns how many there are.

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
    fresh = [row for entry in journal for row in rows_of(entry.measured, entry.machine)]
    rows, failed = split(merged_over(before, fresh))
    try:
        write_measured(path, rows, failed)
    except OSError as error:
        raise OpmuxError(
            f"tune: {path} cannot be written: {error.strerror or error}; the points of this run are kept in "
            f"{journal.path.name}: make room, and give the same command again"
        ) from None
    return len(rows)


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


def _checked_ops(ops: Sequence[str]) -> tuple[str, ...]:
    for name in ops:
        if name not in OPS:
            raise InvalidArgument(
                f"tune: `op` expected the name of an op, got {name!r}; {did_you_mean(name, OPS)}see `opmux ops`"
            )
    return tuple(dict.fromkeys(ops))


def _checked_backends(backends: Sequence[str] | None) -> tuple[str, ...] | None:
    known = set(loading.known_names())
    for name in backends or ():
        if name not in known:
            raise UnknownBackend(
                f"tune: `backend` expected one of {', '.join(sorted(known))}, got {name!r}; "
                "see `opmux backends` and, for plugins that failed to load, `opmux doctor`"
            )
    return tuple(backends) if backends else None


def _points(
    ops: Sequence[str],
    shapes: str | os.PathLike[str] | Sequence[Point] | None,
    random: int | None,
    seed: int,
    from_trace: str | os.PathLike[str] | None,
    device: str,
) -> list[Point]:
    sources = {"shapes": shapes, "random": random, "from_trace": from_trace}
    given = [name for name, value in sources.items() if value is not None]
    if len(given) != 1:
        raise InvalidArgument(
            f"tune: expected one of `shapes`, `random` and `from_trace`, got {' and '.join(given) or 'none'}; "
            "say what to measure"
        )
    if random is not None:
        if not ops:
            raise InvalidArgument("tune: `op` expected names of ops with `random`, got none; name those to draw for")
        return draw(ops, random, seed, device)
    source = shapes if shapes is not None else from_trace
    try:
        points = list(source) if isinstance(source, (list, tuple)) else read_shapes(source)  # type: ignore[arg-type]
    except OSError as error:
        name = "shapes" if shapes is not None else "from_trace"
        raise InvalidArgument(f"tune: `{name}` cannot be read: {error}; name a file of shapes") from None
    wanted = [point for point in points if not ops or point.op in ops]
    if not wanted:
        what = f" of {', '.join(ops)}" if ops and points else ""
        raise InvalidArgument(f"tune: expected shapes to measure, got none{what}; record some with opmux.trace")
    once = list({point.key: point for point in reversed(wanted)}.values())[::-1]
    return heaviest_first(once) if from_trace is not None else once


def _devices(device: str | torch.device | None) -> tuple[str, ...]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus = tuple(f"cuda:{index}" for index in range(count))
    if device is None:
        return gpus or ("cpu",)
    name = str(device)
    if name == "cpu" or name in gpus:
        return (name,)
    if name == "cuda" and gpus:
        return gpus
    raise InvalidArgument(
        f"tune: `device` expected one of {', '.join(['cpu', *(['cuda'] if gpus else []), *gpus])}, got {name!r}; "
        "see `opmux doctor`"
    )


def _check_numbers(limit_s: float | None, rounds: int, patience_s: float) -> None:
    if limit_s is not None and not limit_s > 0:  # NaN too
        raise InvalidArgument(f"tune: `limit` expected more than 0 seconds, got {limit_s:g}; omit it for no limit")
    if rounds < 1:
        raise InvalidArgument(f"tune: `rounds` expected 1 or more, got {rounds}; omit it for the default of 15")
    if not patience_s >= _LEAST_PATIENCE_S:
        raise InvalidArgument(
            f"tune: `patience` expected {_LEAST_PATIENCE_S:g} second or more, got {patience_s:g}; "
            "omit it for the default of 60"
        )


def _refuse_unimplemented(points: Sequence[Point], devices: Sequence[str], backends: Sequence[str] | None) -> None:
    """Refuse ops for which nothing but the reference is registered, and backends that do not implement an op."""
    for name in dict.fromkeys(point.op for point in points):
        found = OPS[name].implementations
        if backends is not None:
            found = tuple(i for i in found if any(i.is_named(backend) for backend in backends))
        if not any(i.priority != Priority.REFERENCE for i in found) and not (backends and found):
            which = f"{', '.join(backends)} does not implement it" if backends else "only the reference implements it"
            raise InvalidArgument(
                f"tune: {name}: expected an op with something to measure, got one of which {which}; "
                "install a backend for it, or leave it out (see `opmux backends`)"
            )


def _checked_file(path: Path) -> Path:
    if path.suffix != SUFFIX:
        raise InvalidArgument(f"tune: `out` expected a file with the suffix {SUFFIX}, got {path}; name it so")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise InvalidArgument(f"tune: `out` expected a file in a folder that exists, got {path}; make the folder")
    return path


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
