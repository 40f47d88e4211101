"""What every test of the Triton backend starts from."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

os.environ.pop("TRITON_INTERPRET", None)  # its tests set it for processes of their own
os.environ["OPMUX_PLUGINS"] = "triton"  # whatever else is installed beside the core must not take part

sys.path.insert(0, str(Path(__file__).parent))

import opmux
from opmux import log
from opmux.plugins import loading

loading.ensure_loaded()


@pytest.fixture(autouse=True)
def clean_process() -> Iterator[None]:
    """Leave nothing behind for the next test."""
    torch.manual_seed(0)
    yield
    opmux.policy.reset()
    opmux.quarantine_clear()
    log._announced.clear()


@pytest.fixture
def interpret() -> Callable[[str], None]:
    """Runs a program of this folder under Triton's interpreter, which a process is to be started with."""

    def run(program: str) -> None:
        done = subprocess.run(
            [sys.executable, Path(__file__).with_name(program)],
            env={**os.environ, "TRITON_INTERPRET": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.strip() == "all equal", done.stderr[-3000:]

    return run
