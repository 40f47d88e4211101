"""The libraries build with the compiler that pip brings too, and have what programs ask the loader for."""

import ctypes
import sys
from pathlib import Path

import pytest

from opmux_emulator.hip import library
from opmux_emulator.native import build


@pytest.mark.long
def test_zig_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "compiler", lambda: [sys.executable, "-m", "ziglang", "c++"])
    made = build.build(tmp_path / "libamdhip64.so", build.HIP)
    version = ctypes.c_int()
    assert ctypes.CDLL(str(made)).hipDriverGetVersion(ctypes.byref(version)) == 0
    assert version.value == 70100000


def test_a_compiler_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "compiler", lambda: ["false"])
    with pytest.raises(build.BuildError, match="building the HIP library failed: false -std=c"):
        build.build(tmp_path / "libamdhip64.so", build.HIP)
    assert list(tmp_path.iterdir()) == []


def test_versions_that_linked_programs_ask_for() -> None:
    names = library().read_bytes()
    assert all(f"hip_{version}\0".encode() in names for version in ("4.2", "5.2", "6.0", "7.0"))
