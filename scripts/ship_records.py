"""Makes the file of rows that a package ships from files that `make_records.py` wrote.

`python scripts/ship_records.py MEASURED... --out packages/plugins-triton/src/opmux_triton/records/h200.measured` merges
them and leaves out what a choice does not need: rows of the reference, configs that failed, and configs, which are the
heuristics' own and would tie a row to one version of its implementation. An implementation that declares its tiles
by parameters of its config keeps them, since its times are predicted by their sizes; a row of one that has no config
gets that of its heuristics, with which rows are measured. Machines that differ in nothing but the day, the clocks and
packages that no row is of become one, of the last day, so that its rows share their headings.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from opmux.arch import known_arch
from opmux.callpath.op import OPS
from opmux.declared.configs import as_mapping
from opmux.planning.takers import takers
from opmux.plugins import loading
from opmux.shapes import Point
from opmux.tuner import merge
from opmux.tuning.measured import Machine, MeasuredRow, read_measured, write_measured

LEFT_OUT = "reference"


def kept_lines(text: str, tiled: frozenset[tuple[str, str]]) -> Iterator[str]:
    """The lines of a file that are shipped.

    Args:
        text: the file.
        tiled: (op, implementation) of those that keep their configs.
    """
    heading: dict[str, Any] = {}
    for line in text.splitlines():
        value = json.loads(line)
        if isinstance(value, list):
            dims, figures, *config = value
            if heading["implementation"] == LEFT_OUT or isinstance(figures, str):
                continue
            keeps = (heading["op"], heading["implementation"]) in tiled
            time_us, *others = figures  # spread and error tell a reader more than a choice: two digits will do
            short = [other if other is None else float(f"{other:.2g}") for other in others]
            yield json.dumps([dims, [time_us, *short], *(config if keeps else ())])
            continue
        if "op" in value:
            heading = value
            if value["implementation"] == LEFT_OUT:
                continue
            if "compared" in value:
                value = {**value, "compared": [name for name in value["compared"] if name != LEFT_OUT]}
        yield json.dumps(value)


def tiled_by_config() -> frozenset[tuple[str, str]]:
    """(op, implementation) of those whose tiles are parameters of their configs."""
    return frozenset(
        (op.name, i.full_name)
        for op in OPS.values()
        for i in op.implementations
        if any(isinstance(block, str) for _, block in i.tiles)
    )


def with_configs(rows: Iterable[MeasuredRow], tiled: frozenset[tuple[str, str]]) -> Iterator[MeasuredRow]:
    """Rows; those without a config that are to have one get that of the heuristics."""
    for row in rows:
        if row.config is None and (row.op, row.implementation) in tiled:
            point = Point(row.op, row.dtypes, row.dims, row.options)
            found = takers(
                point.definition.public, *point.tensors().values(), arch=known_arch(row.machine.arch),
                backend=row.implementation, **point.all_options,
            )  # fmt: skip
            config = next((t.heuristic() for t in found if t.implementation.full_name == row.implementation), None)
            yield row if config is None else replace(row, config=as_mapping(config))
        else:
            yield row


def of_few_machines(rows: Iterable[MeasuredRow]) -> Iterator[MeasuredRow]:
    """Rows, the last of each implementation at a point; machines that are the same but for day and clocks are one."""
    rows = sorted(rows, key=lambda row: row.machine.date)
    packages = {"torch", *(f"opmux-{row.implementation.partition(':')[0]}" for row in rows)}
    machines: dict[str, Machine] = {}
    last: dict[tuple[str, str, str], MeasuredRow] = {}
    for row in rows:
        versions = {name: version for name, version in row.machine.versions.items() if name in packages}
        same = replace(row.machine, versions=versions, clocks={}, date="")
        machines[repr(same)] = replace(same, date=row.machine.date)
        last[row.machine.device, Point(row.op, row.dtypes, row.dims, row.options).key, row.implementation] = replace(
            row, machine=same
        )
    yield from (replace(row, machine=machines[repr(row.machine)]) for row in last.values())


def main(words: list[str] | None = None) -> int:
    """Write the file; 1 where a row was refused."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(words)
    loading.ensure_loaded()
    tiled = tiled_by_config()
    with tempfile.TemporaryDirectory() as folder:
        short = []
        for number, path in enumerate(given.files):
            short.append(Path(folder) / f"{number}-{path.name}")
            lines = kept_lines(path.read_text(encoding="utf-8"), tiled)
            short[-1].write_text("\n".join(lines) + "\n", encoding="utf-8")
            found = read_measured(short[-1])
            if not found.refused:
                write_measured(short[-1], list(with_configs(found.rows, tiled)))
        merged = merge(short, given.out)
        write_measured(given.out, of_few_machines(read_measured(given.out).rows))
    sys.stdout.write(f"{merged}\n{given.out.stat().st_size} bytes\n")
    return int(bool(merged.refused))


if __name__ == "__main__":
    sys.exit(main())
