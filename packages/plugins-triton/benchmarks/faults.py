"""What fails on a GPU and is not explained yet, in processes of its own: a fault ends its process, not a benchmark.

Paged attention on fp8 caches whose keys have 40 columns and whose values 24, as the conformance suite calls it, alone
and under compute-sanitizer; and the training step that is captured in a graph, with every backend and with Triton's.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

FAULT = """
import sys, torch, opmux
from opmux.plugins import loading
from opmux_triton.paged import implementations
implementations.SeenToWork.check = lambda self, call: None
from opmux.testing import execution
from opmux.testing.fitted import cases_for
from opmux.testing.single import run_one
loading.ensure_loaded()
backend, op = "triton:codes", "paged_attention"
device = execution.device_for(backend)
for case in cases_for(backend, op, "model", device):
    dims = case.dims
    if (dims.get("head_dim"), dims.get("value_dim")) == (40, 24) and "k_cache" in case.id:
        print("case", case.id, flush=True)
        found = run_one(backend, case, device)
        torch.cuda.synchronize()
        print("case", found.status, [str(f)[:400] for f in found.findings][:2], flush=True)
"""


def children(tests: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The faults: paged attention of uneven heads, alone and under compute-sanitizer; the captured training step."""
    plain = [sys.executable, "-c", FAULT]
    checker = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    step = [
        sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "loss/test_targets.py", "-k",
        "training_step_in_a_graph", "-m", "gpu", "--tb=short",
    ]  # fmt: skip
    commands = {
        "paged 40/24": (plain, {"CUDA_LAUNCH_BLOCKING": "1"}),
        "paged 40/24 checked": (
            [checker, "--tool", "memcheck", "--print-limit", "6", "--destroy-on-device-error", "kernel", *plain], {},
        ),
        "graph": (step, {}),
        "graph of triton alone": (step, {"OPMUX_DISABLE": "vendor"}),
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
