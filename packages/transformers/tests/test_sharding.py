"""FSDP2 on gloo: what a model trains in two processes is what it trains in one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

RANKS = 2


@pytest.mark.long
def test_a_model_that_is_sharded_trains_alike(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "sharded", str(rank), str(RANKS), str(tmp_path)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        printed = [process.communicate(timeout=240)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * RANKS, "\n".join(printed)
