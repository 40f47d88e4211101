"""Files of records: opmux's own CSV, one measured row per line, in columns that a person can read and edit."""

import csv
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from opmux.errors import TunedRecordError
from opmux.near import did_you_mean
from opmux.plugins.record_readers import BadRow
from opmux.tuning import fields
from opmux.tuning.checks import check_record
from opmux.tuning.record import COLUMNS, REQUIRED_COLUMNS, TunedRecord, known_op

_DIMS_EXAMPLE, _DTYPES_EXAMPLE, _OPTIONS_EXAMPLE = "tokens=4096;hidden=8192", "x=bf16;weight=bf16", "causal=true"


def read_csv(path: Path) -> Iterator[Mapping[str, Any] | BadRow]:
    """The rows of opmux's own format. Each line is one row, so that a broken quote spoils only that row.

    Raises:
        OSError: if the file cannot be read.
        UnicodeDecodeError: if it is not UTF-8.
    """
    header: list[str] | None = None
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), start=1):
        line = line.rstrip("\r")
        if not line.strip() or line.startswith("#"):
            continue
        try:
            row = [text.strip() for text in next(csv.reader([line], strict=True, skipinitialspace=True))]
        except csv.Error as error:
            yield BadRow(number, f"malformed CSV: {error}; a row is one line, quotes inside a field are doubled")
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
                number, f"expected {len(header)} fields as in the header, got {len(row)}; quote fields with commas"
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
        return f"header: column `{repeated[0]}` appears twice; drop one"
    return f"header: column `{missing[0]}` is missing; required are {', '.join(REQUIRED_COLUMNS)}" if missing else ""


def read_row(row: Mapping[str, Any], file: str, line: int) -> TunedRecord:
    """Parse one row into a record; `opmux.tuning.check_record` checks what it says.

    Raises:
        TunedRecordError: if a field cannot be read.
    """
    text = {name: fields.as_text(row.get(name)) for name in COLUMNS if name != "config"}
    op = known_op(text["op"])
    if unknown := [name for name in row if name not in COLUMNS and name != "line"]:
        remedy = f"{did_you_mean(str(unknown[0]), COLUMNS)}the columns are {', '.join(COLUMNS)}"
        raise fields.refused(op.name, "columns", "columns of a record", f"`{unknown[0]}`", remedy)
    for name in REQUIRED_COLUMNS:
        if not text[name]:
            raise fields.refused(op.name, name, "a value", "an empty field", "fill it in or drop the row")
    options = {o.name: o for o in op.signature.options}
    words = fields.read_pairs(op.name, "options", text["options"], _OPTIONS_EXAMPLE)
    for name in words:
        if name not in options:
            known = ", ".join(options) or "none"
            remedy = f"{did_you_mean(name, options)}its options are {known}"
            raise fields.refused(op.name, "options", f"options of {op.name}", f"`{name}`", remedy)
    dims = fields.read_pairs(op.name, "dims", text["dims"], _DIMS_EXAMPLE)
    dtypes = fields.read_pairs(op.name, "dtypes", text["dtypes"], _DTYPES_EXAMPLE)
    return TunedRecord(
        op=op.name,
        arch=text["arch"],
        dtypes={name: fields.read_dtype(op.name, "dtypes", name, word) for name, word in dtypes.items()},
        dims={name: fields.read_integer(op.name, "dims", word, name) for name, word in dims.items()},
        backend=text["backend"],
        time_us=fields.read_number(op.name, "time_us", text["time_us"]),
        error=fields.read_number(op.name, "error", text["error"]),
        compared=fields.read_integer(op.name, "compared", text["compared"]),
        options={name: fields.read_option(op.name, options[name], word) for name, word in words.items()},
        config=fields.read_config(op.name, row.get("config")),
        tflops=fields.read_number(op.name, "tflops", text["tflops"]) if text["tflops"] else None,
        gbps=fields.read_number(op.name, "gbps", text["gbps"]) if text["gbps"] else None,
        opmux=text["opmux"],
        backend_version=text["backend_version"],
        date=text["date"],
        note=text["note"],
        file=file,
        line=line,
    )


def _fields_of(record: TunedRecord) -> list[str]:
    values = {name: getattr(record, name) for name in COLUMNS}
    config = "" if record.config is None else fields.write_config(record.op, record.config)
    written = [config if name == "config" else fields.as_text(value) for name, value in values.items()]
    for name, text in zip(COLUMNS, written, strict=True):
        if re.search(r"[\r\n]", text):
            raise fields.refused(record.op, name, "one line", repr(text), "a row is one line")
    return written


def write_records(path: str | os.PathLike[str], records: Iterable[TunedRecord]) -> None:
    """Write records as opmux's own CSV; the file appears whole or not at all.

    Args:
        path: the file; an existing one is replaced.
        records: rows, in their order.

    Raises:
        TunedRecordError: if a record would be refused when it is read; the message gives its index.
    """
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for place, record in enumerate(records):
        try:
            check_record(record)
            row = _fields_of(record)
            if read_row(dict(zip(COLUMNS, row, strict=True)), "", 0) != record:
                raise fields.refused(
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
