"""What a plugin that reads another format of tuned records returns: the reader's type, and the row it cannot read."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class BadRow:
    """What a reader yields in place of a row that it cannot read, so that the rows after it still count."""

    line: int
    reason: str


RecordReader = Callable[[Path], Iterable[Mapping[str, Any] | BadRow]]
"""Reads one file: yields rows as dicts with the CSV's columns, whose values may be text or plain numbers, lists and
mappings, and ``line``, the row's place in the file; or a `BadRow`. What it raises refuses the rest of the file."""
