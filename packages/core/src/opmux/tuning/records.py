"""The record and its CSV: one measured row a line, in columns that a person can read and edit."""

import csv
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from opmux.callpath.op import OPS, Op
from opmux.errors import TunedRecordError
from opmux.near import did_you_mean
from opmux.tuning import cells

REQUIRED_COLUMNS = ("op", "arch", "dtypes", "dims", "backend", "time_us", "error", "compared")
COLUMNS = (
    "op", "arch", "dtypes", "options", "dims", "backend", "config", "time_us", "tflops", "gbps", "error", "compared",
    "opmux", "backend_version", "date", "note",
)  # fmt: skip
"""Every column, in the order in which they are written; a file may have them in any order."""

_DIMS_EXAMPLE, _DTYPES_EXAMPLE, _OPTIONS_EXAMPLE = "tokens=4096;hidden=8192", "x=bf16;weight=bf16", "causal=true"


@dataclass(frozen=True)
class TunedRecord:
    """A measured row.

    Attributes:
        op: the op's name.
        arch: the arch it was measured on, exact: ``gfx942``, ``sm_90``, ``cpu``.
        dtypes: dtype of every tensor argument that was given, by name.
        dims: every dim of the signature, a star dim by its product.
        backend: full name of the implementation that was fastest: ``triton`` or ``triton:rows``.
        time_us: median time of one call, all device work in it, cold cache, in microseconds.
        error: the worst error against the reference, as a fraction of the conformance kit's bound: at most 1.
        compared: how many implementations were measured side by side.
        options: options that were not their defaults, and all that have none.
        config: the config the target ran with; None where it takes none.
        tflops: 1e-6 * the op's flops / time_us, where the op states its flops.
        gbps: 1e-3 * bytes of all arguments and results / time_us.
        opmux: version of opmux.
        backend_version: version of the backend's package.
        date: ISO 8601.
        note: free text.
        file: where it was read, not part of its value.
        line: the line there.
    """

    op: str
    arch: str
    dtypes: Mapping[str, torch.dtype]
    dims: Mapping[str, int]
    backend: str
    time_us: float
    error: float
    compared: int
    options: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None
    tflops: float | None = None
    gbps: float | None = None
    opmux: str = ""
    backend_version: str = ""
    date: str = ""
    note: str = ""
    file: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)

    @property
    def where(self) -> str:
        """``records.csv:12``."""
        return f"{Path(self.file).name}:{self.line}"


@dataclass(frozen=True)
class BadRow:
    """What a reader yields in place of a row that it cannot read, so that the rows after it still count."""

    line: int
    reason: str


RecordReader = Callable[[Path], Iterable[Mapping[str, Any] | BadRow]]
"""Reads one file: yields rows as dicts with the CSV's columns, whose values may be text or plain numbers, lists and
mappings, and ``line``, the row's place in the file; or a `BadRow`. What it raises refuses the rest of the file."""


def read_csv(path: Path) -> Iterator[Mapping[str, Any] | BadRow]:
    """The rows of opmux's own format. Each line is a row of its own, so that a broken quote spoils one row only.

    Raises:
        OSError: where the file cannot be read.
        UnicodeDecodeError: where it is not UTF-8.
    """
    header: list[str] | None = None
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), start=1):
        line = line.rstrip("\r")
        if not line.strip() or line.startswith("#"):
            continue
        try:
            row = [cell.strip() for cell in next(csv.reader([line], strict=True, skipinitialspace=True))]
        except csv.Error as error:
            yield BadRow(number, f"malformed CSV: {error}; a row is one line, quotes inside a cell are doubled")
            if header is None:
                return
            continue
        if header is None:
            if complaint := _header_complaint(row):
                yield BadRow(number, complaint)
                return
            header = row
        elif len(row) != len(header):
            yield BadRow(
                number, f"expected {len(header)} cells as in the header, got {len(row)}; quote cells with commas"
            )
        else:
            yield {**dict(zip(header, row, strict=True)), "line": number}
    if header is None:
        yield BadRow(1, f"expected a header naming columns ({', '.join(REQUIRED_COLUMNS)}, ...), got an empty file")


def _header_complaint(row: list[str]) -> str:
    repeated = sorted({name for name in row if row.count(name) > 1})
    unknown = [name for name in row if name not in COLUMNS]
    missing = [name for name in REQUIRED_COLUMNS if name not in row]
    if unknown:
        guess = did_you_mean(unknown[0], COLUMNS)
        return f"header: unknown column `{unknown[0]}`; {guess}the columns are {', '.join(COLUMNS)}"
    if repeated:
        return f"header: column `{repeated[0]}` comes twice; drop one"
    return f"header: column `{missing[0]}` is missing; required are {', '.join(REQUIRED_COLUMNS)}" if missing else ""


