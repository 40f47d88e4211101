"""How well the rows of a file choose: each point's fastest implementation, predicted from all other points.

`python packages/plugins-triton/benchmarks/leave_one_out.py` reads the rows that the package ships and prints a line for
each op: the points at which two implementations or more were timed, and the regret there, the time of what is chosen
over that of the fastest. *by time* chooses by times that are predicted from the other points, *by priority* as without
rows. The points are those of one device model; rows of others, at other points, count in predictions. Nothing is run,
so any machine will do; both packages whose rows these are must be installed.
"""

import argparse
import math
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import opmux_triton
from opmux.arch import known_arch
from opmux.callpath.op import OPS
from opmux.plugins import loading
from opmux.running.attempt import attempt_of
from opmux.shapes import Point
from opmux.tables import text_table
from opmux.tuning.measured import MeasuredRow, read_measured
from opmux.tuning.measured.device import DeviceModel
from opmux.tuning.prediction import OpTimes

SHIPPED = sorted((Path(opmux_triton.__file__).parent / "records").glob("*.measured"))


@dataclass(frozen=True)
class Regrets:
    """What choosing costs at the points of an op, in order of the points: 1 is the fastest implementation.

    Attributes:
        op: its name.
        by_time: where times are predicted from all other points, and an implementation without one has its priority.
        by_priority: where the implementation of the highest priority is taken.
        unpredicted: points at which the others predict no time at all.
    """

    op: str
    by_time: tuple[float, ...]
    by_priority: tuple[float, ...]
    unpredicted: int


def points_of(rows: Iterable[MeasuredRow]) -> dict[str, dict[str, MeasuredRow]]:
    """Point -> implementation -> row."""
    found: dict[str, dict[str, MeasuredRow]] = {}
    for row in rows:
        point = Point(row.op, row.dtypes, row.dims, row.options)
        found.setdefault(point.key, {})[row.implementation] = row
    return found


def predicted(row: MeasuredRow, others: Sequence[MeasuredRow]) -> Mapping[str, float]:
    """A time in microseconds for each implementation at a row's point, from other rows alone."""
    op, point = OPS[row.op], Point(row.op, row.dtypes, row.dims, row.options)
    tensors = list(point.tensors().values())
    call = attempt_of(op, op.state, tensors, point.all_options, None, known_arch(row.machine.arch)).call
    model = row.machine
    device = DeviceModel(model.device, model.multiprocessors, model.clock_mhz, model.memory_gbps)
    times = OpTimes(op, others).estimates(call, device).times
    return {name: estimate.time_us for name, estimate in times.items()}


def first_of(names: Iterable[str], priorities: Mapping[str, int], times_us: Mapping[str, float]) -> str:
    """The choice, as opmux makes it: those with times stand together where the highest priority among them stands."""
    band = max((priorities.get(name, 0) for name in names if name in times_us), default=0)

    def order(name: str) -> tuple[float, bool, float, int, str]:
        priority, timed = priorities.get(name, 0), name in times_us
        return -(max(band, priority) if timed else priority), not timed, times_us.get(name, 0.0), -priority, name

    return min(names, key=order)


def regrets_of(op: str, rows: Sequence[MeasuredRow], device: str | None = None) -> Regrets:
    """Leave each point of an op out in turn.

    Args:
        op: its name.
        rows: its rows.
        device: the device model whose points are left out; by default that of the first row.
    """
    priorities = {i.full_name: int(i.priority) for i in OPS[op].state.implementations}
    device = device or rows[0].machine.device
    points = points_of(row for row in rows if row.machine.device == device)
    foreign = points_of(row for row in rows if row.machine.device != device)
    by_time, by_priority, unpredicted = [], [], 0
    for key, here in points.items():
        if len(here) < 2:
            continue
        fastest_us = min(row.time_us for row in here.values())
        others = [row for other, there in points.items() if other != key for row in there.values()]
        others += [row for other, there in foreign.items() if other != key for row in there.values()]
        times = predicted(next(iter(here.values())), others)
        unpredicted += not times.keys() & here.keys()
        by_time.append(here[first_of(here, priorities, times)].time_us / fastest_us)
        by_priority.append(here[first_of(here, priorities, {})].time_us / fastest_us)
    return Regrets(op, tuple(by_time), tuple(by_priority), unpredicted)


def _geomean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values))) if values else math.nan


def _line(name: str, by_time: Sequence[float], by_priority: Sequence[float], unpredicted: int) -> list[str]:
    past = sum(regret > 1.10 for regret in by_time)
    return [
        name, str(len(by_priority)), f"{_geomean(by_time):.3f}", f"{max(by_time, default=math.nan):.2f}", str(past),
        f"{_geomean(by_priority):.3f}", str(unpredicted),
    ]  # fmt: skip


def main(words: Sequence[str]) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, default=SHIPPED, help="files of rows; default: those shipped")
    parser.add_argument("--device", help="whose points are left out; default: the device model with the most rows")
    parser.add_argument("--op", action="append", default=[], help="an op; default: all that have rows")
    given = parser.parse_args(words)
    loading.ensure_loaded()
    rows = [row for path in given.files for row in read_measured(path).rows]
    counts = Counter(row.machine.device for row in rows)
    device = given.device or max(sorted(counts), key=counts.__getitem__, default="")
    if device not in counts:
        parser.error(f"expected rows of {device or 'a device model'}, got those of {', '.join(counts) or 'none'}")
    ops = given.op or sorted({row.op for row in rows if row.machine.device == device})
    found = [regrets_of(op, [row for row in rows if row.op == op], device) for op in ops]
    found = [regrets for regrets in found if regrets.by_priority]
    lines = [_line(r.op, r.by_time, r.by_priority, r.unpredicted) for r in found]
    every = [[regret for r in found for regret in kind(r)] for kind in (lambda r: r.by_time, lambda r: r.by_priority)]
    lines.append(_line("all", *every, sum(r.unpredicted for r in found)))
    head = ["op", "points", "by time", "worst", "above 1.10", "by priority", "not predicted"]
    print(text_table(head, lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
