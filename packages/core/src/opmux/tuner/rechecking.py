"""Measuring rows again: which of them no longer hold on this machine, and why."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from opmux.arch import arch_of
from opmux.errors import InvalidArgument
from opmux.plugins import loading
from opmux.shapes.point import Point
from opmux.tuner.backlog import Backlog
from opmux.tuner.local_workers import measured_locally
from opmux.tuner.measuring import Measured, Request
from opmux.tuner.progress import Progress, seconds_left
from opmux.tuner.ranks import on_rank_zero
from opmux.tuner.requests import devices_of
from opmux.tuning.measured import Machine, MeasuredRow, read_measured
from opmux.tuning.measured.device import device_of

LEAST_SPREAD = 0.05
"""A time may be off by this fraction whatever its spread says: clocks and temperatures differ from day to day."""

_SPREADS = 3.0
"""How many spreads, of the row and of its new measurement, a time may be off."""


@dataclass(frozen=True)
class Lapsed:
    """A row that no longer holds.

    Attributes:
        reason: what changed: the time, the result, or that its implementation does not take the call any more.
    """

    row: MeasuredRow
    reason: str

    def __str__(self) -> str:
        point = Point(self.row.op, self.row.dtypes, self.row.dims, self.row.options).key
        return f"{self.row.file}:{self.row.line}: {self.row.implementation} at {point}: {self.reason}"


@dataclass(frozen=True)
class Checked:
    """What measuring again found.

    Attributes:
        held: how many rows hold.
        lapsed: those that do not.
        elsewhere: rows of other device models, which cannot be measured here.
        unchecked: rows for which there was no time.
        changed: what differs on this machine, as ``torch 2.11.0, now 2.13.0``.
        refused: rows that were refused when the file was read, and those that contradict a row of another file.
    """

    held: int
    lapsed: tuple[Lapsed, ...]
    elsewhere: int
    unchecked: int
    changed: tuple[str, ...]
    refused: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether rows were measured, and every one of them holds."""
        return self.held > 0 and not self.lapsed and not self.refused

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        lapsed = [{"file": x.row.file, "line": x.row.line, "reason": x.reason, "row": str(x)} for x in self.lapsed]
        return {
            "passed": self.passed, "held": self.held, "lapsed": lapsed, "elsewhere": self.elsewhere,
            "unchecked": self.unchecked, "changed": list(self.changed), "refused": list(self.refused),
        }  # fmt: skip

    def __str__(self) -> str:
        lines = [f"{self.held} rows hold, {len(self.lapsed)} do not, {self.unchecked} were not measured"]
        if self.elsewhere:
            lines.append(f"{self.elsewhere} rows are of other devices: measure them there")
        lines += [f"changed: {change}" for change in self.changed]
        return "\n".join([*lines, *map(str, self.lapsed), *(f"refused: {reason}" for reason in self.refused)])


