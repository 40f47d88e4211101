"""The fake driver: built once, opened by the launcher as if it were the vendor's."""

import ctypes
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from opmux_jit.launching import devices
from opmux_jit.native import build

SOURCE = Path(__file__).parent / "fake_driver.cpp"


class Driver:
    """The fake driver's own side."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        self._library.fake_log.restype = ctypes.c_char_p

    def log(self) -> list[str]:
        """What was called since the last time."""
        return self._library.fake_log().decode().splitlines()

    def fail(self, call: str, code: int) -> None:
        self._library.fake_fail(call.encode(), code)

    def version(self, number: int) -> None:
        self._library.fake_version(number)

    @property
    def modules(self) -> int:
        return int(self._library.fake_modules())

    @property
    def context(self) -> int:
        """The device whose context is current; -1 for none."""
        return int(self._library.fake_context())

    @property
    def depth(self) -> int:
        """Contexts on the thread's stack."""
        return int(self._library.fake_depth())


def built(folder: Path, name: str, *flags: str) -> Path:
    path = folder / name
    subprocess.run(
        [build.compiler(), "-std=c++17", "-fPIC", "-shared", *flags, str(SOURCE), "-o", str(path)], check=True
    )
    return path


@pytest.fixture(scope="session")
def library(tmp_path_factory) -> Path:
    return built(tmp_path_factory.mktemp("driver"), "libfake.so")


@pytest.fixture
def old_driver(driver, tmp_path, monkeypatch) -> None:
    """A driver without what CUDA 12 brought."""
    path = built(tmp_path, "libold.so", "-DcuLaunchKernelEx=gone_1", "-DcuTensorMapEncodeTiled=gone_2")
    monkeypatch.setattr(devices, "LIBRARIES", {"nvidia": (str(path),)})


@pytest.fixture
def driver(library, monkeypatch) -> Iterator[Driver]:
    """The fake driver as NVIDIA's and AMD's, and a current stream, 7 for every device."""
    monkeypatch.setattr(devices, "LIBRARIES", {"nvidia": (str(library),), "amd": (str(library),)})
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
    devices.driver.cache_clear()
    devices.device.cache_clear()
    made = Driver(library)
    made.log()
    yield made
    for call in ("init", "load", "launch", "push", "attribute", "encode"):
        made.fail(call, 0)
    made.version(13000)
    devices.driver.cache_clear()
    devices.device.cache_clear()
