"""What every test of the CK backend starts from: no other backend, a cache of its own, no variable but the test's."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["OPMUX_PLUGINS"] = "ck"  # no other installed backend takes part

import opmux
from opmux_ck import launching
from opmux_ck.library import places
from opmux_jit.cache import layers


@pytest.fixture(autouse=True)
def clean_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Leave nothing behind for the next test."""
    for name in ("OPMUX_CK_DIR", "ROCM_PATH", "HIP_PATH", "OPMUX_BUNDLES", "OPMUX_NO_JIT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPMUX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(places, "ROCM", str(tmp_path / "no-rocm"))
    monkeypatch.setattr(launching, "_launches", {})
    monkeypatch.setattr(places, "WHEEL", "no-such-package")
    places.version_of.cache_clear()
    places._names.cache_clear()
    layers.forget()
    yield
    opmux.policy.reset()
    opmux.quarantine_clear()
    layers.forget()


@pytest.fixture
def ck(tmp_path: Path) -> Path:
    """The source tree of a CK that has all headers, with nothing in them."""
    root = tmp_path / "composable_kernel"
    for name in (places.CORE, *(name for names in places.NEEDED.values() for name in names)):
        header = root / "include" / name
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text("// nothing\n")
    for name, word in places.PARTS.values():
        header = root / "include" / name
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text(f"// {word}\n")
    (root / "CMakeLists.txt").write_text("project(x)\nset(version 1.2.0)\n")
    return root
