"""The choice on calls that tuning never saw: what opmux chose, what else it could have chosen, and torch's own calls.

``python benchmarks/measure_choice.py --seed N --out FILE.json [--per-group 60] [--limit 200] [--group NAME]...`` draws
calls (``choice_shapes.py``). Processes compile the Triton kernels that the calls need, without the device
(``compile_ahead.py``), and meanwhile one measures: every implementation that accepts a call, in the config that it
would get, and torch's own ways to do it, interleaved, device time on a cold cache. Calls come in turns of their groups.
On the smallest calls of each group it also measures whole calls, host time included: once nothing compiles any more, as
that takes the processors. The same command goes on where a run stopped. ``scripts/choice_page.py`` makes the page from
the result. ``--small`` runs small calls on a CPU.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import choice_shapes
import torch
from choice_rows import Measuring
from compile_ahead import POLL_S, Ahead

from opmux import tuning
from opmux.arch import arch_of
from opmux.bench.isolated import in_one_line
from opmux.bench.plots.summary import geometric_mean
from opmux.bench.work import measure_ceilings
from opmux.running import builds
from opmux.shapes import Point
from opmux.tuner.machine import machine_of
from opmux.tuner.weights import weight
from opmux.tuning import store

WHOLE_SHARE = 0.6
"""The part of the time limit after which whole calls are measured even if something still compiles."""
MOST_HELD = 2**35
"""Bytes of the device that torch may keep between calls."""
WHOLE_OF = 4
"""The smallest calls of each group on which whole calls are measured."""
SAVE_EVERY_S = 5.0
MOST_JOBS = 14
ALIKE = ("seed", "small", "device", "versions", "rows_of")
"""What files must have in common to be one."""
LOW = 0.92
"""A speedup over torch that the summary counts as low."""


def in_turn(
    calls: Sequence[tuple[str, Point]], last: Collection[str], ahead: Ahead, until: float, whole_from: float
) -> Iterator[tuple[str, Point]]:
    """Calls as they can be measured: in their order, those of ``last`` once nothing compiles, until the time is up.

    Args:
        calls: groups and calls.
        last: the keys of calls whose whole time is measured.
        ahead: what compiles their kernels.
        until: the time, as `time.perf_counter` has it, from which no further call comes.
        whole_from: the time from which those of ``last`` come although something compiles.
    """
    early = deque(call for call in calls if call[1].key not in last)
    late = deque(call for call in calls if call[1].key in last)
    while (early or late) and (now := time.perf_counter()) < until:
        waiting = late if late and (not early or not ahead.busy or now > whole_from) else early
        while not ahead.ready(waiting[0][1]) and time.perf_counter() < until:
            time.sleep(POLL_S)
        yield waiting.popleft()


def kept(path: Path, head: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of an earlier run of the same seed on the same machine."""
    if not path.exists():
        return []
    before = json.loads(path.read_text(encoding="utf-8"))
    for name in ALIKE:
        if before[name] != head[name]:
            raise SystemExit(f"{path}: `{name}` is {before[name]!r} there and {head[name]!r} now; name another file")
    rows: list[dict[str, Any]] = before["rows"]
    return rows


