"""What every test of the core starts from: no policy, no quarantine, nothing announced, one thread."""

import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

# The tests plant their own plugins: what happens to be installed beside the core must not take part.
os.environ["OPMUX_PLUGINS"] = ""

import opmux
from opmux import log

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def clean_process() -> Iterator[None]:
    """Leave nothing behind for the next test."""
    torch.manual_seed(0)
    yield
    opmux.policy.reset()
    opmux.quarantine_clear()
    log._announced.clear()


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The log of opmux at level info."""
    caplog.set_level(logging.INFO, logger="opmux")
    return caplog


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Leave the counts where the session and CI find them."""
    where = os.environ.get("OPMUX_TEST_COUNTS")
    if where:
        stats = terminalreporter.stats
        counts = {
            "passed": len(stats.get("passed", [])),
            "failed": len(stats.get("failed", [])) + len(stats.get("error", [])),
        }
        Path(where).write_text(json.dumps(counts))
