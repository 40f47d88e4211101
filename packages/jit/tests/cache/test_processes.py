"""Many processes and one cache, with the real NVRTC."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

ROUNDS = int(os.environ.get("JIT_KILLS", "12"))
"""How often a builder is killed; a session of its own does it 200 times."""


def run(*words: str) -> Any:
    done = subprocess.run(
        [sys.executable, HERE / "processes.py", *words],
        env={**os.environ, "PYTHONPATH": str(HERE.parent)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_64_processes_that_want_one_kernel_cost_one_build(cache) -> None:
    found = run("wanting", "64")
    assert len(found) == 64
    assert {(one["builds"], one["kept"]) for one in found} == {(1, True)}
    assert len({one["code"] for one in found}) == 1
    assert bytes.fromhex(found[0]["code"])[:4] == b"\x7fELF"
    assert [p.read_text() for p in (cache / "locks").glob("*.builds")] == ["1"]


def test_a_builder_that_is_killed_blocks_nobody_and_leaves_nothing_behind() -> None:
    found = run("killed", str(ROUNDS), "17")
    assert found["died"] + found["ended"] == ROUNDS
    assert found["died"] > ROUNDS / 4
    assert found["left"] == 0
