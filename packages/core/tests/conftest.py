"""What every test of the core starts from: no policy, no quarantine, nothing announced, one thread."""

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

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
def messages(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """The log of opmux at level info, without the plans, which have a test of their own."""

    def is_no_plan(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("plan: ")

    caplog.set_level(logging.INFO, logger="opmux")
    caplog.handler.addFilter(is_no_plan)
    yield caplog
    caplog.handler.removeFilter(is_no_plan)
