"""What was found at points, as the rows of a file: measured rows and configs that failed."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from opmux.shapes.point import Point
from opmux.tuner.measuring import Measured
from opmux.tuning.measured import FailedConfig, Machine, MeasuredRow

Row = MeasuredRow | FailedConfig


def rows_of(measured: Measured, machine: Machine) -> list[Row]:
    """The rows of a point: the best config of each implementation, and every config that failed."""
    point, best = measured.point, measured.best
    compared = tuple(sorted(timing.candidate.implementation for timing in best))
    rows: list[Row] = [
        MeasuredRow(
            op=point.op,
            dtypes=point.dtypes,
            options=point.options,
            dims=point.dims,
            implementation=timing.candidate.implementation,
            machine=machine,
            time_us=timing.median_us,
            spread=(timing.q3_us - timing.q1_us) / 2 / timing.median_us,
            error=timing.error,
            compared=compared,
            config=_config(timing.candidate.config),
            flops=measured.flops,
        )
        for timing in best
    ]
    return rows + [
        FailedConfig(
            point.op, point.dtypes, point.options, point.dims, f.implementation, machine, _config(f.config), f.reason
        )
        for f in measured.failures
        if f.config is not None
    ]


def _config(text: str | None) -> Any:
    return json.loads(text) if text else None


def place_of(row: Row) -> tuple[Any, ...]:
    """What of two rows must be equal for one to replace the other: the point, the implementation, the device model.

    A config that failed is replaced by the same config only.
    """
    point = Point(row.op, row.dtypes, row.dims, row.options).key
    config = json.dumps(row.config, sort_keys=True) if isinstance(row, FailedConfig) else None
    return point, row.implementation, row.machine.arch, row.machine.device, config


def merged_over(before: Iterable[Row], after: Iterable[Row]) -> list[Row]:
    """Rows of which those of ``after`` replace those of ``before`` at the same place."""
    kept = {place_of(row): row for row in before}
    kept |= {place_of(row): row for row in after}
    return list(kept.values())


def split(rows: Sequence[Row]) -> tuple[list[MeasuredRow], list[FailedConfig]]:
    """Measured rows, and configs that failed."""
    return (
        [row for row in rows if isinstance(row, MeasuredRow)],
        [row for row in rows if isinstance(row, FailedConfig)],
    )
