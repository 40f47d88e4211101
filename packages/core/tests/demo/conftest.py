"""A model small enough for tests, with random weights."""

import pytest

from opmux.demo.model import Llama, LlamaConfig


@pytest.fixture
def model() -> Llama:
    """Two layers, grouped heads, a vocabulary of 13."""
    return Llama(
        LlamaConfig(vocabulary=13, layers=2, heads=4, kv_heads=2, head_dim=8, intermediate=24, max_positions=64),
        seed=3,
    )
