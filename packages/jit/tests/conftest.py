"""What every test of this package starts from: an empty cache of its own, and no variable but the test's."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["OPMUX_PLUGINS"] = "jit"  # no backend takes part

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from opmux_jit.cache import bundles, layers, reports


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The user's cache of the test."""
    root = tmp_path / "cache"
    monkeypatch.setenv("OPMUX_CACHE", str(root))
    for name in ("OPMUX_BUNDLES", "OPMUX_NO_JIT"):
        monkeypatch.delenv(name, raising=False)
    layers.forget()
    reports.forget()
    bundles.layers_of.cache_clear()
    yield root
    layers.forget()
