"""Whatever keeps a kernel from running, the next candidate for the call does, and the reason is said once."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from played import launches

import opmux
from opmux.shapes import Point
from opmux_jit import CompileFailed, LoadFailed, load, prebuild
from opmux_jit.cache import layers
from opmux_jit.compilers import tile
from opmux_jit.launching import devices
from opmux_jit.launching.kernel import Kernel

HIDDEN = 256
POINT = Point("rms_norm", {"x": torch.float32, "weight": torch.float32}, {"tokens": 3, "hidden": HIDDEN})
Fault = Callable[[pytest.MonkeyPatch, Path], str]


@pytest.fixture(autouse=True)
def fresh_layers() -> Iterator[None]:
    """What was found in caches and bundles, and the driver, is looked up again, before and after."""
    for forget in (layers.forget, devices.driver.cache_clear):
        forget()
    yield
    for forget in (layers.forget, devices.driver.cache_clear):
        forget()


def does_not_compile(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    def refuse(self: tile.Tile, source: object, built: Path) -> bytes:
        raise CompileFailed("rms_norm: no such instruction")

    monkeypatch.setenv("OPMUX_CACHE", str(folder / "empty"))
    monkeypatch.setattr(tile.Tile, "compile", refuse)
    return "no such instruction"


def no_compiler(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    monkeypatch.setenv("OPMUX_CACHE", str(folder / "empty"))
    monkeypatch.setattr(tile, "find", lambda: None)
    return "no compiler for sm_90"


def not_built(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    monkeypatch.setenv("OPMUX_CACHE", str(folder / "empty"))
    monkeypatch.setenv("OPMUX_NO_JIT", "1")
    return "opmux prebuild --arch sm_90 --backend cutile --op rms_norm --shapes"


def damaged_bundle(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    prebuild(["sm_90"], [POINT], folder / "bundle", backend="cutile", processes=1)
    (code,) = (folder / "bundle").rglob("code.bin")
    code.write_bytes(code.read_bytes()[:-1] + b"?")
    monkeypatch.setenv("OPMUX_BUNDLES", str(folder / "bundle"))
    return not_built(monkeypatch, folder)


def no_driver(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    monkeypatch.setitem(devices.LIBRARIES, "nvidia", ("libno-such-driver.so.1",))
    return "no driver for nvidia's GPUs"


def refused_by_the_driver(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    """As it refuses a cubin of another arch, or of a toolkit that is too new for it."""
    reason = "the driver does not load it on device 0: no kernel image is available"

    def refuse(self: Kernel, index: int) -> None:
        raise LoadFailed(f"rms_norm: {reason}")

    monkeypatch.setattr(Kernel, "on", refuse)
    return reason


FAULTS = (does_not_compile, no_compiler, not_built, damaged_bundle, no_driver, refused_by_the_driver)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_next_candidate_runs_and_that_is_said_once(
    fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reason = fault(monkeypatch, tmp_path)

    def take(wanted, grid, given) -> None:
        code = wanted.code("sm_90")
        load(code.source, wanted.name, wanted.letters, block=1, entry=code).on(0)

    monkeypatch.setattr(launches, "play", take)
    opmux.policy.prefer("cutile")
    x, w = torch.randn(3, HIDDEN), torch.randn(HIDDEN)
    with launches.on("sm_90"), caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert torch.equal(opmux.rms_norm(x, w), opmux.rms_norm(x, w, backend="reference"))
    said = [text for record in caplog.records if " is quarantined " in (text := record.getMessage())]
    assert len(said) == 1
    assert said[0].startswith("rms_norm: cutile (opmux-cutile ")
    assert reason in said[0]
    assert said[0].endswith("; the next choice runs")
