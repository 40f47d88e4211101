"""Makes measured rows of a run of the choice: every implementation that was timed, at every call of the run.

`python scripts/rows_of_choice.py choice.json --op attention --op linear_backward --out choice.measured` writes the rows
of ``packages/plugins-triton/benchmarks/measure_choice.py``'s file, for `ship_records.py` to merge. A run measures many
more points in its time than the tuner does, since it tries one config of each implementation and computes no reference:
results are held to each other, and what differs has no time. So the rows have no error. A time whose quartiles are far
apart is left out: the device waited for the host in some rounds. Calls whose rows are shipped
are calls that tuning saw: the figures of the choice must come from another seed.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from opmux.plugins import loading
from opmux.shapes.files import point_of
from opmux.tuning.measured import Machine, MeasuredRow, write_measured

MACHINE = ("arch", "device", "multiprocessors", "clock_mhz", "memory_gbps", "driver", "versions", "clocks", "date")

STEADY = 0.05
"""Half the distance between the quartiles, as a fraction of the median, up to which a time becomes a row."""


def rows_of(run: Mapping[str, Any], only: frozenset[str]) -> Iterator[MeasuredRow]:
    """The rows of a run.

    Args:
        run: its file, as JSON.
        only: names of the ops whose rows are wanted; all if empty.
    """
    machine = Machine(**{name: run[name] for name in MACHINE})
    for row in run["rows"]:
        point = point_of(row["point"])
        if only and point.op not in only:
            continue
        compared = tuple(sorted(row["opmux"]))
        for name, (median, low, high, *_) in row["opmux"].items():
            if (high - low) / 2 > STEADY * median:
                continue
            yield MeasuredRow(
                op=point.op,
                dtypes=point.dtypes,
                options=point.options,
                dims=point.dims,
                implementation=name,
                machine=machine,
                time_us=median,
                spread=(high - low) / 2 / median,
                error=None,
                compared=compared,
            )


def main(words: list[str] | None = None) -> int:
    """Write the file; 1 where it would have no row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--op", action="append", default=[], help="only calls of this op; several times")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(words)
    loading.ensure_loaded()
    rows = [
        row for path in given.runs for row in rows_of(json.loads(path.read_text(encoding="utf-8")), frozenset(given.op))
    ]
    if rows:
        write_measured(given.out, rows)
    sys.stdout.write(f"{len(rows)} rows\n")
    return int(not rows)


if __name__ == "__main__":
    sys.exit(main())
