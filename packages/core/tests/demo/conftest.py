"""A model small enough for tests, with random weights."""

from collections.abc import Iterator

import pytest
import torch

from opmux.demo.model import Llama, LlamaConfig


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Tensors this small gain nothing from a second thread, and wait for it where its core is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def model() -> Llama:
    """Two layers, grouped heads, a vocabulary of 13."""
    return Llama(
        LlamaConfig(vocabulary=13, layers=2, heads=4, kv_heads=2, head_dim=8, intermediate=24, max_positions=64),
        seed=3,
    )
