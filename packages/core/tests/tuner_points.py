"""Points and rows for the tuner's tests."""

import dataclasses
import os
from pathlib import Path

import torch

from opmux.shapes import Point
from opmux.tuning.measured import Machine, MeasuredRow, write_measured

BOARD = Machine("sm_90", "NVIDIA H200", 132, date="2026-11-01")


def norm(tokens: int = 4, hidden: int = 32, count: int = 1) -> Point:
    """A point of rms_norm."""
    dtypes = dict.fromkeys(("x", "weight"), torch.float32)
    return Point("rms_norm", dtypes, {"tokens": tokens, "hidden": hidden}, {}, count)


def row(time_us: float = 100.0, spread: float = 0.01, date: str = BOARD.date, **fields) -> MeasuredRow:
    """A row of rms_norm."""
    point = norm(64, 4096)
    machine = dataclasses.replace(fields.pop("machine", BOARD), date=date)
    given = {"implementation": "triton", "error": 0.5, "compared": ("triton",), "config": {"rows": 4}} | fields
    return MeasuredRow(
        point.op, point.dtypes, point.options, point.dims, machine=machine, time_us=time_us, spread=spread, **given
    )


def written(path: Path, *rows: MeasuredRow) -> Path:
    """A file of rows."""
    write_measured(path, rows)
    return path


def dying(*_: object) -> None:
    """A measuring process that dies at once."""
    os._exit(9)
