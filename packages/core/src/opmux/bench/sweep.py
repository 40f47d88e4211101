"""Sweeps: variants of one computation, checked in processes of their own, then timed side by side with its peers.

A sweep program defines only shapes and variants, and ends with ``sys.exit(main(cases, __doc__))``. Nothing here asserts
a time.
"""

import argparse
import functools
import json
import os
import random
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from opmux.bench.clocks import Run, Timed, clock_for, interleave
from opmux.bench.isolated import complaints
from opmux.bench.peers import peers_of
from opmux.bench.results import IMPLEMENTATION, PEER, Left, spread
from opmux.bench.variants import BoundCase, Case, Configured, complaint
from opmux.plugins import loading
from opmux.tables import text_table


@dataclass(frozen=True)
class Timing:
    """The timing of a variant or a peer.

    Attributes:
        kind: ``implementation`` for a variant, or ``peer``.
        median_us, min_us, max_us, q1_us, q3_us: microseconds of a call, over the rounds.
        ratio: time of the best peer over its own: above 1 is faster than that peer; None without a peer.
    """

    name: str
    kind: str
    rounds: int
    median_us: float
    min_us: float
    max_us: float
    q1_us: float
    q3_us: float
    ratio: float | None


@dataclass(frozen=True)
class Swept:
    """The result of a case: what was timed, fastest first, and what was left out."""

    case: str
    timings: tuple[Timing, ...]
    left: tuple[Left, ...]

    def __str__(self) -> str:
        rows = [
            [
                t.name,
                t.kind,
                "" if t.ratio is None else f"{t.ratio:.3f}",
                f"{t.median_us:.1f}",
                f"{t.q1_us:.1f} - {t.q3_us:.1f}",
            ]
            for t in self.timings
        ]
        table = text_table(["", "", "speedup over best peer", "median us", "quartiles"], rows, right=(2, 3, 4))
        return "\n".join([self.case, table, *(f"{x.name} {x.status}: {x.reason}" for x in self.left)]) + "\n"


def run(
    cases: Sequence[Case],
    device: torch.device,
    *,
    rounds: int = 15,
    limit_s: float = 2.0,
    check_limit_s: float = 60.0,
    workers: int | None = None,
    compiled: bool = False,
    told: Callable[[Swept], None] = lambda _: None,
) -> list[Swept]:
    """Check all variants, then time the correct ones alongside their peers.

    Args:
        cases: the cases to run.
        device: the device to run on.
        rounds: the maximum number per case; in each, contenders run in another random order, on a cold cache on a GPU.
        limit_s: seconds after which a case starts no further round.
        check_limit_s: seconds that building and checking one variant may take.
        workers: number of processes that check; None takes half of the CPUs, at most 8.
        compiled: whether torch.compile is a peer of ops too.
        told: called with each result.
    """
    jobs = [(case, name, device) for case in cases for name in case.variants]
    workers = workers or max(1, min(8, (os.cpu_count() or 2) // 2))
    wrong = {
        (id(jobs[number][0]), jobs[number][1]): said
        for number, said in complaints(complaint, jobs, workers=workers, limit_s=check_limit_s)
        if said
    }
    results = []
    for case in cases:
        left = {name: wrong[id(case), name] for name in case.variants if (id(case), name) in wrong}
        with torch.no_grad():
            results.append(_timed(case, left, device, rounds, limit_s, compiled))
        told(results[-1])
    return results


def _timed(
    case: Case, wrong: Mapping[str, str], device: torch.device, rounds: int, limit_s: float, compiled: bool
) -> Swept:
    bound, clock = BoundCase(case, case.shape, device), clock_for(device)
    makers: dict[str, tuple[str, Callable[[], Run]]] = {
        name: (IMPLEMENTATION, functools.partial(bound.call, variant))
        for name, variant in case.variants.items()
        if name not in wrong
    }
    makers |= {name: (PEER, functools.partial(bound.call, peer)) for name, peer in case.peers.items()}
    if bound.op is not None:
        found = peers_of(bound.op, bound.arguments, device, compiled)
        makers |= {name: (PEER, make) for name, make in found.items()}
    left = [Left(name, IMPLEMENTATION, "failed", reason) for name, reason in wrong.items()]
    entered: dict[str, Timed] = {}
    for name, (kind, make) in makers.items():
        try:
            timed = bound.timed(make())
            clock.warm_up(name, timed)
            entered[name] = timed
        except Exception as error:  # what fits the checked shape may fail on this one, and peers may not be had here
            left.append(Left(name, kind, "failed", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"))
    samples = interleave(clock, entered, rounds, limit_s, shuffled=random.Random(0))
    spreads = {name: spread(taken) for name, taken in samples.items()}
    best = min((s[0] for name, s in spreads.items() if makers[name][0] == PEER), default=None)
    timings = [
        Timing(name, makers[name][0], len(samples[name]), *s, ratio=None if best is None else best / s[0])
        for name, s in spreads.items()
    ]
    return Swept(case.title, tuple(sorted(timings, key=lambda t: t.median_us)), tuple(left))


def listing(case: Case) -> str:
    """List what a case would run; every config is checked against its schema.

    Raises:
        InvalidArgument, ValueError: As for `Configured.bound`.
    """
    loading.ensure_loaded()
    for variant in case.variants.values():
        if isinstance(variant, Configured) and case.op is not None:
            variant.bound(case.op, torch.device("cpu"))
    return "\n".join([case.title, *(f"  {name}" for name in case.variants)])


def main(cases: Sequence[Case], description: str | None, arguments: Sequence[str] | None = None) -> int:
    """Run a sweep from the command line; returns the exit status, 1 if a variant was left out."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    parser.add_argument("--only", default="", help="only cases in whose title this regular expression is found")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--limit", type=float, default=2.0, help="seconds after which a case begins no further round")
    parser.add_argument("--check-limit", type=float, default=60.0, help="seconds to build and check one variant")
    parser.add_argument("--compile", action="store_true", help="torch.compile is a peer too")
    parser.add_argument("--dry", action="store_true", help="list what would run; needs no GPU")
    given = parser.parse_args(arguments)
    chosen = [case for case in cases if re.search(given.only, case.title)]
    if given.dry:
        sys.stdout.write("".join(f"{listing(case)}\n" for case in chosen))
        return 0
    if not torch.cuda.is_available():
        parser.error("a sweep needs a GPU and there is none; --dry lists what would run")
    results = run(
        chosen,
        torch.device("cuda"),
        rounds=given.rounds,
        limit_s=given.limit,
        check_limit_s=given.check_limit,
        compiled=given.compile,
        told=lambda swept: print(swept, flush=True),  # noqa: T201
    )
    if given.out is not None:
        write(given.out, results)
    return int(any(left.kind == IMPLEMENTATION for swept in results for left in swept.left))


def write(path: Path, results: Sequence[Swept]) -> None:
    """Write results as JSON, with the device and the torch version."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    data = {"device": device, "torch": torch.__version__, "cases": [asdict(swept) for swept in results]}
    path.write_text(json.dumps(data, indent=1) + "\n")