def known_op(name: str) -> Op:
    """The op that a record names.

    Raises:
        TunedRecordError: where there is none.
    """
    if name in OPS:
        return OPS[name]
    remedy = f"{did_you_mean(name, OPS)}see `opmux ops`"
    raise cells.refused(name or "a row", "op", "the name of an op", repr(name), remedy)


def read_row(row: Mapping[str, Any], file: str, line: int) -> TunedRecord:
    """One row as a record; what it says is not judged here (`opmux.tuning.check_record`).

    Raises:
        TunedRecordError: where a cell cannot be read.
    """
    text = {name: cells.as_text(row.get(name)) for name in COLUMNS if name != "config"}
    op = known_op(text["op"])
    if unknown := [name for name in row if name not in COLUMNS and name != "line"]:
        remedy = f"{did_you_mean(str(unknown[0]), COLUMNS)}the columns are {', '.join(COLUMNS)}"
        raise cells.refused(op.name, "columns", "columns of a record", f"`{unknown[0]}`", remedy)
    for name in REQUIRED_COLUMNS:
        if not text[name]:
            raise cells.refused(op.name, name, "a value", "an empty cell", "fill it in or drop the row")
    options = {o.name: o for o in op.signature.options}
    words = cells.read_pairs(op.name, "options", text["options"], _OPTIONS_EXAMPLE)
    for name in words:
        if name not in options:
            known = ", ".join(options) or "none"
            remedy = f"{did_you_mean(name, options)}its options are {known}"
            raise cells.refused(op.name, "options", f"options of {op.name}", f"`{name}`", remedy)
    dims = cells.read_pairs(op.name, "dims", text["dims"], _DIMS_EXAMPLE)
    dtypes = cells.read_pairs(op.name, "dtypes", text["dtypes"], _DTYPES_EXAMPLE)
    return TunedRecord(
        op=op.name,
        arch=text["arch"],
        dtypes={name: cells.read_dtype(op.name, "dtypes", name, word) for name, word in dtypes.items()},
        dims={name: cells.read_integer(op.name, "dims", word, name) for name, word in dims.items()},
        backend=text["backend"],
        time_us=cells.read_number(op.name, "time_us", text["time_us"]),
        error=cells.read_number(op.name, "error", text["error"]),
        compared=cells.read_integer(op.name, "compared", text["compared"]),
        options={name: cells.read_option(op.name, options[name], word) for name, word in words.items()},
        config=cells.read_config(op.name, row.get("config")),
        tflops=cells.read_number(op.name, "tflops", text["tflops"]) if text["tflops"] else None,
        gbps=cells.read_number(op.name, "gbps", text["gbps"]) if text["gbps"] else None,
        opmux=text["opmux"],
        backend_version=text["backend_version"],
        date=text["date"],
        note=text["note"],
        file=file,
        line=line,
    )


def _cells_of(record: TunedRecord) -> list[str]:
    values = {name: getattr(record, name) for name in COLUMNS}
    config = "" if record.config is None else cells.write_config(record.op, record.config)
    written = [config if name == "config" else cells.as_text(value) for name, value in values.items()]
    for name, text in zip(COLUMNS, written, strict=True):
        if re.search(r"[\r\n]", text):
            raise cells.refused(record.op, name, "one line", repr(text), "a row is one line")
    return written


def write_records(path: str | os.PathLike[str], records: Iterable[TunedRecord]) -> None:
    """Write records as opmux's own CSV; the file appears whole or not at all.

    Args:
        path: the file; an existing one is replaced.
        records: rows, in their order.

    Raises:
        TunedRecordError: where a record would be refused when it is read; names the record by its place.
    """
    from opmux.tuning.checks import check_record

    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for place, record in enumerate(records):
        try:
            check_record(record)
            row = _cells_of(record)
            if read_row(dict(zip(COLUMNS, row, strict=True)), "", 0) != record:
                raise cells.refused(
                    record.op, "record", "values that read back as they are", f"{record}", "use plain ones"
                )
        except TunedRecordError as error:
            raise TunedRecordError(f"records[{place}]: {error}") from None
        writer.writerow(row)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_text(buffer.getvalue(), encoding="utf-8", newline="")
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
