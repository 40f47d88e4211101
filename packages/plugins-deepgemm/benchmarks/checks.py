"""Conformance and compute-sanitizer on a Hopper GPU: `python packages/plugins-deepgemm/benchmarks/checks.py`.

The kernels of every case that conformance will run are compiled first, in as many processes as there are cores. Then
each op is run in a process of its own under a time limit, and each kernel family once under memcheck and racecheck,
likewise. Prints a line for each step as it ends; ``--compile`` stops after the compilation, which takes no GPU. Ends
with 1 if something failed.

Under a tool a family multiplies a few small matrices. They are made and compared on the CPU, so that only this
package's kernels are instrumented, and each has an allocation of its own, past whose end memcheck sees a read.

``--list`` names the parts: conformance, and each family under each tool. ``--parts`` runs some of them, ``--jobs`` so
many of the tools' parts at once. With the default limits each ends within 100 seconds, compilation aside, those of the
tools within 60. The tools' parts compile only what they run.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("OPMUX_PLUGINS", "deepgemm")

import gradients_on_gpu
import grouped_on_gpu
import groups_across_on_gpu
import on_gpu
import scaled_gradients_on_gpu
import torch
from on_gpu import compile_kernels, say

from opmux.plugin import parse_arch, registered_ops, takers
from opmux.testing import execution, fitted
from opmux.testing.case import Case, all_options
from opmux.testing.memory import PLAIN, view_strides
from opmux_deepgemm.configs import Config
from opmux_deepgemm.generation.source import Product
from opmux_deepgemm.prebuilding import kernel_of

ARCH = "sm_90"
SANITIZERS = (
    "compute-sanitizer",
    "/usr/local/cuda/bin/compute-sanitizer",
    "/usr/local/cuda-13.0/bin/compute-sanitizer",
)
TOOLS = ("memcheck", "racecheck")
SCRIPTS = (on_gpu, grouped_on_gpu, groups_across_on_gpu, gradients_on_gpu, scaled_gradients_on_gpu)


def kernels_of(case: Case) -> Iterator[tuple[Product, Config]]:
    """What a case launches; nothing where it is refused."""
    op = case.definition
    tensors = []
    for argument in op.signature.tensors:
        shape, view = case.shapes.get(argument.name), case.view
        if shape is None:
            tensors.append(None)
            continue
        dtype = case.dtypes[argument.name]
        strides = view_strides(shape, view if dtype.is_floating_point else PLAIN)
        tensors.append(torch.empty_strided(shape, strides, dtype=dtype, device="meta"))
    options = {o.name: 16 for o in op.signature.options if o.kind == "int"} | all_options(op.signature, case)
    for taker in takers(registered_ops()[op.name], *tensors, arch=ARCH, backend="deepgemm", **options):
        yield kernel_of(taker.call, taker.config())


def compile_all(profile: str) -> list[str]:
    """Compile the kernels of all cases; returns the ops, of which the slowest come first."""
    fitted.arch_of = lambda device: parse_arch(ARCH)  # type: ignore[assignment]  # no GPU is asked here
    began = time.perf_counter()
    found: dict[tuple[Product, Config], None] = {}
    counts: dict[str, int] = {}
    for op in execution.ops_of("deepgemm"):
        cases = fitted.cases_for("deepgemm", op, profile, torch.device("cuda"))
        counts[op] = len(cases)
        for case in cases:
            found.update(dict.fromkeys(kernels_of(case)))
    say(f"# {sum(counts.values())} cases, {len(found)} kernels, {time.perf_counter() - began:.1f} s")
    compile_kernels(list(found))
    return sorted(counts, key=lambda op: -counts[op])


def conformance(ops: list[str], profile: str, limit: float, report: Path) -> bool:
    """Run the suite; returns whether it passed."""
    command = [sys.executable, "-m", "opmux", "conformance", "deepgemm", "--profile", profile, "--report", str(report)]
    command += ["--jobs", str(len(ops)), "--limit", str(limit)]
    began = time.perf_counter()
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=limit + 35)
    except subprocess.TimeoutExpired:
        say(f"conformance: time is up ({time.perf_counter() - began:.1f} s)")
        return False
    print(done.stdout[-9000:], done.stderr[-2000:], sep="\n", flush=True)
    if report.exists():
        found = json.loads(report.read_text())
        say(f"conformance: {found['passed']} passed, {found['failed']} failed, {found['skipped']} skipped")
    say(f"# conformance {time.perf_counter() - began:.1f} s")
    return done.returncode == 0


def sanitize(script: str, family: str, tool: str, seconds: float) -> bool:
    """Run the small products of a family under a tool; returns whether it found nothing."""
    program = next((path for path in SANITIZERS if shutil.which(path)), "")
    if not program:
        say(f"{tool} {family}: there is no compute-sanitizer")
        return False
    command = [program, "--tool", tool, "--print-limit", "5", "--error-exitcode", "9"]
    command += [sys.executable, str(Path(__file__).with_name(script)), "--tiny", family]
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the tool's own process and the program that it runs
            process.wait()
            code = -1
        output.seek(0)
        lines = [line for line in output.read().splitlines() if line.strip()]
    summary = next((line for line in reversed(lines) if "SUMMARY" in line), "no summary")
    ended = "time is up" if code == -1 else f"exit {code}"
    say(f"{tool} {family}: {ended}; {summary} ({time.perf_counter() - began:.1f} s)")
    if code:
        say("\n".join(lines[-40:]))
    return code == 0


def families() -> Iterator[tuple[str, str]]:
    """Scripts, and the families of kernels that each runs under a tool."""
    for module in SCRIPTS:
        for family in getattr(module, "SANITIZED", module.FAMILIES):
            yield f"{module.__name__}.py", family


def parts() -> dict[str, tuple[str, str, str] | None]:
    """By name the script, the family and the tool of each part; None for conformance."""
    found: dict[str, tuple[str, str, str] | None] = {"conformance": None}
    for tool in TOOLS:
        for script, family in families():
            found[f"{tool} {family}"] = script, family, tool
    return found


def main() -> int:
    """Run what the arguments say."""
    every = parts()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compile", action="store_true", help="compile only; takes no GPU")
    parser.add_argument("--list", action="store_true", help="print the names of the parts")
    parser.add_argument("--parts", nargs="+", default=list(every), choices=list(every), metavar="PART")
    parser.add_argument("--profile", default="default")
    parser.add_argument("--limit", type=float, default=60, help="seconds for an op's conformance")
    parser.add_argument("--sanitize", type=float, default=60, help="seconds for a family under a tool")
    parser.add_argument("--jobs", type=int, default=1, help="families under tools at once")
    parser.add_argument("--report", type=Path, default=Path("deepgemm-conformance.json"))
    given = parser.parse_args()
    if given.list:
        print("\n".join(every))
        return 0
    ops: list[str] = []
    if "conformance" in given.parts:
        ops = compile_all(given.profile)
    good = True
    if given.parts != ["conformance"]:
        good &= compile_kernels([kernel for module in SCRIPTS for kernel in module.sanitized()])
    if given.compile:
        return not good
    if "conformance" in given.parts:
        good &= conformance(ops, given.profile, given.limit, given.report)
    tested = [part for part in map(every.get, given.parts) if part is not None]
    with ThreadPoolExecutor(given.jobs) as pool:
        good &= all(list(pool.map(lambda part: sanitize(*part, given.sanitize), tested)))
    return not good


if __name__ == "__main__":
    sys.exit(main())
