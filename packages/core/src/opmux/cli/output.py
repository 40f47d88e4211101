"""Output of every command: JSON, tables, error messages, files."""

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from opmux.errors import invalid

_json_stream: TextIO | None = None
"""Where `emit_json` writes while everything else that is printed goes to stderr."""


@contextmanager
def stdout_to_stderr() -> Iterator[TextIO]:
    """Send to stderr what plugins, kernels and child processes print; yields a stream that still reaches stdout."""
    real = sys.stdout
    try:
        is_the_process_own = real.fileno() == 1
    except OSError:  # replaced by something in memory
        is_the_process_own = False
    if not is_the_process_own:
        with redirect_stdout(sys.stderr):
            yield real
        return
    real.flush()
    with os.fdopen(os.dup(1), "w", encoding=real.encoding) as kept:
        os.dup2(2, 1)
        try:
            yield kept
        finally:
            real.flush()
            os.dup2(kept.fileno(), 1)


@contextmanager
def _only_json_on_stdout() -> Iterator[None]:
    global _json_stream
    with stdout_to_stderr() as _json_stream:
        try:
            yield
        finally:
            _json_stream = None


def _asked_for_json(context: typer.Context, as_json: bool) -> bool:
    if as_json:
        context.with_resource(_only_json_on_stdout())
    return as_json


AsJson = Annotated[
    bool, typer.Option("--json", callback=_asked_for_json, help="Print one JSON object instead of tables.")
]
"""The option ``--json``. With it, only what `emit_json` prints reaches stdout."""

STYLES = {
    "chosen": "bold green",
    "accepted": "green",
    "rejected": "yellow",
    "disabled": "yellow",
    "quarantined": "red",
    "building": "cyan",
    "unavailable": "yellow",
}
"""Colours of the states of a candidate."""

_WIDE = 200
"""Width in columns if stdout is a file or a pipe, so that nothing is wrapped."""


def console(stderr: bool = False) -> Console:
    """A console on the current stdout or stderr; if that is not a terminal, it is wide, so that no text is cut."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _WIDE
    return Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


def emit_json(data: Any) -> None:
    """Print an object as JSON; numbers that JSON cannot represent (NaN, infinity) become null."""
    typer.echo(to_json(data), file=_json_stream)


def to_json(data: Any) -> str:
    """The text that `emit_json` prints."""
    return json.dumps(_plain(data), indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (str, int)) else str(value)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[str] = ()) -> Table:
    """A table of plain cells, without markup; columns named in ``right`` hold numbers."""
    made = Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        show_header=any(columns),
    )
    made.padding = (0, 2, 0, 0)
    for column in columns:
        number = column in right
        made.add_column(column, justify="right" if number else "left", no_wrap=number, header_style="dim")
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    return made


def state(word: str) -> Text:
    """A word in the colour of its meaning."""
    good, bad = ("yes", "passed", "faster", "equal"), ("no", "failed", "slower")
    return Text(word, STYLES.get(word, "green" if word in good else "red" if word in bad else ""))


def complain(message: str) -> None:
    """Print an error message on stderr."""
    console(stderr=True).print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)


def check_writable(option: str, path: Path | None) -> None:
    """Refuse a file that cannot be written, before starting the work whose result goes there.

    Raises:
        InvalidArgument: if its folder does not exist, or it is a folder itself.
    """
    if path is None:
        return
    if path.is_dir():
        raise invalid("opmux", option, "a file", f"the folder {path}", "name a file in it")
    if not path.absolute().parent.is_dir():
        raise invalid("opmux", option, "a file in a folder that exists", str(path), "make the folder")


def write(option: str, path: Path, text: str) -> None:
    """Write a file.

    Raises:
        InvalidArgument: if the system refuses it.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        expected = "a file that can be written"
        raise invalid("opmux", option, expected, f"{path} ({error})", "choose another file") from None
