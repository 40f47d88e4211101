"""Where tuned records come from: files shipped by plugins, the user's folder, the environment's folder.

A refused row does not affect other rows, nor a refused file other files; what was refused, and why, is kept as data.
"""

import logging
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from opmux.callpath.op import OPS
from opmux.errors import PLUGIN_FAULTS, TunedRecordError
from opmux.log import announce_once
from opmux.plugins.reading import LoadedPlugin
from opmux.plugins.record_readers import BadRow, RecordReader
from opmux.tables import text_table
from opmux.tuning.checks import check_record
from opmux.tuning.csv_files import read_csv, read_row
from opmux.tuning.entries import entry_of
from opmux.tuning.measured.files import SUFFIX, read_measured
from opmux.tuning.measured.row import MeasuredRow
from opmux.tuning.prediction import OpTimes, variants_of
from opmux.tuning.record import TunedRecord
from opmux.tuning.table import OpTable, in_force

PLUGIN, USER, ENVIRONMENT = "plugin", "user", "environment"
LAYERS = (PLUGIN, USER, ENVIRONMENT)
"""The layers, the lowest first."""

ADOPTED = "adopted"
"""What another process had in force, in place of the layers."""

_DOCUMENTS = (".md", ".rst", ".txt")
"""Suffixes of files in a folder of records that are not records."""


@dataclass(frozen=True)
class Refusal:
    """A row, or a whole file, that was refused, and why.

    Attributes:
        line: the row's line; None if the whole file, or what names it, is refused.
    """

    layer: str
    file: str
    line: int | None
    reason: str

    def __str__(self) -> str:
        return f"{self.file}{'' if self.line is None else f':{self.line}'}: {self.reason}"


@dataclass(frozen=True)
class LoadedFile:
    """A file that was read.

    Attributes:
        records: number of valid rows.
        refused: number of refused rows.
    """

    layer: str
    file: str
    records: int
    refused: int


@dataclass(frozen=True)
class TuningReport:
    """Which files of tuned records were read, and which rows are in force; prints as tables.

    Attributes:
        files: the files, the lowest layer first.
        refused: what was refused, in the same order.
        ops: how many records are in force for each op, not counting those that a higher layer replaced.
        measured: how many measured rows are, for each op.
    """

    files: tuple[LoadedFile, ...] = ()
    refused: tuple[Refusal, ...] = ()
    ops: Mapping[str, int] = field(default_factory=dict)
    measured: Mapping[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "files": [asdict(file) for file in self.files],
            "refused": [asdict(refusal) for refusal in self.refused],
            "ops": dict(self.ops),
            "measured": dict(self.measured),
        }

    def __str__(self) -> str:
        if not self.files and not self.refused:
            return "no tuned records"
        rows = [[f.layer, str(f.records), str(f.refused), f.file] for f in self.files]
        lines = [text_table(["layer", "records", "refused", "file"], rows, right={1, 2})] if rows else []
        if self.refused:
            lines += ["refused", *(f"  {refusal}" for refusal in self.refused)]
        return "\n".join(lines)


@dataclass(frozen=True)
class Loaded:
    """The records and the measured rows in force, by op, and the report."""

    tables: Mapping[str, OpTable]
    times: Mapping[str, OpTimes]
    report: TuningReport


def user_folder() -> Path:
    """``$XDG_CONFIG_HOME/opmux/tuned``, or ``~/.config/opmux/tuned``."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    # The XDG specification: a relative path is to be ignored.
    return (Path(base) if os.path.isabs(base) else Path("~/.config").expanduser()) / "opmux" / "tuned"


def load_records(path: str | os.PathLike[str], reader: RecordReader = read_csv) -> list[TunedRecord]:
    """Read one file strictly: every row must be valid.

    Args:
        path: the file.
        reader: the reader for its format; opmux's own CSV by default.

    Returns:
        The records, in the file's order.

    Raises:
        TunedRecordError: ``file:line: reason`` for the first refused row, and how many more are refused; or the reason
            for which the whole file is refused.
    """
    records, refused = read_file("", Path(path), reader, {})
    if refused:
        more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        raise TunedRecordError(f"{refused[0]}{more}")
    return records


def load_texts(texts: Mapping[str, str]) -> Loaded:
    """Read the contents of these files, by name, as one layer."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in sorted(texts)]
        for path in paths:
            path.write_text(texts[path.name], encoding="utf-8", newline="")
        return _load({ADOPTED: paths}, {".csv": read_csv}, [])


