"""What `import opmux` costs after torch, and what it pulls in.

Run: ``python packages/core/benchmarks/import_time.py [--json]``.
"""

import argparse
import json
import statistics
import subprocess
import sys

LIMIT_SECONDS = 0.1
FORBIDDEN = ("triton", "pandas", "numba", "cupy", "torch._inductor", "torch._dynamo", "rich", "typer", "pytest")

PROGRAM = f"""
import sys, time
import torch
before = set(sys.modules)
started = time.perf_counter()
import opmux
seconds = time.perf_counter() - started
new = set(sys.modules) - before
pulled = sorted(m for m in new for f in {FORBIDDEN!r} if m == f or m.startswith(f + "."))
print(seconds, torch.cuda.is_initialized(), ",".join(pulled))
"""


def measure(runs: int = 9) -> tuple[list[float], bool, str]:
    """Seconds of each run in a fresh process, whether a device was initialised, and forbidden modules imported."""
    seconds, initialised, pulled = [], False, ""
    for _ in range(runs):
        result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
        time_text, device, *modules = result.stdout.strip("\n").split(" ")
        seconds.append(float(time_text))
        initialised |= device == "True"
        pulled = " ".join(modules)
    return seconds, initialised, pulled


def main() -> int:
    """Print the figures; 1 where something is imported or initialised that must not be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    seconds, initialised, pulled = measure()
    median = statistics.median(seconds)
    if arguments.json:
        print(json.dumps({"seconds": median, "device_initialised": initialised, "pulled": pulled}))
    else:
        verdict = "ok" if median <= LIMIT_SECONDS else "over"
        print(
            f"import opmux after torch     {median:6.3f} s (min {min(seconds):.3f})  limit {LIMIT_SECONDS} s  {verdict}"
        )
        print(f"device initialised           {'yes' if initialised else 'no'}")
        print(f"forbidden modules imported   {pulled or 'none'}")
    return 1 if initialised or pulled else 0


if __name__ == "__main__":
    sys.exit(main())
