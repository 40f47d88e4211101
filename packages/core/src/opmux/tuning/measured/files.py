"""Files of measured rows: JSON lines, of which most are one short array. Read row by row, written whole or not at all.

The first line names the format and its version. A line with ``machine`` describes a machine, one with ``config`` a
config; a line with ``op`` is a heading: what the rows below it share, up to the next heading; every other line is a
row, an array::

    {"format": "opmux measured rows", "version": 1}
    {"machine": "nvidia-h200-3fa2c1", "arch": "sm_90", "device": "NVIDIA H200", "multiprocessors": 132, ...}
    {"config": "5d1f0e", "values": {"block_m": 16, "block_n": 128}}
    {"op": "linear", "machine": "nvidia-h200-3fa2c1", "implementation": "triton", "dtypes": "x=bf16;w=bf16",
     "dims": ["tokens", "k", "n"], "compared": ["triton", "vendor:blas"]}
    [[16, 4096, 4096], [12.31, 0.012, 0.34], "5d1f0e"]
    [[64, 4096, 4096], "faulted: an illegal memory access", "77ab02"]

(a heading is one line). A row holds the dims; time in microseconds, spread and error, and behind them flops and bytes
where index data decides these; and the name of the config, where the implementation takes one. A text in place of the
figures is a config that failed there, and why. Lines that are blank or start with ``#`` are skipped.

Configs and machines are named by their contents, so files of several runs merge line by line without clashes.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from opmux.errors import TunedRecordError
from opmux.near import did_you_mean
from opmux.plugins.record_readers import BadRow
from opmux.tuning import fields
from opmux.tuning.measured.checks import Heading, check_machine, size_options
from opmux.tuning.measured.row import FailedConfig, Machine, MeasuredRow
from opmux.tuning.record import known_op

SUFFIX = ".measured"
FORMAT, VERSION = "opmux measured rows", 1

_MACHINE = ("machine", "arch", "device", "multiprocessors", "clock_mhz", "memory_gbps", "driver", "versions", "clocks",
            "date")  # fmt: skip
_HEADING = ("op", "machine", "implementation", "dtypes", "options", "dims", "compared")
_CONFIG = ("config", "values")


@dataclass(frozen=True)
class MeasuredFile:
    """What a file of measured rows holds.

    Attributes:
        rows: the valid rows, in the file's order.
        failed: the configs that failed where they were measured.
        refused: the line and the reason of each refused row, heading and machine.
    """

    rows: tuple[MeasuredRow, ...]
    failed: tuple[FailedConfig, ...]
    refused: tuple[BadRow, ...]


def read_measured(path: str | os.PathLike[str]) -> MeasuredFile:
    """Read a file of measured rows. A refused row does not affect the others.

    Raises:
        OSError: if the file cannot be read.
    """
    reader = _Reader(str(path))
    # Bytes that are no UTF-8 spoil their own line only.
    text = Path(path).read_bytes().decode("utf-8-sig", errors="replace")
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip() and not line.startswith("#"):
            try:
                reader.take(number, line)
            except TunedRecordError as error:
                reader.refused.append(BadRow(number, str(error)))
                if not reader.known:
                    break
    if not reader.known and not reader.refused:
        reader.refused.append(BadRow(1, f'expected a first line {{"format": "{FORMAT}", ...}}, got an empty file'))
    return MeasuredFile(tuple(reader.rows), tuple(reader.failed), tuple(reader.refused))


class _Reader:
    """The state between the lines of a file."""

    def __init__(self, file: str) -> None:
        self.file, self.known = file, False
        self.machines: dict[str, Machine] = {}
        self.configs: dict[str, dict[str, Any]] = {}
        self.heading: Heading | None = None
        self.heading_line = 0
        self.rows: list[MeasuredRow] = []
        self.failed: list[FailedConfig] = []
        self.refused: list[BadRow] = []

    def take(self, number: int, line: str) -> None:
        """Read one line.

        Raises:
            TunedRecordError: if it is refused.
        """
        try:
            value = _DECODER.decode(line)
        except (ValueError, RecursionError) as error:
            value, kind = None, f"malformed JSON: {error}; a row is one line"
        else:
            kind = ""
        if not self.known:
            self.known = _is_format(value)
        elif kind and line.lstrip().startswith("{"):
            self.heading, self.heading_line = None, number
            raise TunedRecordError(kind)
        elif kind:
            raise TunedRecordError(kind)
        elif isinstance(value, list):
            self._take_row(number, value)
        elif isinstance(value, dict) and "op" in value:
            self.heading, self.heading_line = None, number  # the rows below a refused heading are refused too
            self.heading = self._heading(value)
        elif isinstance(value, dict) and "machine" in value:
            label, machine = _machine(value)
            if self.machines.setdefault(label, machine) != machine:
                raise TunedRecordError(f"machine {label!r} is described twice, differently; rename one of the two")
        elif isinstance(value, dict) and "config" in value:
            label, config = _config(value)
            if self.configs.setdefault(label, config) != config:
                raise TunedRecordError(f"config {label!r} is described twice, differently; rename one of the two")
        else:
            raise TunedRecordError("expected a machine, a config, a heading with `op`, or a row [[dims], [figures]]")

    def _heading(self, value: dict[str, Any]) -> Heading:
        _only_known(value, _HEADING)
        label = value.get("machine")
        if label not in self.machines:
            raise TunedRecordError(f"machine {label!r} is not described above; write its line before the heading")
        return Heading(value, self.machines[label], self.configs)

    def _take_row(self, number: int, value: list[Any]) -> None:
        if self.heading is None:
            why = f"the heading in line {self.heading_line} is refused" if self.heading_line else "there is no heading"
            raise TunedRecordError(f"a row without what its heading says: {why}; correct the heading")
        made = self.heading.read(value, self.file, number)
        if isinstance(made, MeasuredRow):
            self.rows.append(made)
        else:
            self.failed.append(made)


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a finite number")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def _is_format(value: Any) -> bool:
    """Whether the first line is this format's.

    Raises:
        TunedRecordError: if it is not, or another version's.
    """
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise TunedRecordError(f'expected a first line {{"format": "{FORMAT}", "version": {VERSION}}}, got another')
    if value.get("version") != VERSION:
        raise TunedRecordError(
            f"`version` expected {VERSION}, got {value.get('version')!r}; update opmux, or measure again with this one"
        )
    return True


def _only_known(value: dict[str, Any], known: Sequence[str]) -> None:
    for name in value:
        if name not in known:
            raise TunedRecordError(f"unknown field `{name}`; {did_you_mean(name, known)}they are {', '.join(known)}")


def _machine(value: dict[str, Any]) -> tuple[str, Machine]:
    _only_known(value, _MACHINE)
    machine = check_machine({name: item for name, item in value.items() if name != "machine"})
    label = value["machine"]
    if not isinstance(label, str) or not label:
        raise TunedRecordError(f"`machine` expected a name, got {label!r}; correct the line")
    return label, machine


def _config(value: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    _only_known(value, _CONFIG)
    label, config = value["config"], value.get("values")
    if not isinstance(label, str) or not isinstance(config, dict):
        raise TunedRecordError('expected {"config": name, "values": {...}}; correct the line')
    return label, config


def write_measured(
    path: str | os.PathLike[str], rows: Iterable[MeasuredRow], failed: Iterable[FailedConfig] = ()
) -> None:
    """Write measured rows; the file appears whole or not at all.

    Rows are put in a fixed order under as few headings as possible, so that files of several runs merge line by line.
    Times are rounded to 4 digits, spread and error to 3.

    Args:
        path: the file, with the suffix ``.measured``; an existing one is replaced.
        rows: the rows, in any order.
        failed: configs that failed.

    Raises:
        TunedRecordError: if a row would be refused when it is read.
    """
    blocks: dict[str, list[str]] = {}
    headings: dict[str, Heading] = {}
    machines: dict[str, str] = {}
    configs: dict[str, dict[str, Any]] = {}
    every: list[MeasuredRow | FailedConfig] = [*rows, *failed]
    for row in every:
        label = row.machine.label
        machines[label] = _dumps({"machine": label, **_stated(row.machine)})
        text, line = _checked(row, headings, configs)
        blocks.setdefault(text, []).append(line)
    lines = [_dumps({"format": FORMAT, "version": VERSION}), *(machines[label] for label in sorted(machines))]
    lines += [_dumps({"config": label, "values": configs[label]}) for label in sorted(configs)]
    for heading_line in sorted(blocks):
        # By dims, as numbers; a failed config comes after the row of its point.
        parsed = [(json.loads(line), line) for line in dict.fromkeys(blocks[heading_line])]
        parsed.sort(key=lambda pair: (pair[0][0], isinstance(pair[0][1], str), pair[1]))
        lines += [heading_line, *(line for _, line in parsed)]
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def refusal_of(row: MeasuredRow | FailedConfig) -> str | None:
    """Why a row would be refused when it is read; None if it would not be."""
    try:
        _checked(row, {}, {})
    except TunedRecordError as error:
        return str(error)
    return None


def _checked(
    row: MeasuredRow | FailedConfig, headings: dict[str, Heading], configs: dict[str, dict[str, Any]]
) -> tuple[str, str]:
    """The lines of a row and of its heading, read as a file's are."""
    heading, line = _heading_of(row, row.machine.label), _line_of(row, configs)
    text = _dumps(heading)
    if text not in headings:
        headings[text] = Heading(heading, check_machine(_stated(row.machine)), configs)
    headings[text].read(json.loads(line), "", 0)
    return text, line