def load_all(plugins: Iterable[LoadedPlugin]) -> Loaded:
    """Read every layer and merge the valid rows."""
    plugins = list(plugins)
    refused: list[Refusal] = []
    readers = _readers(plugins, refused)
    return _load(_sources(plugins, readers, refused), readers, refused)


def _load(sources: Mapping[str, Sequence[Path]], readers: Mapping[str, RecordReader], refused: list[Refusal]) -> Loaded:
    files: list[LoadedFile] = []
    layers: list[list[TunedRecord]] = []
    measured: dict[Any, MeasuredRow] = {}
    for layer, paths in sources.items():
        seen: dict[Any, TunedRecord] = {}
        records: list[TunedRecord] = []
        own: dict[Any, MeasuredRow] = {}
        for path in paths:
            if path.suffix.lower() == SUFFIX:
                taken, bad = _read_measured(layer, path, own)
                files.append(LoadedFile(layer, str(path), taken, len(bad)))
                refused += bad
                _announce(path, taken, bad)
                continue
            good, bad = read_file(layer, path, readers[path.suffix.lower()], seen)
            files.append(LoadedFile(layer, str(path), len(good), len(bad)))
            records += good
            refused += bad
            _announce(path, len(good), bad)
        layers.append(records)
        measured |= own
    for refusal in refused:
        if refusal.line is None:
            announce_once(("tuned records", str(refusal)), logging.WARNING, "tuned records: %s", refusal)
    tables = {
        name: in_force(OPS[name], [[r for r in records if r.op == name] for records in layers])
        for name in sorted({r.op for records in layers for r in records})
    }
    by_op: dict[str, list[MeasuredRow]] = {}
    for row in measured.values():
        by_op.setdefault(row.op, []).append(row)
    variants = {name: [row for v in variants_of(op, OPS) for row in by_op.get(v, ())] for name, op in OPS.items()}
    times = {
        name: OpTimes(OPS[name], by_op.get(name, ()), variants[name])
        for name in sorted(OPS)
        if name in by_op or variants[name]
    }
    counts = {name: len(table.entries) for name, table in tables.items()}
    measured_counts = {name: len(rows) for name, rows in sorted(by_op.items())}
    report = TuningReport(tuple(files), tuple(refused), counts, measured_counts)
    return Loaded(tables, times, report)


def _read_measured(layer: str, path: Path, seen: dict[Any, MeasuredRow]) -> tuple[int, list[Refusal]]:
    """Read a file of measured rows: how many are valid, and what is refused.

    Args:
        seen: the layer's rows by what they measured; the file's are added.
    """
    try:
        found = read_measured(path)
    except OSError as error:
        return 0, [Refusal(layer, str(path), None, f"cannot be read: {type(error).__name__}: {error}")]
    refused = [Refusal(layer, str(path), bad.line, bad.reason) for bad in found.refused]
    taken = 0
    for row in found.rows:
        before = seen.setdefault(row.identity, row)
        if before is row:
            taken += 1
            continue
        reason = (
            f"{row.op}: the row expected to be the only one of its layer for this device, dtypes, options, dims and "
            f"implementation, got a second one after {before.where}; keep one"
        )
        refused.append(Refusal(layer, str(path), row.line, reason))
    return taken, sorted(refused, key=lambda refusal: refusal.line or 0)


def read_file(
    layer: str, path: Path, reader: RecordReader, seen: dict[Any, TunedRecord]
) -> tuple[list[TunedRecord], list[Refusal]]:
    """The valid rows of a file, and the refused ones.

    Args:
        seen: the records from other files of the layer, by op, place and backend; this file's records are added.
    """
    records: list[TunedRecord] = []
    refused: list[Refusal] = []
    try:
        for number, row in enumerate(reader(path), start=1):
            if isinstance(row, BadRow):
                refused.append(Refusal(layer, str(path), row.line, row.reason))
                continue
            line = row.get("line", number)
            line = line if isinstance(line, int) else number
            try:
                record = read_row(row, str(path), line)
                check_record(record)
                _refuse_repeated(record, seen)
            except TunedRecordError as error:
                refused.append(Refusal(layer, str(path), line, str(error)))
            else:
                records.append(record)
    except PLUGIN_FAULTS as error:  # a file may hold, and a plugin's reader may raise, anything
        refused.append(Refusal(layer, str(path), None, f"cannot be read: {type(error).__name__}: {error}"))
    return records, refused


