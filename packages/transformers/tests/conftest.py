"""What every test of the transformers patches starts from: only this plugin, one thread, no network."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# Whatever else is installed beside the core must not take part; on a GPU the kernels are what is tested.
os.environ["OPMUX_PLUGINS"] = "transformers,triton" if torch.cuda.is_available() else "transformers"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

sys.path.insert(0, str(Path(__file__).parent))

import opmux

opmux.rms_norm(torch.ones(1, 8), torch.ones(8))  # the first call loads the plugins


@pytest.fixture(autouse=True)
def clean_process() -> Iterator[None]:
    """Leave nothing behind for the next test."""
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
    opmux.policy.reset()
    opmux.quarantine_clear()