def rounded(row: MeasuredRow) -> MeasuredRow:
    """A row as it reads back after it was written."""
    return replace(
        row,
        time_us=float(f"{row.time_us:.4g}"),
        spread=float(f"{row.spread:.3g}"),
        error=None if row.error is None else float(f"{row.error:.3g}"),
        flops=None if row.flops is None else float(f"{row.flops:.6g}"),
        moved_bytes=None if row.moved_bytes is None else float(f"{row.moved_bytes:.6g}"),
    )


def _stated(machine: Machine) -> dict[str, Any]:
    return {name: value for name, value in asdict(machine).items() if value not in ("", 0, {})}


def _heading_of(row: MeasuredRow | FailedConfig, label: str) -> dict[str, Any]:
    heading: dict[str, Any] = {
        "op": row.op,
        "machine": label,
        "implementation": row.implementation,
        "dtypes": fields.as_text(row.dtypes),
        "dims": [*row.dims, *(sizes := size_options(known_op(row.op)))],
    }
    if options := {name: value for name, value in row.options.items() if name not in sizes}:
        heading["options"] = fields.as_text(options)
    if isinstance(row, MeasuredRow):
        heading["compared"] = sorted(row.compared)
    return heading


def _line_of(row: MeasuredRow | FailedConfig, configs: dict[str, dict[str, Any]]) -> str:
    """The row's line; its config is added to those of the file."""
    named: list[str] = []
    if row.config is not None:
        text = fields.write_config(row.op, dict(sorted(row.config.items())))
        named = [hashlib.sha256(text.encode()).hexdigest()[:6]]
        configs[named[0]] = json.loads(text)
    figures: Any
    if isinstance(row, MeasuredRow):
        short = rounded(row)
        figures = [short.time_us, short.spread, short.error]
        if short.flops is not None or short.moved_bytes is not None:
            figures += [short.flops, short.moved_bytes]
    else:
        figures = " ".join(row.reason.split())
    sizes = [*row.dims.values(), *(row.options[name] for name in size_options(known_op(row.op)))]
    return _dumps([sizes, figures, *named])


def _dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
