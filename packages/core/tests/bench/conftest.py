"""Small ceilings: what they measure is not looked at in tests."""

import pytest


@pytest.fixture(autouse=True)
def small_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy and multiply little."""
    monkeypatch.setattr("opmux.bench.work._COPY_BYTES", {"cpu": 2**16})
    monkeypatch.setattr("opmux.bench.work._MATMUL", {"cpu": 64})
