"""What the tests of all packages share: tests for GPUs, parts of tests, and the counts that the sessions print."""

import gc
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

LEFT_OUT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option by which CI runs part of some tests."""
    parser.addoption(
        "--some", action="append", default=[], metavar="PATH=N",
        help="run each test of this file or folder with N of its sets of parameters; may be given several times",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """The marker of tests for GPUs."""
    config.addinivalue_line(
        "markers", "gpu(count=1): runs where torch sees so many GPUs; elsewhere left out, and the summary says so"
    )


def _gpus_of(item: pytest.Item) -> int:
    marks = list(item.iter_markers("gpu"))
    return max((mark.args[0] if mark.args else 1 for mark in marks), default=0)


def spread(among: Sequence[pytest.Item], count: int) -> Iterator[pytest.Item]:
    """So many of them at even distances, from the first one to the last."""
    count = min(count, len(among))
    yield from (among[round(place * (len(among) - 1) / max(1, count - 1))] for place in range(count))


def leave_some(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of each test in the files and folders of ``--some``, keep so many sets of parameters.

    Raises:
        pytest.UsageError: If there is no such file or folder, or the option has no number.
    """
    kept: set[pytest.Item] = set(items)
    for given in config.getoption("some"):
        file, _, number = given.rpartition("=")
        if not number.isdecimal() or int(number) < 1:
            raise pytest.UsageError(f"--some expected PATH=N with a number of at least 1, got {given}")
        place = config.rootpath / file
        if not place.exists():
            raise pytest.UsageError(f"--some expected a file or folder of tests below {config.rootpath}, got {file}")
        there = [item for item in items if item.path == place or place in item.path.parents]
        for _, same in itertools.groupby(there, key=lambda item: item.nodeid.partition("[")[0]):
            among = [*same]
            kept.difference_update(among)
            kept.update(spread(among, int(number)))
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


@pytest.hookimpl(trylast=True)  # so that marks have been looked at
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what ``--some`` asks for, and leave out what needs a GPU where there is none."""
    if config.getoption("some"):
        leave_some(config, items)
    found = torch.cuda.device_count()
    left_out = [item for item in items if found < _gpus_of(item)]
    if not left_out:
        return
    items[:] = [item for item in items if found >= _gpus_of(item)]
    config.hook.pytest_deselected(items=left_out)
    config.stash[LEFT_OUT] = len(left_out)
    if hasattr(config, "workeroutput"):  # a worker of pytest-xdist
        config.workeroutput["gpu_left_out"] = len(left_out)


def pytest_collection_finish() -> None:
    """Leave the tests themselves out of garbage collection: looking through ten thousand takes a second each time."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Have the interpreter end as it would have."""
    gc.unfreeze()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: Any) -> None:
    """Take over the count of a worker of pytest-xdist; each has collected every test."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("gpu_left_out", 0)


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Say what was left out, and leave the counts where the session and CI find them."""
    if left_out := config.stash.get(LEFT_OUT, 0):
        terminalreporter.write_line(
            f"{left_out} tests need a GPU, or more of them, and were left out: torch sees {torch.cuda.device_count()}"
        )
    where = os.environ.get("OPMUX_TEST_COUNTS")
    if where:
        stats = terminalreporter.stats
        counts = {
            "passed": len(stats.get("passed", [])),
            "failed": len(stats.get("failed", [])) + len(stats.get("error", [])),
        }
        Path(where).write_text(json.dumps(counts))
