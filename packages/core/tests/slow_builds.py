"""What a helper process is told to do in tests: it builds when it may, fails, or dies."""

import os
import signal
import subprocess
import time
from pathlib import Path


def build(folder: str) -> None:
    """Write the kernel, once the test lets it."""
    (Path(folder) / "begun").touch()
    while not (Path(folder) / "go").exists():
        time.sleep(0.01)
    (Path(folder) / "kernel").write_text("built in the background")


def build_nothing(folder: str) -> None:
    """End well without a kernel."""


def refuse(folder: str) -> None:
    """Fail as a compiler does."""
    raise RuntimeError(f"no such instruction in {Path(folder).name}")


def die(folder: str) -> None:
    """End the process, the first two times."""
    count = len(list(Path(folder).glob("death-*")))
    (Path(folder) / f"death-{count}").touch()
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(folder: str) -> None:
    """End the process, the first time."""
    if not (Path(folder) / "death-0").exists():
        die(folder)
    (Path(folder) / "kernel").write_text("built in the background")


def deferred(folder: str) -> None:
    """Note whether a kernel would be put off here too."""
    from opmux.plugin import builds_deferred

    (Path(folder) / "deferred").write_text(str(builds_deferred()))


def compile_for_ever(folder: str) -> None:
    """Run a compiler that does not end, and note which process it is."""
    compiler = subprocess.Popen(["sleep", "600"])
    (Path(folder) / "compiler.part").write_text(str(compiler.pid))
    (Path(folder) / "compiler.part").rename(Path(folder) / "compiler")
    compiler.wait()