def _refuse_repeated(record: TunedRecord, seen: dict[Any, TunedRecord]) -> None:
    entry = entry_of(OPS[record.op], record)
    key = (record.op, entry.place, record.backend)
    if (before := seen.get(key)) is not None:
        raise TunedRecordError(
            f"{record.op}: the row expected to be the only one of its layer for this arch, dtypes, options, dims and "
            f"backend, got a second one after {before.where}; keep one"
        )
    seen[key] = record


def _announce(path: Path, good: int, bad: Sequence[Refusal]) -> None:
    rows = [r for r in bad if r.line is not None]
    if rows:
        announce_once(
            ("tuned records", str(path), tuple((r.line, r.reason) for r in rows)),
            logging.WARNING,
            "tuned records: %d of %d rows of %s are refused, the first at line %s: %s; `opmux doctor` lists them",
            len(rows),
            len(rows) + good,
            path,
            rows[0].line,
            rows[0].reason,
        )


def _readers(plugins: Sequence[LoadedPlugin], refused: list[Refusal]) -> dict[str, RecordReader]:
    """File suffix -> reader; the first plugin by name keeps a suffix that two claim."""
    readers: dict[str, RecordReader] = {".csv": read_csv}
    for plugin in plugins:
        for item in plugin.record_readers:
            pair = item if isinstance(item, tuple) and len(item) == 2 else (None, None)
            suffix, reader = pair
            complaint = ""
            if not isinstance(suffix, str) or not suffix.startswith(".") or not callable(reader):
                complaint = f"expected (file suffix with a dot, reader), got {item!r}"
            elif suffix.lower() in (*readers, SUFFIX):
                complaint = f"the reader of {suffix} is declared twice; the first one is kept"
            if complaint:
                refused.append(Refusal(PLUGIN, f"opmux_record_readers of {plugin.name}", None, complaint))
            elif isinstance(suffix, str) and reader is not None:
                readers[suffix.lower()] = reader
    return readers


def _sources(
    plugins: Sequence[LoadedPlugin], readers: Mapping[str, RecordReader], refused: list[Refusal]
) -> dict[str, list[Path]]:
    """The files of each layer, the lowest layer first."""
    paths: dict[str, list[Path]] = {layer: [] for layer in LAYERS}

    def add(layer: str, path: Path, named: bool) -> None:
        if path.suffix.lower() in (*readers, SUFFIX):
            if path not in paths[layer]:
                paths[layer].append(path)
        elif named or path.suffix.lower() not in _DOCUMENTS:
            known = ", ".join(sorted([*readers, SUFFIX]))
            refused.append(Refusal(layer, str(path), None, f"no reader for `{path.suffix}`; there are {known}"))

    def add_folder(layer: str, folder: Path) -> None:
        try:
            found = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
        except OSError as error:
            refused.append(Refusal(layer, str(folder), None, f"cannot be read: {type(error).__name__}: {error}"))
            return
        for path in found:
            add(layer, path, named=False)

    for plugin in plugins:
        for item in plugin.tuned_records:
            if not isinstance(item, (str, os.PathLike)) or not os.path.isabs(item):
                where = f"opmux_tuned_records of {plugin.name}"
                refused.append(Refusal(PLUGIN, where, None, f"expected an absolute path, got {item!r}"))
            elif Path(item).is_dir():
                add_folder(PLUGIN, Path(item))
            else:
                add(PLUGIN, Path(item), named=True)
    if user_folder().is_dir():
        add_folder(USER, user_folder())
    if named := os.environ.get("OPMUX_TUNED"):
        add_folder(ENVIRONMENT, Path(named).expanduser())
    return paths
