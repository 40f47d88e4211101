"""FSDP2: ranks on gloo, each with a part of every parameter, train what one process trains."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_train_what_one_process_trains(ranks: int, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "nn.sharded", str(rank), str(ranks), str(tmp_path)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        printed = [process.communicate(timeout=120)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * ranks, "\n".join(printed)
