"""Everything that docs/benchmarks/host.md shows: the host's part of calls, of decode, and of a process's beginning.

``python benchmarks/measure_host.py --out host_times.json [--limit SECONDS] [--parts launch calls ...] [--tiny]``. Each
part is a program of its own, which this one starts and bounds; the file is written after each. Parts that are not asked
for, fail, or find no time left stay as the file had them. ``--tiny`` runs everything on the CPU in small sizes.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import triton

HERE = Path(__file__).resolve().parent
JIT, TRANSFORMERS = HERE.parents[1] / "jit" / "benchmarks", HERE.parents[1] / "transformers" / "benchmarks"


def programs(tiny: bool) -> dict[str, tuple[Path, list[str], dict[str, str], float]]:
    """Part -> its program, arguments, environment, and the seconds that it may take."""
    small, native, own = ["--tiny"] if tiny else [], {"OPMUX_NATIVE_LAUNCH": "1"}, {"OPMUX_NATIVE_LAUNCH": "0"}
    calls = HERE / "host_calls.py"
    few = ["--rounds", "2", "--calls", "20"] if tiny else []
    found = {
        "launch": (JIT / "launch.py", [], native, 60.0),
        "calls": (calls, [*small, *few], native, 90.0),
        "calls-triton": (calls, [*small, *few], own, 90.0),
        "gradients": (calls, ["--gradients", *small, *few], native, 90.0),
        "gradients-triton": (calls, ["--gradients", *small, *few], own, 90.0),
        "background": (HERE / "measure_background.py", [*small, *(["--shapes", "6"] if tiny else [])], native, 150.0),
        "first-token": (TRANSFORMERS / "first_token.py", small, native, 200.0),
        "decode": (HERE / "model.py", ["--phases", "decode", "--rounds", "3", *small], native, 300.0),
    }
    return {part: program for part, program in found.items() if not (tiny and part == "launch")}


def bounded(program: Path) -> bool:
    """Whether a program takes ``--limit`` and ends in time by itself."""
    return program.stem in ("measure_background", "first_token")


def run(program: tuple[Path, list[str], dict[str, str], float], left: float) -> Any:
    """What a part's program wrote; None where it failed or took too long, which is printed."""
    path, arguments, environment, seconds = program
    seconds = min(seconds, left)
    with tempfile.TemporaryDirectory(prefix="host-") as folder:
        out = Path(folder) / "part.json"
        limit = ["--limit", f"{max(1.0, seconds - 5):.0f}"] if bounded(path) else []
        command = [sys.executable, str(path), *arguments, *limit, "--out", str(out)]
        try:
            subprocess.run(command, env={**os.environ, **environment}, timeout=seconds, check=True)
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
            print(f"{path.name}: {error}", flush=True)
        return json.loads(out.read_text(encoding="utf-8")) if out.exists() else None


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=570.0)
    parser.add_argument("--parts", nargs="+")
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    until = time.monotonic() + arguments.limit
    found: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    found |= {
        "device": "a CPU" if arguments.tiny else torch.cuda.get_device_name(), "torch": torch.__version__,
        "triton": triton.__version__, "date": datetime.date.today().isoformat(),
    }  # fmt: skip
    parts = found.setdefault("parts", {})
    known = programs(arguments.tiny)
    wanted = [part for part in known if not arguments.parts or part in arguments.parts]
    strangers = sorted(set(arguments.parts or ()) - set(known))
    if strangers:
        parser.error(f"--parts: expected some of {', '.join(known)}, got {', '.join(strangers)}")
    for part in wanted:
        left = until - time.monotonic()
        if left < 10:
            print(f"{part}: no time left", flush=True)
            continue
        print(f"== {part}", flush=True)
        started = time.monotonic()
        made = run(known[part], left)
        print(f"== {part}: {time.monotonic() - started:.0f} s", flush=True)
        if made is not None:
            parts[part] = made
            arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