def joined(paths: Sequence[Path]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The head of the first of some files, and the rows of all, each call once."""
    head: dict[str, Any] = json.loads(paths[0].read_text(encoding="utf-8"))
    del head["rows"]
    rows = {row["key"]: row for path in paths for row in kept(path, head)}
    return head, list(rows.values())


def write(path: Path, head: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Write the file; it appears whole."""
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_text(json.dumps({**head, "rows": rows}, indent=0) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def head_of(device: torch.device, given: argparse.Namespace) -> dict[str, Any]:
    """What is said of a run: the machine, the seed, and which measured rows were in force."""
    machine, files = machine_of(device), tuning.report().files
    _, times = store.in_force()
    rows = (row for op in times.values() for row in op.rows if row.machine.arch == machine.arch)
    ceilings = measure_ceilings(device, torch.float32 if given.small else torch.bfloat16)
    return {
        "title": given.title,
        "seed": given.seed,
        "small": given.small,
        **asdict(machine),
        "copy_gbps": ceilings.copy_gbps,
        "record_files": [Path(file.file).name for file in files],
        "rows_of": dict(sorted(Counter(row.machine.device for row in rows).items())),
    }


def summaries(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each group: how fast the choice is beside the best of torch, and what choosing the best would gain."""
    for group in dict.fromkeys(row["group"] for row in rows):
        speedups, regrets, slowest = [], [], ""
        for row in rows:
            if row["group"] != group or row["chosen"] not in row["opmux"]:
                continue
            took = row["opmux"][row["chosen"]][0]
            regrets.append(took / min(figures[0] for figures in row["opmux"].values()))
            if row["torch"]:
                speedups.append(min(figures[0] for figures in row["torch"].values()) / took)
                slowest = row["key"] if speedups[-1] == min(speedups) else slowest
        said = f"{group}: {len(regrets)} calls"
        if speedups:
            low = sum(s < LOW for s in speedups)
            said += f", over the best of torch geomean {geometric_mean(speedups):.3f} of {len(speedups)}"
            said += f", {low} below {LOW}, least {min(speedups):.3f} at {slowest}"
        if regrets:
            said += f"; regret geomean {geometric_mean(regrets):.3f}, worst {max(regrets):.2f}"
        yield said


def smallest(calls: list[tuple[str, Point]]) -> Iterator[str]:
    """The keys of the smallest calls of each group."""
    for group in dict.fromkeys(group for group, _ in calls):
        own = sorted((point for name, point in calls if name == group), key=lambda p: (weight(p), p.key))
        yield from (point.key for point in islice(own, WHOLE_OF))


def arguments_of(words: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--join", type=Path, nargs="+", help="measure nothing: make one file of these")
    parser.add_argument("--per-group", type=int, default=60)
    parser.add_argument("--group", action="append", default=[], choices=[g.key for g in choice_shapes.groups(False)])
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds in all; calls come in turns of the groups")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument(
        "--call-limit", type=float, default=0.25, help="seconds after which a call starts no further round"
    )
    parser.add_argument("--jobs", type=int, help=f"processes that compile; by default up to {MOST_JOBS}, none on a CPU")
    parser.add_argument("--title", default="", help="what the page calls this run")
    parser.add_argument("--small", action="store_true", help="small calls, on a CPU")
    parser.add_argument("--dry", action="store_true", help="list the calls and measure nothing")
    given = parser.parse_args(words)
    if given.jobs is None:
        given.jobs = 0 if given.small else min(MOST_JOBS, max(1, (os.cpu_count() or 2) - 2))
    if given.jobs < 0:
        parser.error(f"--jobs expected a number of processes, got {given.jobs}")
    if not given.dry and given.out is None:
        parser.error("--out expected a file for the results, got none")
    if given.join:
        return given
    if given.seed is None:
        parser.error("--seed expected a number that the calls are drawn by, got none")
    if not given.dry and not given.small and not torch.cuda.is_available():
        parser.error("measuring needs a GPU and there is none; --small measures small calls on the CPU, --dry lists")
    return given


def main(words: list[str] | None = None) -> int:
    """Measure; 1 where an implementation failed or was wrong, or nothing was measured."""
    given = arguments_of(words)
    if given.join:
        head, rows = joined(given.join)
        write(given.out, head, rows)
        sys.stdout.write("".join(f"{line}\n" for line in summaries(rows)) + f"{len(rows)} calls\n")
        return 0
    calls = list(choice_shapes.drawn(given.seed, given.per_group, given.small, given.group))
    if given.dry:
        sys.stdout.write("".join(f"{group}: {point.key}\n" for group, point in calls) + f"{len(calls)} calls\n")
        return 0
    began = time.perf_counter()
    device = torch.device("cpu") if given.small else torch.device("cuda", torch.cuda.current_device())
    head = head_of(device, given)
    rows = kept(given.out, head)
    done = {row["key"] for row in rows}
    first = set(smallest(calls))
    todo = [call for call in calls if call[1].key not in done]
    ahead = Ahead([point for _, point in todo], arch_of(device).name, given.jobs)
    print(f"{ahead.kernels} kernels to compile, after {time.perf_counter() - began:.0f} s", flush=True)
    measuring, saved = Measuring(device, given.rounds, given.call_limit), time.perf_counter()
    with torch.no_grad():
        for group, point in in_turn(todo, first, ahead, began + given.limit, began + WHOLE_SHARE * given.limit):
            try:
                rows.append({"key": point.key, **measuring.row(group, point, point.key in first)})
            except Exception as error:  # one call's failure must not lose the others
                print(f"not measured: {point.key}: {in_one_line(error)}", flush=True)
            if device.type == "cuda" and torch.cuda.memory_reserved(device) > MOST_HELD:
                torch.cuda.empty_cache()
            if time.perf_counter() - saved > SAVE_EVERY_S:
                write(given.out, head, rows)
                saved = time.perf_counter()
    write(given.out, head, rows)
    print(f"{ahead}; {builds.total().count} compiled where they were measured", flush=True)
    for problem in ahead.problems:
        print(f"not compiled: {problem}", flush=True)
    ahead.close()
    for line in summaries(rows):
        print(line, flush=True)
    for row in rows:
        for name, said in row["failed"].items():
            print(f"FAILED {row['key']}: {name}: {said}", flush=True)
    print(f"{len(rows)} of {len(calls)} calls in {time.perf_counter() - began:.0f} s", flush=True)
    return int(not rows or any(row["failed"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
