"""How much faster several GPUs of one host tune than one: the same points, by one process a GPU.

``python benchmarks/measure_scaling.py --random 60 [--most 100] [--gpus 1 --gpus 2] --out FILE.json`` tunes points that
a seed draws for `OPS`, or with ``--points`` those of a file of shapes or of a tuner's journal: first all of them
untimed, with every GPU, so that their kernels are in the cache on disk (``--compiled``: they are, by
``compile_ahead.py``), then with the first GPU, with the first two, and so on. In the timed runs no process compiles
ahead: what is compared is measuring. With ``--seconds`` the first run ends after that time, and the others measure the
points that it has finished. Two rates are said of each run: of the whole run, in which a process starts for each GPU,
and of the part after each has finished its first point.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import opmux
from opmux.plugins import loading
from opmux.shapes import Point, read_shapes
from opmux.tuner import Progress
from opmux.tuner.drawing import draw
from opmux.tuner.journal import SUFFIX, Journal
from opmux.tuner.weights import weight

OPS = ("linear", "attention", "linear_backward", "rms_norm")
"""What points are drawn for."""


def points_of(path: Path, most: int) -> list[Point]:
    """The points of a file that take least time, in its order; of a journal those at which something was timed.

    Args:
        path: a file of shapes, or a journal.
        most: how many.
    """
    if path.suffix == SUFFIX:
        found = [entry.measured.point for entry in Journal(path) if entry.measured.timings]
    else:
        found = read_shapes(path)
    return cheapest(found, most)


def cheapest(found: Sequence[Point], most: int) -> list[Point]:
    """Those that take least time, each once, in their order."""
    kept = {point.key for point in sorted(found, key=lambda p: (weight(p), p.key))[:most]}
    return list({point.key: point for point in found if point.key in kept}.values())


def rates(finished_s: Sequence[float], workers: int) -> dict[str, float]:
    """What is said of a run.

    Args:
        finished_s: seconds from the beginning to the end of each point, in order.
        workers: processes that measured.

    Returns:
        ``whole_s``: seconds of the run; ``whole_rate``: points a second; ``measuring_s`` and ``measuring_rate``: the
        same after as many points as there are workers were finished.
    """
    measuring_s = finished_s[-1] - finished_s[workers - 1]
    return {
        "whole_s": round(finished_s[-1], 3),
        "whole_rate": round(len(finished_s) / finished_s[-1], 4),
        "measuring_s": round(measuring_s, 3),
        "measuring_rate": round((len(finished_s) - workers) / measuring_s, 4) if measuring_s else 0.0,
    }


def tuned(points: Sequence[Point], given: argparse.Namespace) -> dict[str, Any]:
    """Tune on every device that this process sees; what is found is thrown away."""
    finished_s: list[float] = []

    def told(progress: Progress) -> None:
        if progress.now:
            finished_s.append(round(time.perf_counter() - began, 4))

    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        found = opmux.tune(
            shapes=points,
            out=Path(folder) / "scaling.measured",
            device=given.device,
            limit_s=given.seconds,
            rounds=given.rounds,
            most_configs=given.configs,
            jobs=None if given.ahead else 0,
            progress=told,
        )
    return {"finished_s": finished_s, "builds": found.builds, "build_s": found.build_s, "failed": found.failed}


def run_of(
    count: int, given: argparse.Namespace, ahead: bool = False, first: int | None = None, seconds: float | None = None
) -> dict[str, Any]:
    """Tune in a process that sees the first ``count`` GPUs.

    Args:
        count: how many.
        given: the command line.
        ahead: whether processes compile ahead.
        first: only this many of the points, the first.
        seconds: after which no further point is begun.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    gpus = (named if named != [""] else [str(index) for index in range(count)])[:count]
    words = ["--most", str(given.most), "--rounds", str(given.rounds), "--configs", str(given.configs), "--tune"]
    words += ["--random", str(given.random), "--seed", str(given.seed)]
    if given.points:
        words += ["--points", str(given.points)]
    if ahead:
        words.append("--ahead")
    if first is not None:
        words += ["--first", str(first)]
    if seconds is not None:
        words += ["--seconds", str(seconds)]
    if given.device:
        words += ["--device", given.device]
    answer = subprocess.run(
        [sys.executable, __file__, *words],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(gpus)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=given.limit,
    ).stdout
    found = json.loads(answer.splitlines()[-1])
    return {"gpus": count, **rates(found["finished_s"], count), **found}


def line_of(run: dict[str, Any], first: dict[str, Any]) -> str:
    """What is printed of a run, beside the first one."""
    whole, measuring = (run[name] / first[name] if first[name] else 0.0 for name in ("whole_rate", "measuring_rate"))
    return (
        f"{run['gpus']} GPUs: {len(run['finished_s'])} points in {run['whole_s']:.1f} s, {whole:.2f} x; "
        f"measuring {run['measuring_rate']:.2f} points/s, {measuring:.2f} x; {run['builds']} kernels compiled"
    )


def main(words: list[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--points", type=Path, help="a file of shapes, or a journal, instead of random points")
    parser.add_argument("--random", type=int, default=40, help="points to draw for each op")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=100, help="points to take, those that take least time")
    parser.add_argument("--configs", type=int, default=6, help="configs of each implementation to try")
    parser.add_argument("--gpus", type=int, action="append", default=[], help="how many GPUs; several times")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which one run is given up")
    parser.add_argument("--device", help="cpu: shows that everything works, not how fast anything is")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tune", action="store_true", help="one run with every visible GPU; its figures go to stdout")
    parser.add_argument("--compiled", action="store_true", help="kernels are in the cache on disk: no untimed run")
    parser.add_argument("--seconds", type=float, help="after which the first run begins no further point")
    parser.add_argument("--first", type=int, help="only this many of the points, the first")
    parser.add_argument("--ahead", action="store_true", help="in this run processes compile ahead")
    given = parser.parse_args(words)
    loading.ensure_loaded()
    if given.points:
        points = points_of(given.points, given.most)
    else:
        points = cheapest(draw(OPS, given.random, given.seed, given.device or "cuda"), given.most)
    points = points[: given.first]
    if given.tune:
        sys.stdout.write(json.dumps(tuned(points, given)) + "\n")
        return 0
    runs: list[dict[str, Any]] = []
    counts = given.gpus or [1, 2]
    if not given.compiled:
        untimed = run_of(max(counts), given, ahead=True)
        sys.stdout.write(f"untimed: {untimed['builds']} kernels compiled in {untimed['whole_s']:.0f} s\n")
    for count in counts:
        first = len(runs[0]["finished_s"]) if runs else None
        runs.append(run_of(count, given, first=first, seconds=None if runs else given.seconds))
        sys.stdout.write(line_of(runs[-1], runs[0]) + "\n")
        sys.stdout.flush()
        if given.out:
            device = "cpu" if given.device else torch.cuda.get_device_name()
            given.out.write_text(
                json.dumps({"device": device, "points": len(runs[0]["finished_s"]), "runs": runs}, indent=0) + "\n"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
