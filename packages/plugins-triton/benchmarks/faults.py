"""Paged attention on fp8 caches in processes of its own: a fault ends its process, not a benchmark.

The conformance suite's cases, those of keys of 40 columns and values of 24 under compute-sanitizer too, and some tests.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

CASES = """
import sys, torch, opmux
from opmux.plugins import loading
from opmux.testing import execution
from opmux.testing.fitted import cases_for
from opmux.testing.single import run_one
loading.ensure_loaded()
backend, few = "triton:codes", sys.argv[1] == "few"
device = execution.device_for(backend)
counts = {}
for case in cases_for(backend, "paged_attention", "model", device):
    dims = case.dims
    if few and (dims.get("head_dim"), dims.get("value_dim")) != (40, 24):
        continue
    print("case", case.id, flush=True)
    found = run_one(backend, case, device)
    torch.cuda.synchronize()
    counts[found.status] = counts.get(found.status, 0) + 1
    if found.findings:
        print("FOUND", [str(f)[:400] for f in found.findings][:2], flush=True)
    print(counts, flush=True)
"""


def children(tests: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The cases, the checked ones, and the tests, started."""
    plain = [sys.executable, "-c", CASES]
    checker = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    tests_of_codes = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "paged/test_codes.py", "-m", "gpu",
        "--tb=short", "-k", "another_size or captured or fp8_queries or (reads and (128 or 256) and decode) or options",
    ]  # fmt: skip
    commands = {
        "paged on codes": ([*plain, "all"], {"CUDA_LAUNCH_BLOCKING": "1"}),
        "paged 40/24 checked": (
            [checker, "--print-limit", "6", "--destroy-on-device-error", "kernel", *plain, "few"], {},
        ),
        "tests of codes": (tests_of_codes, {}),
    }  # fmt: skip
    for name, (command, more) in commands.items():
        if "checked" in name:  # so that every tensor has memory of its own
            more["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        try:
            child = subprocess.Popen(
                command,
                env={**os.environ, **more},
                cwd=tests,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        except OSError as error:
            print(f"{name}: {error}", flush=True)
            continue
        yield name, child