def check(
    files: Sequence[str | os.PathLike[str]],
    *,
    limit_s: float | None = None,
    device: str | torch.device | None = None,
    rounds: int = 15,
    patience_s: float = 60.0,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Checked:
    """Measure rows again, each implementation with its recorded config.

    A row no longer holds if its time is off by more than three times its spread and that of the new measurement (at
    least 5 %), or if its implementation is wrong, fails, or does not take the call any more. In a job of several ranks
    it is called on all of them: rank 0 measures, and every rank returns what it found.

    Args:
        files: files of measured rows.
        limit_s, device, rounds, patience_s, progress: as in `opmux.tuner.tune`.

    Raises:
        InvalidArgument: where there is no file, or one cannot be read.
    """
    return on_rank_zero("tune", lambda: _check(files, limit_s, device, rounds, patience_s, progress))


def _check(
    files: Sequence[str | os.PathLike[str]],
    limit_s: float | None,
    device: str | torch.device | None,
    rounds: int,
    patience_s: float,
    progress: Callable[[Progress], None],
) -> Checked:
    loading.ensure_loaded()
    every, refused = _read(files)
    devices = devices_of(device)
    here = torch.device(devices[0])
    model, arch = device_of(here), arch_of(here).name
    rows = [row for row in every if model and (row.machine.arch, row.machine.device) == (arch, model.name)]
    held, told = 0, 0
    lapsed: list[Lapsed] = []
    changed: dict[str, None] = {}
    points = list({_point(row).key: _point(row) for row in rows}.values())
    by_point: dict[str, list[MeasuredRow]] = {point.key: [] for point in points}
    for row in rows:
        by_point[_point(row).key].append(row)
    backlog = Backlog(points, set(), limit_s)

    def request_of(point: Point) -> Request:
        only: dict[str, tuple[str, ...]] = {}
        for row in by_point[point.key]:
            text = "" if row.config is None else json.dumps(row.config)
            only[row.implementation] = (*only.get(row.implementation, ()), text)
        names = tuple(only)
        return Request(point, names, only=only, rounds=rounds)

    progress(Progress(0, len(points), None, ""))
    answers = measured_locally(backlog, request_of, devices, patience_s)
    for done, (measured, machine) in enumerate(answers, start=1):
        for row in by_point[measured.point.key]:
            told += 1
            changed |= dict.fromkeys(_changes(row.machine, machine))
            reason = _lapse(row, measured)
            held += not reason
            lapsed += [Lapsed(row, reason)] if reason else []
        progress(Progress(done, len(points), seconds_left(done, len(points), backlog, limit_s), measured.point.key))
    elsewhere = len(every) - len(rows)
    return Checked(held, tuple(lapsed), elsewhere, len(rows) - told, tuple(changed), tuple(refused))


def _read(files: Sequence[str | os.PathLike[str]]) -> tuple[list[MeasuredRow], list[str]]:
    rows: list[MeasuredRow] = []
    refused: list[str] = []
    first: dict[tuple[str, str, str, str], MeasuredRow] = {}
    for file in files:
        try:
            found = read_measured(Path(file))
        except OSError as error:
            raise InvalidArgument(f"tune: `check` cannot read {file}: {error.strerror or error}; name a file") from None
        refused += [f"{file}:{bad.line}: {bad.reason}" for bad in found.refused]
        for row in found.rows:
            place = (_point(row).key, row.implementation, row.machine.arch, row.machine.device)
            other = first.setdefault(place, row)
            if other.config == row.config:
                rows.append(row)
            else:  # only one config of an implementation is in force at a point, and only one is timed to the end
                at = f"{row.implementation} at {place[0]}"
                refused.append(f"{row.where}: another config than {other.where} has for {at}; merge the files first")
    if not rows and not refused:
        raise InvalidArgument("tune: `check` expected measured rows, got none; name a file that `opmux tune` wrote")
    return rows, refused


def _point(row: MeasuredRow) -> Point:
    return Point(row.op, row.dtypes, row.dims, row.options)


def _lapse(row: MeasuredRow, measured: Measured) -> str:
    """Why a row no longer holds; empty where it does."""
    if measured.problem:
        return measured.problem
    name = row.implementation
    for failure in measured.failures:
        if failure.implementation == name:
            return failure.reason
    found = next((t for t in measured.timings if t.candidate.implementation == name), None)
    if found is None:
        return "its implementation does not take the call"
    spread = (found.q3_us - found.q1_us) / 2
    allowed = max(LEAST_SPREAD * row.time_us, _SPREADS * max(row.spread * row.time_us, spread))
    if abs(found.median_us - row.time_us) > allowed:
        return f"{row.time_us:.4g} us then, {found.median_us:.4g} us now"
    return ""


def _changes(before: Machine, now: Machine) -> Iterator[str]:
    if before.driver != now.driver:
        yield f"driver {before.driver or 'unknown'}, now {now.driver or 'unknown'}"
    for name, version in sorted(before.versions.items()):
        if now.versions.get(name) != version:
            yield f"{name} {version}, now {now.versions.get(name, 'not installed')}"
