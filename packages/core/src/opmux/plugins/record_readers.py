"""The types for plugins that read other formats of tuned records: the reader, and a row that it cannot read."""

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
mappings, and with ``line``, the row's line in the file; or a `BadRow`. If it raises, the rest of the file is
refused."""
