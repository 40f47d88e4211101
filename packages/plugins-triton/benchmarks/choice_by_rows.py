"""What would be chosen by other rows: a run of the choice again, from the times that it has of every implementation.

``python benchmarks/choice_by_rows.py choice.json ROWS.measured... [--write NAME]`` reads what ``measure_choice.py``
wrote and files of measured rows, and prints for each group the regret of the choice as it was made, and as it would be
by these rows: so a device is judged by another one's rows, and by its own, from one run. Nothing is run, so any machine
will do. ``--write`` adds the choices to the file under a name, for ``scripts/choice_page.py``. ``--again`` makes them
the choices of the run instead, where rows or the prediction have changed since: every implementation was timed in it.
Whole calls, which ran what was chosen then, are left out where the choice is another.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from leave_one_out import first_of

from opmux.arch import known_arch
from opmux.callpath.op import OPS
from opmux.plugins import loading
from opmux.running.attempt import attempt_of
from opmux.shapes import Point
from opmux.shapes.files import point_of
from opmux.tables import text_table
from opmux.tuning.estimates import Estimate
from opmux.tuning.measured import MeasuredRow, read_measured
from opmux.tuning.measured.device import DeviceModel
from opmux.tuning.prediction import OpTimes, variants_of


class Rows:
    """Measured rows, and what they say of calls on a device.

    Args:
        rows: the rows.
        arch, device: where the calls run.
    """

    def __init__(self, rows: Iterable[MeasuredRow], arch: str, device: DeviceModel) -> None:
        self._by_op: dict[str, list[MeasuredRow]] = {}
        for row in rows:
            self._by_op.setdefault(row.op, []).append(row)
        self._arch, self._device = known_arch(arch), device
        self._times: dict[str, OpTimes] = {}

    def estimates(self, point: Point) -> Mapping[str, Estimate]:
        """A time for each implementation, by its name."""
        op = OPS[point.op]
        if op.name not in self._times:
            others = [row for name in variants_of(op, OPS) for row in self._by_op.get(name, ())]
            self._times[op.name] = OpTimes(op, self._by_op.get(op.name, ()), others)
        tensors = list(point.tensors().values())
        call = attempt_of(op, op.state, tensors, point.all_options, None, self._arch).call
        return self._times[op.name].estimates(call, self._device).times

    def chosen(self, point: Point, names: Iterable[str]) -> str:
        """Which of these implementations would be chosen."""
        priorities = {i.full_name: int(i.priority) for i in OPS[point.op].state.implementations}
        return first_of(names, priorities, {name: e.time_us for name, e in self.estimates(point).items()})

    def why(self, point: Point, name: str) -> tuple[str, str | None]:
        """Why it would be, and where its time comes from."""
        estimate = self.estimates(point).get(name)
        if estimate is not None:
            return str(estimate), estimate.source
        return next(
            f"priority {int(i.priority)}" for i in OPS[point.op].state.implementations if i.full_name == name
        ), None


def device_of(run: Mapping[str, Any]) -> DeviceModel:
    """The device model of a run."""
    return DeviceModel(run["device"], run["multiprocessors"], run["clock_mhz"], run["memory_gbps"])


def choices(run: Mapping[str, Any], rows: Rows) -> dict[str, str]:
    """What rows would choose at each call of a run where anything was timed, by its key."""
    return {row["key"]: rows.chosen(point_of(row["point"]), row["opmux"]) for row in run["rows"] if row["opmux"]}


def regret(row: Mapping[str, Any], chosen: str) -> float | None:
    """The time of a choice over that of the fastest implementation; None where the choice has no time."""
    times = {name: figures[0] for name, figures in row["opmux"].items()}
    return times[chosen] / min(times.values()) if chosen in times else None


def choose_again(run: dict[str, Any], rows: Rows, chosen: Mapping[str, str]) -> int:
    """Put choices in the place of those of a run; returns how many differ."""
    changed = 0
    for row in run["rows"]:
        name = chosen.get(row["key"], row["chosen"])
        if name != row["chosen"]:
            row.pop("whole", None)
            changed += 1
        if row["key"] in chosen:
            point = point_of(row["point"])
            row["chosen"], (row["why"], row["source"]) = name, rows.why(point, name)
            row["expected_us"] = {n: e.time_us for n, e in rows.estimates(point).items() if n in row["opmux"]}
    return changed


def _line(name: str, kinds: Sequence[Sequence[float]]) -> list[str]:
    cells = [name, str(len(kinds[-1]))]
    for regrets in kinds:
        mean = math.exp(statistics.fmean(map(math.log, regrets))) if regrets else math.nan
        cells += [f"{mean:.3f}", f"{max(regrets, default=math.nan):.2f}", str(sum(r > 1.10 for r in regrets))]
    return cells


def main(words: Sequence[str]) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path, help="a file of measure_choice.py")
    parser.add_argument("rows", nargs="+", type=Path, help="files of measured rows")
    parser.add_argument("--write", metavar="NAME", help="add the choices to the file: what the page calls these rows")
    parser.add_argument("--again", action="store_true", help="make these choices those of the run")
    given = parser.parse_args(words)
    loading.ensure_loaded()
    run = json.loads(given.run.read_text(encoding="utf-8"))
    found = [row for path in given.rows for row in read_measured(path).rows if row.machine.arch == run["arch"]]
    if not found:
        parser.error(f"expected rows of {run['arch']}, got none")
    by_rows = Rows(found, run["arch"], device_of(run))
    chosen = choices(run, by_rows)
    kinds: list[dict[str, list[float]]] = [{}, {}]
    for row in run["rows"]:
        for kind, name in zip(kinds, (row["chosen"], chosen.get(row["key"], "")), strict=True):
            value = regret(row, name)
            if value is not None:
                kind.setdefault(row["group"], []).append(value)
    lines = [_line(group, [kind.get(group, ()) for kind in kinds]) for group in kinds[1]]
    lines.append(_line("all", [[value for values in kind.values() for value in values] for kind in kinds]))
    head = ["group", "calls", "as chosen", "worst", "above 1.10", "by these rows", "worst", "above 1.10"]
    sys.stdout.write(text_table(head, lines) + "\n")
    if given.write or given.again:
        counts: dict[str, int] = {}
        for measured in found:
            counts[measured.machine.device] = counts.get(measured.machine.device, 0) + 1
        if given.again:
            run |= {"rows_of": dict(sorted(counts.items())), "record_files": sorted(path.name for path in given.rows)}
            sys.stdout.write(f"{choose_again(run, by_rows, chosen)} choices are others\n")
        else:
            run.setdefault("by_rows", {})[given.write] = {"rows_of": counts, "chosen": chosen}
        rows = run.pop("rows")
        given.run.write_text(json.dumps({**run, "rows": rows}, indent=0) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
