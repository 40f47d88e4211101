"""Merging files of measured rows: what several runs and machines found, with every conflict said."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from opmux.errors import InvalidArgument, OpmuxError
from opmux.plugins import loading
from opmux.shapes.point import Point
from opmux.tuner.rows import Row, place_of, split
from opmux.tuning.measured import MeasuredRow, read_measured, write_measured


@dataclass(frozen=True)
class Merged:
    """What was merged.

    Attributes:
        rows: rows in the merged file.
        conflicts: two rows of one place that do not agree, and which of them was kept.
        refused: rows that were left out, with file, line and reason.
    """

    file: str
    rows: int
    conflicts: tuple[str, ...]
    refused: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{self.rows} rows in {self.file}, {len(self.conflicts)} conflicts, {len(self.refused)} rows refused"]
        lines += [f"conflict: {conflict}" for conflict in self.conflicts]
        return "\n".join([*lines, *(f"refused: {reason}" for reason in self.refused)])


def merge(files: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Merged:
    """Merge files of measured rows into one.

    Of two rows for one point, implementation and device model the newer one is kept, by the date of their machines; of
    the same date the one in the later file. They conflict if their configs differ, or their times by more than both
    spreads.

    Args:
        files: the files, at least one.
        out: the merged file; it may be one of them.

    Raises:
        InvalidArgument: where there are no files, or one cannot be read.
        OpmuxError: where the merged file cannot be written.
    """
    loading.ensure_loaded()
    if not files:
        raise InvalidArgument("tune: `merge` expected files of measured rows, got none; name them")
    kept: dict[object, Row] = {}
    conflicts: list[str] = []
    refused: list[str] = []
    for file in files:
        try:
            found = read_measured(file)
        except OSError as error:
            raise InvalidArgument(f"tune: `merge` cannot read {file}: {error.strerror or error}; name a file") from None
        refused += [f"{file}:{bad.line}: {bad.reason}" for bad in found.refused]
        read: list[Row] = [*found.rows, *found.failed]
        for row in read:
            place = place_of(row)
            before = kept.get(place)
            newer = before is None or row.machine.date >= before.machine.date
            if isinstance(before, MeasuredRow) and isinstance(row, MeasuredRow) and differ(before, row):
                winner, loser = (row, before) if newer else (before, row)
                conflicts.append(f"{_said(winner)} kept, {_said(loser)} left out, of {_point(row)}")
            if newer:
                kept[place] = row
    rows, failed = split(list(kept.values()))
    try:
        write_measured(out, rows, failed)
    except OSError as error:
        raise OpmuxError(f"tune: {out} cannot be written: {error.strerror or error}; choose another file") from None
    return Merged(str(Path(out)), len(rows), tuple(conflicts), tuple(refused))


def differ(one: MeasuredRow, other: MeasuredRow) -> bool:
    """Whether two rows of one place disagree: in their configs, or in their times by more than both spreads."""
    apart = abs(one.time_us - other.time_us)
    return one.config != other.config or apart > one.spread * one.time_us + other.spread * other.time_us


def _said(row: MeasuredRow) -> str:
    return f"{row.where}: {row.time_us:.4g} us ({row.machine.date or 'no date'})"


def _point(row: Row) -> str:
    return f"{row.implementation} at {Point(row.op, row.dtypes, row.dims, row.options).key}"
