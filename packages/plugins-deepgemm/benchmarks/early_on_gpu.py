"""Early products of codes on a Hopper GPU: `python packages/plugins-deepgemm/benchmarks/early_on_gpu.py --to FILE`.

Results of early kernels are held to float64 first. Then the lines of many rows are timed as `figures.py` times its own:
what the model chooses, early configs, and the same tiles in the order of before, which take turns. A line is added to
the file as JSON as soon as it is measured. Ends with a table: the time of the fastest early config over that of the
choice, and over that of the same tile in the order of before. With ``--compile`` nothing is run, which takes no GPU.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OPMUX_PLUGINS", "deepgemm")

import figures
import grouped_on_gpu
import on_gpu
import torch
from apart import Limits, measured
from on_gpu import compile_kernels, say, short

from opmux_deepgemm.configs import Config
from opmux_deepgemm.generation.source import Product
from opmux_deepgemm.space import untimed

PARTS = ("fp8 4096", "contiguous", "masked", "seeded")
"""The most important first."""
FEWEST_ROWS = 192
"""Of lines, or of their groups on average: with fewer, tiles have other shapes."""
NARROWEST = 128
"""Of the tiles that are timed."""


class Line(figures.Line):
    """A line that is timed with other configs."""

    def configs(self) -> list[Config]:
        """The model's choice, early configs, and those of one block in the order of before."""
        early = [one for one in untimed(self.sizes) if one.early and one.block_n >= NARROWEST]
        before = [replace(one, early=False) for one in early if one.cluster == 1]
        return list(dict.fromkeys([super().configs()[0], *early, *before]))


def lines(part: str) -> list[Line]:
    """The lines of a part that have many rows."""
    return [Line(*line) for line in figures.lines(part) if line.m >= FEWEST_ROWS]


Check = tuple[str, on_gpu.Case | grouped_on_gpu.Case]


def checks() -> Iterator[Check]:
    """Products whose results are compared, by family."""
    for case in on_gpu.checked("large fp8"):
        if case.config.early:
            yield "large fp8", case
    for family in ("ragged fp8", "masked fp8"):
        for of_groups in grouped_on_gpu.checked(family):
            if of_groups.config.early:
                yield family, of_groups


def check(one: Check) -> str:
    """What is wrong with a product, or nothing."""
    family, case = one
    if isinstance(case, on_gpu.Case):
        return on_gpu.check(family, case)
    return grouped_on_gpu.check(family, case)


def kernels(parts: Iterable[str]) -> list[tuple[Product, Config]]:
    """Everything that is launched."""
    found: dict[tuple[Product, Config], None] = {}
    for family, case in checks():
        if isinstance(case, on_gpu.Case):
            found[on_gpu.product_of(family, case.n, case.k, case.out, case.bias), case.config] = None
        else:
            found[grouped_on_gpu.product_of(family, case.n, case.k, case.out), case.config] = None
    for line in (line for part in parts for line in lines(part)):
        found.update(dict.fromkeys((line.product, config) for config in line.configs()))
    return list(found)


def table(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A row for each line."""
    for line in found:
        spent = line["microseconds"]
        early = {name: time for name, time in spent.items() if name.endswith("e")}
        if not early:
            continue
        best = min(early, key=early.__getitem__)
        # Of the same tile, the faster of those with whole results and without.
        tile = best.split("s")[0]
        alike = [time for name, time in spent.items() if name.startswith(f"{tile}s") and name not in early]
        groups = f"{line['groups']} x " if line["groups"] else ""
        chosen, of_chosen, of_best = line["chosen"], spent[line["chosen"]], early[best]
        yield (
            f"{line['part']}: {groups}{line['m']} {line['n']} {line['k']}: {chosen} {of_chosen:.1f} us, {best} "
            f"{of_best:.1f} us: {of_best / of_chosen:.3f} of it, {of_best / min(alike, default=1e9):.3f} of its tile"
        )


def measure(line: Line) -> dict[str, Any]:
    """A line with the microseconds of each way, and the GPU."""
    return figures.measure(line) | {"device": torch.cuda.get_device_name()}


def run_checks(limits: Limits) -> bool:
    """Compare every product; says whether all are right."""
    wrong, wanted = 0, list(checks())
    for outcome in measured(wanted, figures.warm, check, limits):
        problem = outcome.problem or outcome.found
        if problem:
            wrong += 1
            family, case = outcome.item
            say(f"WRONG {family} {case[:3]} {short(case.config)}: {problem}")
    say(f"early: {len(wanted) - wrong} of {len(wanted)} right")
    return not wrong


def main() -> int:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compile", action="store_true", help="compile only; takes no GPU")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--to", type=Path, default=Path("early-lines.txt"), help="the file that lines are added to")
    parser.add_argument("--start", type=float, default=60, help="seconds for a process to start the GPU")
    parser.add_argument("--limit", type=float, default=20, help="seconds for a line, or a check")
    parser.add_argument("--total", type=float, default=float("inf"), help="seconds after which no line is begun")
    given = parser.parse_args()
    began = time.monotonic()
    good = compile_kernels(kernels(given.parts))
    if given.compile:
        return int(not good)
    limits = Limits(given.start, given.limit, began + given.total)
    good = run_checks(limits) and good
    found = []
    with given.to.open("a", encoding="utf-8") as file:
        about = {"torch": torch.__version__, "cuda": torch.version.cuda, "date": time.strftime("%Y-%m-%d")}
        file.write(json.dumps(about | {"rounds": figures.ROUNDS}) + "\n")
        wanted = [one for part in given.parts for one in lines(part)]
        for outcome in measured(wanted, figures.warm, measure, limits):
            if outcome.problem:
                good = False
                say(f"# FAILED {outcome.item}: {outcome.problem}")
                continue
            found.append(outcome.found)
            file.write(json.dumps(outcome.found) + "\n")
            file.flush()
            say(f"# {figures.summary(outcome.found)} ({time.monotonic() - began:.0f} s)")
    for row in table(found):
        say(row)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
