"""What every test of the assembly backend starts from."""

import os
from collections.abc import Iterator

import pytest
import torch

os.environ["OPMUX_PLUGINS"] = "asm"  # no other installed backend takes part

import opmux


@pytest.fixture(autouse=True)
def clean_process() -> Iterator[None]:
    """Leave nothing behind for the next test."""
    torch.manual_seed(0)
    yield
    opmux.policy.reset()
    opmux.quarantine_clear()
