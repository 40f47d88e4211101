"""What `.ci/memcheck` has compute-sanitizer watch: ``OP`` runs cases of it, ``--kernels`` names kernels that never ran.

Environment: ``PROFILES``, of each of which ``MOST`` cases are taken at even distances, and all of long sequences, whose
kernels join parts; none after three quarters of ``SECONDS_EACH``. ``OUT``, where ``kernels.txt`` has the names of the
kernels that were launched.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from opmux.arch import arch_of
from opmux.testing import cases_of, run_case
from opmux.testing.sequences import LONG
from opmux_triton import launch as launching
from opmux_triton.aot.jobs import enumerate_jobs

LAUNCHED = Path(os.environ["OUT"]) / "kernels.txt"


def name_of(kernel: Any) -> str:
    """A kernel's name with its module: there are some of one name, of Gluon and portable."""
    return f"{kernel.__module__}.{kernel.__name__}"


def run(op: str) -> bool:
    """Run cases of an op; whether none failed and some passed."""
    launched: set[str] = set()
    launch = launching._launch

    def noted(kernel: Any, *arguments: Any) -> None:
        launched.add(name_of(kernel))
        launch(kernel, *arguments)

    launching._launch = noted
    most, status = int(os.environ["MOST"]), []
    last = time.monotonic() + 0.75 * float(os.environ["SECONDS_EACH"])
    for profile in os.environ["PROFILES"].split():
        cases = [c for c in cases_of(op, profile, gpu=True) if c.probe == "values"]
        step = max(1, len(cases) // most)
        for case in [c for place, c in enumerate(cases) if place % step == 0 or c.data == LONG]:
            if time.monotonic() > last:
                status.append("not taken")
                continue
            try:
                status.append(run_case("triton", op, case.id).status)
            except AssertionError as error:
                print(error)
                status.append("failed")
            print(f"{status[-1]} {case.id}", flush=True)
    with LAUNCHED.open("a") as file:
        file.writelines(f"{name}\n" for name in sorted(launched))
    counts = ", ".join(f"{status.count(kind)} {kind}" for kind in ("passed", "failed", "skipped", "not taken"))
    print(f"{op}: {counts}")
    return "failed" not in status and "passed" in status


def never_ran() -> list[str]:
    """The kernels that targets launch on this device, over all conformance cases, and that no case here did."""
    found = enumerate_jobs(arch_of(torch.device("cuda")).name)
    launched = set(LAUNCHED.read_text().split())
    return sorted({name_of(job.launch.kernel) for job in found.jobs.values()} - launched)


if __name__ == "__main__":
    if sys.argv[1] != "--kernels":
        sys.exit(not run(sys.argv[1]))
    if missing := never_ran():
        sys.exit(f"kernels that no case launched: {', '.join(missing)}")
